package tai

import (
	"errors"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/workspace"
)

// Client is a connection to one node.
type Client struct {
	sandbox taisandbox.Sandbox
	image   taisandbox.Image
	volume  volume.Volume
}

// Option is a setting of a client.
type Option func(*Client)

// WithVolume gives the client the node's workspaces. The client takes the
// volume over. Without it the node has none.
func WithVolume(v volume.Volume) Option { return func(c *Client) { c.volume = v } }

// NewClient returns the client of a node in this process. It takes the
// sandbox over: [Client.Close] closes it.
func NewClient(sandbox taisandbox.Sandbox, image taisandbox.Image, opts ...Option) *Client {
	c := &Client{sandbox: sandbox, image: image}
	for _, opt := range opts {
		opt(c)
	}
	return c
}

// Sandbox returns the node's boxes.
func (c *Client) Sandbox() taisandbox.Sandbox { return c.sandbox }

// Image returns the node's images.
func (c *Client) Image() taisandbox.Image { return c.image }

// Volume returns the node's workspaces; nil if it keeps none.
func (c *Client) Volume() volume.Volume { return c.volume }

// Workspace returns the files of a workspace of the node. One that is not
// there is told by the calls. The caller closes it.
func (c *Client) Workspace(id string) workspace.FS { return workspace.New(c.volume, id) }

// Close lets go of the node; its boxes go on. Repeated calls do nothing.
func (c *Client) Close() error {
	err := c.sandbox.Close()
	if c.volume != nil {
		err = errors.Join(err, c.volume.Close())
	}
	return err
}
