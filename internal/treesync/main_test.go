package treesync_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// far is a side on another machine: each call travels in its wire form.
type far struct{ t *treesync.Tree }

func (f far) Index(ctx context.Context, o volume.IndexOptions) iter.Seq2[volume.SyncEntry, error] {
	var wire bytes.Buffer
	treesync.WriteIndex(&wire, f.t.Index(ctx, o))
	return treesync.ReadIndex(&wire)
}

func (f far) names(names []string) ([]string, error) {
	var wire bytes.Buffer
	if err := treesync.WriteNames(&wire, names); err != nil {
		return nil, err
	}
	return treesync.ReadNames(&wire)
}

func (f far) Hashes(ctx context.Context, names []string) ([]string, error) {
	names, err := f.names(names)
	if err != nil {
		return nil, err
	}
	hashes, err := f.t.Hashes(ctx, names)
	if err != nil {
		return nil, err
	}
	var wire bytes.Buffer
	if err := treesync.WriteNames(&wire, hashes); err != nil {
		return nil, err
	}
	return treesync.ReadHashes(&wire, len(names))
}

func (f far) Fetch(ctx context.Context, names []string, w io.Writer) error {
	names, err := f.names(names)
	if err != nil {
		return err
	}
	return f.t.Fetch(ctx, names, w)
}

func (f far) Apply(ctx context.Context, remove []string, r io.Reader) error {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pw.CloseWithError(treesync.WriteApply(pw, remove, r))
	}()
	defer func() { <-done }()
	defer pr.Close()
	remove, stream, err := treesync.ReadApply(pr)
	if err != nil {
		return err
	}
	return f.t.Apply(ctx, remove, stream)
}

// picture describes all that is below a directory.
func picture(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(name)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if rel == "." {
			return nil
		}
		fmt.Fprintf(&b, "%q %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			fmt.Fprintf(&b, " %d %d", info.Size(), info.ModTime().UnixNano())
			if info.Size() < 1<<20 {
				data, err := os.ReadFile(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(&b, " %q", data)
			}
		case info.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(name)
			fmt.Fprintf(&b, " -> %q", to)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// plant makes files; a name with a slash at its end is a directory, a text
// that begins with -> a link.
func plant(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		full := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		switch target, isLink := strings.CutPrefix(text, "->"); {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(full, 0o755)
		case isLink:
			err = os.Symlink(target, full)
		default:
			err = os.WriteFile(full, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func sync(t testing.TB, from, to volume.SyncEnd, o volume.SyncOptions) volume.SyncResult {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Minute, errors.New("it takes too long"))
	defer cancel()
	res, err := treesync.Sync(ctx, from, to, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// record builds a stream by hand.
type record []byte

func (r record) uint(n uint64) record { return binary.AppendUvarint(r, n) }
func (r record) int(n int64) record   { return binary.AppendVarint(r, n) }
func (r record) str(s string) record  { return append(r.uint(uint64(len(s))), s...) }
func (r record) kind(k byte) record   { return append(r, k) }

func stream() record { return record("TBX1") }

func (r record) file(name, data string) record {
	return r.kind('F').str(name).uint(0o644).int(1).uint(0).uint(uint64(len(data))).kind('C').str(data).kind('K')
}

func (r record) meta(name string, mode uint64) record {
	return r.kind('M').str(name).uint(mode).int(5).uint(5)
}

func (r record) dir(name string) record { return r.kind('D').str(name).uint(0o755) }

func (r record) link(name, target string) record { return r.kind('L').str(name).str(target) }

func (r record) end() record { return r.kind('E') }
