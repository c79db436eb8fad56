package local

import (
	"bufio"
	"context"
	"errors"
	"io"
	"path"
	"sync"

	"github.com/taibox/taibox/internal/tartree"
)

// CopyFrom packs a file or tree as a tar stream.
func (v *Volume) CopyFrom(ctx context.Context, id, name string) (io.ReadCloser, error) {
	clean, err := cleanPath(name)
	if err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, told("copy from", id, name, err)
	}
	t, err := v.tree(id)
	if err != nil {
		return nil, told("copy from", id, name, err)
	}
	if err := t.packable(clean); err != nil {
		t.release()
		return nil, told("copy from", id, name, t.space.goneOr(err))
	}
	ctx, stop := context.WithCancelCause(ctx)
	pr, pw := io.Pipe()
	s := &tarStream{pr: pr, stop: stop, packed: make(chan struct{})}
	// A reader that is given up, or never read, must not hold the volume.
	s.unhook = context.AfterFunc(v.ctx, func() { pr.CloseWithError(errClosed) })
	err = v.goAll(func() {
		defer close(s.packed)
		defer t.release()
		out := bufio.NewWriterSize(pw, archiveBuffer)
		err := tartree.PackRoot(ctx, out, t.root, clean, path.Base(clean), nil)
		if err == nil {
			err = out.Flush()
		}
		pw.CloseWithError(told("copy from", id, name, err))
	})
	if err != nil {
		s.unhook()
		stop(err)
		t.release()
		return nil, told("copy from", id, name, err)
	}
	return s, nil
}

// packable reports what of a name tells at once that it cannot be packed.
func (t *tree) packable(name string) error {
	info, err := t.root.Lstat(name)
	if err != nil {
		return err
	}
	if mode := info.Mode(); mode.IsRegular() {
		f, _, err := t.open(name)
		if err != nil {
			return err
		}
		return f.Close()
	}
	return nil
}

// tarStream is a tree that is packed as it is read.
type tarStream struct {
	pr     *io.PipeReader
	stop   context.CancelCauseFunc
	unhook func() bool
	packed chan struct{}
	once   sync.Once
}

var errStreamClosed = errors.New("the stream is closed")

func (s *tarStream) Read(p []byte) (int, error) { return s.pr.Read(p) }

// Close ends the packing, and waits for its end.
func (s *tarStream) Close() error {
	s.once.Do(func() {
		s.stop(errStreamClosed)
		s.pr.CloseWithError(errStreamClosed)
		s.unhook()
		<-s.packed
	})
	return nil
}
