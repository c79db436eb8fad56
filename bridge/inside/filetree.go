package inside

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/sandbox"
)

// replyFollowed describes what a path leads to.
func replyFollowed(conn *wire.Conn, path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return conn.WriteJSON(wire.TypeReply, describe(filepath.Base(path), &st))
}

// sendTree sends a file or a tree as a tar stream, under its own name.
func sendTree(conn *wire.Conn, path string, follow bool) error {
	as := filepath.Base(path)
	if as == "/" || strings.HasSuffix(path, "/.") {
		as = "."
	}
	if as == ".." {
		return &fs.PathError{Op: "pack", Path: path, Err: unix.EINVAL}
	}
	if follow || as == "." || strings.HasSuffix(path, "/") {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		path = real
	}
	info, err := fileInfo(path)
	if err != nil {
		return err
	}
	if as == "." && info.Mode&unix.S_IFMT != unix.S_IFDIR {
		return &fs.PathError{Op: "pack", Path: path, Err: unix.ENOTDIR}
	}
	if err := conn.WriteJSON(wire.TypeReply, info); err != nil {
		return err
	}
	out := bufio.NewWriterSize(&outputWriter{conn: conn}, wire.MaxData)
	if err := errors.Join(tartree.Pack(out, path, as), out.Flush()); err != nil {
		return err
	}
	return conn.WriteFrame(wire.TypeEnd, nil)
}

// outputWriter sends what is written to it.
type outputWriter struct {
	conn *wire.Conn
	at   int64
	out  []byte
}

func (w *outputWriter) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), wire.MaxData)
		w.out = wire.AppendOutput(w.out[:0], byte(sandbox.Stdout), w.at, rest[:n])
		if err := w.conn.WriteFrames(w.out); err != nil {
			return len(p) - len(rest), err
		}
		w.at += int64(n)
		rest = rest[n:]
	}
	return len(p), nil
}

// receiveTree makes the files of a tar stream in a directory.
func receiveTree(conn *wire.Conn, dir string, owners bool) error {
	root, err := openDir(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := conn.WriteJSON(wire.TypeReply, wire.FileInfo{}); err != nil {
		return err
	}
	if err := tartree.Unpack(context.Background(), &inputReader{conn: conn}, root, tartree.Options{Owners: owners}); err != nil {
		return err
	}
	if d, err := root.Open("."); err == nil {
		unix.Syncfs(int(d.Fd())) //nolint:errcheck // not every file system can
		d.Close()
	}
	return replyFollowed(conn, dir)
}

// openDir opens a directory. [os.OpenRoot] has no error number for what is none.
func openDir(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		if info, serr := os.Stat(dir); serr == nil && !info.IsDir() {
			err = &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
		}
	}
	return root, err
}

// inputReader reads what the node sends, to its end.
type inputReader struct {
	conn *wire.Conn
	data []byte
	done bool
}

func (r *inputReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 {
		if r.done {
			return 0, io.EOF
		}
		t, data, err := r.conn.ReadFrame()
		switch {
		case errors.Is(err, io.EOF):
			return 0, io.ErrUnexpectedEOF // the end is said by a frame
		case err != nil:
			return 0, err
		case t == wire.TypeEOF:
			r.done = true
		case t != wire.TypeStdin:
			return 0, fmt.Errorf("%w: frame of type %d", wire.ErrProtocol, t)
		default:
			r.data = data
		}
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}
