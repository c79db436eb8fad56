package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
)

// API measures our own API.
type API struct{ Client *client.Client }

// Prepare implements [Peer].
func (a API) Prepare(ctx context.Context, archive []byte) error {
	_, err := a.Client.LoadImage(ctx, bytes.NewReader(archive), "")
	return err
}

// Run implements [Peer].
func (a API) Run(ctx context.Context, id string) (bool, error) {
	if err := a.Create(ctx, id); err != nil {
		return false, err
	}
	return true, a.Exec(ctx, id)
}

// Create implements [Peer].
func (a API) Create(ctx context.Context, id string) error {
	_, err := a.Client.CreateBox(ctx, rest.CreateBox{ID: id, Image: Image})
	return err
}

// Exec implements [Peer].
func (a API) Exec(ctx context.Context, id string) error {
	s, err := a.Client.Exec(ctx, id, rest.ExecRequest{Cmd: []string{"/bin/true"}})
	if err != nil {
		return err
	}
	defer s.Close() //nolint:errcheck // the record is what counts
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("/bin/true in box %s printed something: %w", id, err)
	}
	rec, err := s.Wait(ctx)
	if err == nil && (rec.ExitCode == nil || *rec.ExitCode != 0) {
		err = fmt.Errorf("/bin/true in box %s: %s", id, rec.Reason)
	}
	return err
}

// Remove implements [Peer].
func (a API) Remove(ctx context.Context, id string) error { return a.Client.RemoveBox(ctx, id) }
