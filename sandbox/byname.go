package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/taibox/taibox/internal/boxcopy"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// maxReadFile bounds what [Manager.ReadFile] holds in memory.
const maxReadFile = 256 << 20

// Exec is [Box.Exec] of a box by ID.
func (m *Manager) Exec(ctx context.Context, id string, cmd []string, opts ...ExecOption) (*ExecResult, error) {
	b, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.Exec(ctx, cmd, opts...)
}

// Stream is [Box.Stream] of a box by ID.
func (m *Manager) Stream(ctx context.Context, id string, cmd []string, opts ...ExecOption) (*ExecStream, error) {
	b, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.Stream(ctx, cmd, opts...)
}

// KillProcess asks every command of the box to end (TERM, its whole tree) whose
// command line matches the regular expression, as pkill -f does.
// [ErrExecNotFound] if none that runs does.
func (m *Manager) KillProcess(ctx context.Context, id, pattern string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	re, err := regexp.Compile(pattern)
	if err != nil || pattern == "" {
		return b.failed("kill in", fmt.Errorf("%w: pattern %.64q is no regular expression", ErrInvalidSpec, pattern))
	}
	execs, err := b.Execs(ctx)
	if err != nil {
		return err
	}
	found := false
	for _, e := range execs {
		if e.Done() || !re.MatchString(strings.Join(e.Args, " ")) {
			continue
		}
		err := b.KillExec(ctx, e.ID, taisandbox.KillOptions{Tree: true})
		switch {
		case err == nil:
			found = true
		case !errors.Is(err, ErrExecEnded) && !errors.Is(err, ErrExecNotFound):
			return err
		}
	}
	if !found {
		return b.failed("kill in", fmt.Errorf("%w: no command that runs matches %.64q", ErrExecNotFound, pattern))
	}
	return nil
}

// ReadFile returns a file of a box, up to 256 MiB; [Box.OpenFile] has no bound.
func (m *Manager) ReadFile(ctx context.Context, id, name string) ([]byte, error) {
	b, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	r, _, err := b.OpenFile(ctx, name, FileOptions{Limit: maxReadFile + 1})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err == nil && len(data) > maxReadFile {
		data, err = nil, b.failed("read a file of", fmt.Errorf("%w: %s is longer than %d bytes", ErrInvalidSpec, name, maxReadFile))
	}
	return data, err
}

// WriteFile writes a file of a box, whole or not at all.
func (m *Manager) WriteFile(ctx context.Context, id, name string, data []byte) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	_, err = b.WriteFile(ctx, name, bytes.NewReader(data), FileOptions{})
	return err
}

// ListDir describes what is in a directory of a box, ordered by name.
func (m *Manager) ListDir(ctx context.Context, id, name string) ([]FileInfo, error) {
	b, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return b.ListDir(ctx, name, FileOptions{})
}

// Stat describes a file of a box, and what a link leads to rather than the link.
func (m *Manager) Stat(ctx context.Context, id, name string) (*FileInfo, error) {
	b, err := m.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	info, err := b.Stat(ctx, name, FileOptions{Follow: true})
	if err != nil {
		return nil, err
	}
	return &info, nil
}

// MkDir makes a directory in a box, with its parents; one that is there is no error.
func (m *Manager) MkDir(ctx context.Context, id, name string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	return b.MkDir(ctx, name, FileOptions{All: true})
}

// RemoveFile removes a file or directory of a box, with all that is in it; one
// that is not there is no error.
func (m *Manager) RemoveFile(ctx context.Context, id, name string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	return b.RemoveFile(ctx, name, FileOptions{All: true})
}

// CopyToContainer copies a file or tree of this machine into a box, as docker
// cp does.
func (m *Manager) CopyToContainer(ctx context.Context, id, hostPath, containerPath string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := boxcopy.To(ctx, copyEnd{b}, hostPath, containerPath, boxcopy.Options{}); err != nil {
		return b.failed("copy to", err)
	}
	return nil
}

// CopyFromContainer copies a file or tree of a box to this machine, as docker
// cp does. Links that lead out of what is copied are left out, and are an error
// in the end.
func (m *Manager) CopyFromContainer(ctx context.Context, id, containerPath, hostPath string) error {
	b, err := m.Get(ctx, id)
	if err != nil {
		return err
	}
	if err := boxcopy.From(ctx, copyEnd{b}, containerPath, hostPath, boxcopy.Options{}); err != nil {
		return b.failed("copy from", err)
	}
	return nil
}
