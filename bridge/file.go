package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/internal/filemode"
	"github.com/taibox/taibox/tai/sandbox"
)

// maxEntries bounds a directory's list.
const maxEntries = 1 << 20

// FileInfo describes a file of a box.
type FileInfo = sandbox.FileInfo

// FileOptions are the settings of the calls for files. The default user is root.
type FileOptions = sandbox.FileOptions

// Errors of the calls for files wrap a syscall.Errno, so that errors.Is works
// with those of package fs.

// Stat describes a file; of a symbolic link, the link itself, unless o.Follow.
func (c *Client) Stat(ctx context.Context, name string, o FileOptions) (FileInfo, error) {
	return c.fileCall(ctx, wire.FileStat, name, "", o)
}

// Mkdir makes a directory.
func (c *Client) Mkdir(ctx context.Context, name string, o FileOptions) error {
	_, err := c.fileCall(ctx, wire.FileMkdir, name, "", o)
	return err
}

// Remove removes a file or directory.
func (c *Client) Remove(ctx context.Context, name string, o FileOptions) error {
	_, err := c.fileCall(ctx, wire.FileRemove, name, "", o)
	return err
}

// Rename moves a file or directory, over what is there.
func (c *Client) Rename(ctx context.Context, from, to string, o FileOptions) error {
	_, err := c.fileCall(ctx, wire.FileRename, from, to, o)
	return err
}

// ListDir describes what is in a directory, in no order.
func (c *Client) ListDir(ctx context.Context, name string, o FileOptions) ([]FileInfo, error) {
	conn, _, err := c.openFile(ctx, wire.FileList, name, "", o)
	if err != nil {
		return nil, err
	}
	defer c.part(conn)
	stop := c.bound(ctx, conn)
	defer stop()
	var all []FileInfo
	for {
		var page []wire.FileInfo
		switch end, err := receiveNext(ctx, conn, &page); {
		case err != nil:
			return nil, err
		case end:
			return all, nil
		case len(all)+len(page) > maxEntries:
			return nil, fmt.Errorf("%w: %w: list of %s", sandbox.ErrBridgeLost, wire.ErrProtocol, name)
		}
		for i := range page {
			info, err := checkFile(&page[i])
			if err != nil {
				return nil, err
			}
			all = append(all, info)
		}
	}
}

// WriteFile writes all of r to a file, whole or not at all. A file that is
// there keeps its mode.
func (c *Client) WriteFile(ctx context.Context, name string, r io.Reader, o FileOptions) (FileInfo, error) {
	kind := wire.FileWrite
	if o.IfAbsent || o.IfVersion != "" {
		kind = wire.FileReplace // which a bridge that knows no conditions refuses
	}
	return c.sendFile(ctx, kind, name, r, o)
}

// Unpack makes the files of a tar stream in a directory.
func (c *Client) Unpack(ctx context.Context, dir string, archive io.Reader, o FileOptions) error {
	_, err := c.sendFile(ctx, wire.FileUnpack, dir, archive, o)
	return err
}

// sendFile makes a request that takes all of r.
func (c *Client) sendFile(ctx context.Context, kind wire.FileKind, name string, r io.Reader, o FileOptions) (FileInfo, error) {
	conn, _, err := c.openFile(ctx, kind, name, "", o)
	if err != nil {
		return FileInfo{}, err
	}
	defer c.part(conn)
	stop := c.bound(ctx, conn)
	defer stop()
	buf := make([]byte, wire.MaxData)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if conn.WriteFrame(wire.TypeStdin, buf[:n]) != nil {
				break // the answer says why
			}
		}
		if errors.Is(err, io.EOF) {
			conn.WriteFrame(wire.TypeEOF, nil) //nolint:errcheck // as above
			break
		}
		if err != nil {
			return FileInfo{}, err
		}
	}
	var info wire.FileInfo
	if err := receive(ctx, conn, &info); err != nil {
		return FileInfo{}, err
	}
	return checkFile(&info)
}

// ReadFile opens a regular file. The reader ends at the file's end, or with an
// error; ctx bounds it to its end. The caller closes it.
func (c *Client) ReadFile(ctx context.Context, name string, o FileOptions) (io.ReadCloser, FileInfo, error) {
	return c.receiveFile(ctx, wire.FileRead, name, o)
}

// Pack opens a tar stream of a file or tree, as [Client.ReadFile] opens a file.
func (c *Client) Pack(ctx context.Context, name string, o FileOptions) (io.ReadCloser, FileInfo, error) {
	o.Offset = 0
	return c.receiveFile(ctx, wire.FilePack, name, o)
}

