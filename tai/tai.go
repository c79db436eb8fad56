package tai

import taisandbox "github.com/taibox/taibox/tai/sandbox"

// Client is a connection to one node.
type Client struct {
	sandbox taisandbox.Sandbox
	image   taisandbox.Image
}

// NewClient returns the client of a node in this process. It takes the
// sandbox over: [Client.Close] closes it.
func NewClient(sandbox taisandbox.Sandbox, image taisandbox.Image) *Client {
	return &Client{sandbox: sandbox, image: image}
}

// Sandbox returns the node's boxes.
func (c *Client) Sandbox() taisandbox.Sandbox { return c.sandbox }

// Image returns the node's images.
func (c *Client) Image() taisandbox.Image { return c.image }

// Close lets go of the node; its boxes go on. Repeated calls do nothing.
func (c *Client) Close() error { return c.sandbox.Close() }
