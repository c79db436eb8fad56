// Package dockerapi measures Docker through its API, as a peer of bench.
//
// It is apart from bench because what it links is heavy.
package dockerapi

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/taibox/taibox/internal/bench"
)

// Peer is Docker behind its API.
type Peer struct{ c *client.Client }

// Open connects to the daemon that the environment names, as the docker
// command does.
func Open(ctx context.Context) (*Peer, error) {
	c, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	if _, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	return &Peer{c}, nil
}

// Prepare implements [bench.Peer].
func (p *Peer) Prepare(ctx context.Context, archive []byte) error {
	r, err := p.c.ImageLoad(ctx, bytes.NewReader(archive))
	if err != nil {
		return err
	}
	defer r.Close() //nolint:errcheck // only read
	_, err = io.Copy(io.Discard, r)
	return err
}

// Run implements [bench.Peer].
func (p *Peer) Run(ctx context.Context, id string) (bool, error) {
	created, err := p.create(ctx, id, "/bin/true")
	if err != nil {
		return false, err
	}
	wait := p.c.ContainerWait(ctx, created, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := p.c.ContainerStart(ctx, created, client.ContainerStartOptions{}); err != nil {
		return true, err
	}
	select {
	case err := <-wait.Error:
		return true, err
	case res := <-wait.Result:
		return true, ended(id, int(res.StatusCode))
	}
}

// Create implements [bench.Peer].
func (p *Peer) Create(ctx context.Context, id string) error {
	created, err := p.create(ctx, id, "/bin/sleep", "2147483647")
	if err != nil {
		return err
	}
	_, err = p.c.ContainerStart(ctx, created, client.ContainerStartOptions{})
	return err
}

func (p *Peer) create(ctx context.Context, name string, cmd ...string) (string, error) {
	r, err := p.c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name:   name,
		Config: &container.Config{Image: bench.Image, Cmd: cmd},
	})
	return r.ID, err
}

// Exec implements [bench.Peer].
func (p *Peer) Exec(ctx context.Context, id string) error {
	x, err := p.c.ExecCreate(ctx, id, client.ExecCreateOptions{AttachStdout: true, AttachStderr: true, Cmd: []string{"/bin/true"}})
	if err != nil {
		return err
	}
	out, err := p.c.ExecAttach(ctx, x.ID, client.ExecAttachOptions{})
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(io.Discard, out.Reader); err != nil {
		return err
	}
	rec, err := p.c.ExecInspect(ctx, x.ID, client.ExecInspectOptions{})
	if err != nil {
		return err
	}
	return ended(id, rec.ExitCode)
}

func ended(id string, code int) error {
	if code != 0 {
		return fmt.Errorf("/bin/true in container %s: exit code %d", id, code)
	}
	return nil
}

// Remove implements [bench.Peer].
func (p *Peer) Remove(ctx context.Context, id string) error {
	_, err := p.c.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	return err
}
