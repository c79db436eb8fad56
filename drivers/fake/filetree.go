package fake

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// member is one entry of an archive.
type member struct {
	*tar.Header
	data []byte
}

// readArchive reads a whole archive, so that a bad one changes nothing.
func readArchive(r io.Reader) ([]member, error) {
	raw, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if !bytes.HasSuffix(raw, make([]byte, 1024)) {
		return nil, fmt.Errorf("%w: it is cut", sandbox.ErrArchive)
	}
	tr := tar.NewReader(bytes.NewReader(raw))
	var all []member
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		var data []byte
		if err == nil {
			data, err = io.ReadAll(tr)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", sandbox.ErrArchive, err)
		}
		switch {
		case path.IsAbs(h.Name), slices.Contains(strings.Split(h.Name, "/"), ".."):
			return nil, fmt.Errorf("%w: %.256q leads out", sandbox.ErrArchive, h.Name)
		case !strings.ContainsRune("\x000512g", rune(h.Typeflag)):
			return nil, fmt.Errorf("%w: %.256q is of type %q", sandbox.ErrArchive, h.Name, h.Typeflag)
		}
		all = append(all, member{h, data})
	}
}

// CopyTo implements [sandbox.Files].
func (d *Driver) CopyTo(ctx context.Context, id, dir string, archive io.Reader, o sandbox.FileOptions) error {
	members, err := readArchive(archive)
	return d.change(ctx, "copy to", id, func(t tree) error {
		if err != nil {
			return err
		}
		at, err := t.resolveLocked(dir, true)
		if err != nil {
			return err
		}
		if !t.dirs[at] {
			if t.files[at] != nil {
				return syscall.ENOTDIR
			}
			return syscall.ENOENT
		}
		a, err := t.ownerLocked(o)
		if err != nil {
			return err
		}
		for _, m := range members {
			if err := t.memberLocked(at, m, a, o.Owners); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t tree) memberLocked(top string, m member, a attr, owners bool) error {
	name := path.Join(top, m.Name)
	a.mode, a.mod = m.FileInfo().Mode().Perm(), m.ModTime
	if owners {
		a.uid, a.gid = uint32(m.Uid), uint32(m.Gid)
	}
	for dir := path.Dir(name); strings.HasPrefix(dir, top) && dir != "/"; dir = path.Dir(dir) {
		if target, isLink := t.links[dir]; isLink {
			return fmt.Errorf("%w: %.256q would be written through the link to %.256q", sandbox.ErrArchive, m.Name, target)
		}
		if t.files[dir] == nil && !t.dirs[dir] {
			t.makeDirLocked(dir)
		}
	}
	switch m.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir:
		if t.dirs[name] {
			return nil
		}
		return t.mkdirLocked(name, a)
	case tar.TypeSymlink:
		if t.dirs[name] {
			return syscall.EISDIR
		}
		if err := t.parentLocked(name); err != nil {
			return err
		}
		t.dropLocked(name)
		t.links[name], t.attrs[name] = m.Linkname, a
		return nil
	case tar.TypeLink:
		old := path.Join(top, m.Linkname)
		data, ok := t.files[old]
		if !ok || slices.Contains(strings.Split(m.Linkname, "/"), "..") {
			return fmt.Errorf("%w: %.256q is a hard link to what is no file of the archive", sandbox.ErrArchive, m.Name)
		}
		return t.putLocked(name, data, t.attrs[old])
	}
	return t.putLocked(name, m.data, a)
}

// CopyFrom implements [sandbox.Files].
func (d *Driver) CopyFrom(ctx context.Context, id, name string, o sandbox.FileOptions) (io.ReadCloser, error) {
	out, err := onTree(ctx, d, "copy from", id, func(t tree) (*bytes.Buffer, error) {
		as := path.Base(name)
		if as == "/" || strings.HasSuffix(name, "/.") {
			as = "."
		}
		at, err := t.resolveLocked(name, o.Follow || as == "." || strings.HasSuffix(name, "/"))
		if err != nil {
			return nil, err
		}
		top, err := t.infoLocked(at)
		if err == nil && as == "." && !top.Mode.IsDir() {
			err = syscall.ENOTDIR
		}
		if err != nil {
			return nil, err
		}
		var out bytes.Buffer
		tw := tar.NewWriter(&out)
		err = t.packLocked(tw, at, as)
		for _, n := range t.belowLocked(at) {
			if err == nil {
				err = t.packLocked(tw, n, path.Join(as, strings.TrimPrefix(n, at)))
			}
		}
		return &out, errors.Join(err, tw.Close())
	})
	if err != nil {
		return nil, err
	}
	return io.NopCloser(out), nil
}

func (t tree) packLocked(tw *tar.Writer, name, as string) error {
	info, err := t.infoLocked(name)
	if err != nil {
		return err
	}
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: as, Linkname: info.Link, Size: info.Size, Mode: int64(info.Mode.Perm()),
		Uid: int(info.UID), Gid: int(info.GID), ModTime: info.ModTime.Truncate(time.Second),
	}
	switch info.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, as+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Size = tar.TypeSymlink, 0
	default:
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err = tw.Write(t.files[name])
	return err
}

var _ sandbox.Files = (*Driver)(nil)