func (c *Client) receiveFile(ctx context.Context, kind wire.FileKind, name string, o FileOptions) (io.ReadCloser, FileInfo, error) {
	conn, info, err := c.openFile(ctx, kind, name, "", o)
	if err != nil {
		return nil, FileInfo{}, err
	}
	r := &fileReader{c: c, ctx: ctx, conn: conn, next: o.Offset}
	r.stop = c.bound(ctx, conn)
	return r, info, nil
}

type fileReader struct {
	c    *Client
	ctx  context.Context //nolint:containedctx // it bounds the whole read
	conn *wire.Conn
	stop func() bool
	next int64
	data []byte
	err  error
}

// Read implements io.Reader.
func (r *fileReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 && r.err == nil {
		t, payload, err := r.conn.ReadFrame()
		switch {
		case err != nil:
			r.err = lost(r.ctx, err)
		case t == wire.TypeEnd:
			r.err = io.EOF
		case t == wire.TypeError:
			r.err = remoteError(payload)
		case t != wire.TypeOutput || wire.Offset(payload, 0) != r.next:
			r.err = fmt.Errorf("%w: %w: contents out of order", sandbox.ErrBridgeLost, wire.ErrProtocol)
		default:
			r.data = payload[wire.OutputHead:]
			r.next += int64(len(r.data))
		}
	}
	if len(r.data) == 0 {
		return 0, r.err
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

// Close implements io.Closer.
func (r *fileReader) Close() error {
	r.stop()
	r.c.part(r.conn)
	return nil
}

func (c *Client) fileCall(ctx context.Context, kind wire.FileKind, name, to string, o FileOptions) (FileInfo, error) {
	conn, info, err := c.openFile(ctx, kind, name, to, o)
	if err != nil {
		return FileInfo{}, err
	}
	c.part(conn)
	return info, nil
}

// openFile makes a request for a file and reads its first answer.
func (c *Client) openFile(ctx context.Context, kind wire.FileKind, name, to string, o FileOptions) (*wire.Conn, FileInfo, error) {
	if !path.IsAbs(name) || len(name) > unix.PathMax || len(to) > unix.PathMax || to != "" && !path.IsAbs(to) {
		return nil, FileInfo{}, fmt.Errorf("%w: %s %.64q: an absolute path is expected", sandbox.ErrInvalidSpec, kind, name)
	}
	conn, err := c.open(ctx, wire.OpFile, wire.File{
		Kind: kind, User: o.User, Path: []byte(name), To: []byte(to), Mode: uint32(o.Mode.Perm()), Offset: o.Offset, Limit: o.Limit, All: o.All,
		Follow: o.Follow, Owners: o.Owners, IfAbsent: o.IfAbsent, IfVersion: o.IfVersion,
	}, nil)
	if err != nil {
		return nil, FileInfo{}, err
	}
	stop := c.bound(ctx, conn)
	defer stop()
	var raw wire.FileInfo
	err = receive(ctx, conn, &raw)
	var info FileInfo
	if err == nil {
		info, err = checkFile(&raw)
	}
	if err != nil {
		c.part(conn)
		return nil, FileInfo{}, err
	}
	return conn, info, nil
}

// checkFile refuses a description that no file can have.
func checkFile(w *wire.FileInfo) (FileInfo, error) {
	name := string(w.Name)
	if strings.ContainsAny(strings.TrimPrefix(name, "/"), "/\x00") || name == ".." || len(name) > 255 || w.Size < 0 || len(w.Link) > unix.PathMax {
		return FileInfo{}, fmt.Errorf("%w: %w: description of a file", sandbox.ErrBridgeLost, wire.ErrProtocol)
	}
	return FileInfo{Name: name, Size: w.Size, Mode: filemode.Of(w.Mode), UID: w.UID, GID: w.GID, ModTime: w.ModTime, Link: string(w.Link), Version: checkVersion(w)}, nil
}

// maxVersion bounds a version: four numbers and what is between them.
const maxVersion = 4*16 + 3

// checkVersion takes a version over that can be an ETag. A bridge that says
// none, or nonsense, knows at least size and time.
func checkVersion(w *wire.FileInfo) string {
	v := w.Version
	switch {
	case w.Mode&unix.S_IFMT != unix.S_IFREG:
		return ""
	case v == "" || len(v) > maxVersion || strings.Trim(v, "0123456789abcdef-") != "":
		return fmt.Sprintf("%x-%x", w.Size, w.ModTime.UnixNano())
	}
	return v
}
