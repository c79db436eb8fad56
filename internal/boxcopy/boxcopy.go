package boxcopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/sandbox"
)

// Box is the files of one box, as one of its users, or those of a workspace.
type Box interface {
	Stat(ctx context.Context, path string, follow bool) (sandbox.FileInfo, error)
	CopyTo(ctx context.Context, dir string, archive io.Reader) error
	CopyFrom(ctx context.Context, path string, follow bool) (io.ReadCloser, error)
}

// Namer is implemented by a [Box] whose CopyFrom does not name what it packs
// after the path that it is asked for.
type Namer interface {
	PackedName(ctx context.Context, path string, follow bool) (string, error)
}

// Options are the settings of a copy.
type Options struct {
	// Follow copies what a source that is a link leads to.
	Follow bool
	// Moved is told how many bytes of the tar stream went by, in all.
	Moved func(total int64)
}

// maxLinks bounds the links that a destination is reached by.
const maxLinks = 16

// To copies a file or tree of this machine into a box.
func To(ctx context.Context, b Box, source, dest string, o Options) error {
	isDir, err := sourceIsDir(source, o.Follow)
	if err != nil {
		return err
	}
	contents := filepath.Base(source) == "." || strings.HasSuffix(source, "/.")
	from, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	if o.Follow || strings.HasSuffix(source, "/") || contents {
		if from, err = filepath.EvalSymlinks(from); err != nil {
			return err
		}
	}
	name := filepath.Base(from)
	if o.Follow { // a link's own name, with what it leads to
		name = filepath.Base(filepath.Clean(source))
	}
	dir, as, err := place(ctx, b, dest, isDir)
	if err != nil {
		return err
	}
	switch {
	case as != "":
	case contents, name == "/":
		as = "."
	default:
		as = name
	}
	pr, pw := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tartree.Pack(pw, from, as)
		pw.CloseWithError(err)
		packed <- err
	}()
	err = b.CopyTo(ctx, dir, &counter{r: pr, moved: o.Moved})
	pr.CloseWithError(errGivenUp)
	if perr := <-packed; perr != nil && !errors.Is(perr, errGivenUp) {
		return perr
	}
	return err
}

var errGivenUp = errors.New("nobody takes it")

func sourceIsDir(source string, follow bool) (bool, error) {
	look := os.Lstat
	if follow || strings.HasSuffix(source, "/") {
		look = os.Stat
	}
	info, err := look(source)
	if err != nil {
		return false, err
	}
	return info.IsDir(), nil
}

// place says into which directory of the box a copy goes, and under which
// name; no name means the source's own.
func place(ctx context.Context, b Box, dest string, isDir bool) (dir, as string, err error) {
	if !path.IsAbs(dest) {
		dest = "/" + dest
	}
	for range maxLinks {
		info, err := b.Stat(ctx, dest, strings.HasSuffix(dest, "/"))
		switch {
		case errors.Is(err, sandbox.ErrFileNotFound):
			if strings.HasSuffix(dest, "/") && !isDir {
				return "", "", fmt.Errorf("directory %s: %w", dest, sandbox.ErrFileNotFound)
			}
			dest = strings.TrimRight(dest, "/")
			return path.Dir(dest), path.Base(dest), nil
		case err != nil:
			return "", "", err
		case info.Mode.IsDir():
			return dest, "", nil
		case info.Mode&fs.ModeSymlink != 0:
			target := info.Link
			if !path.IsAbs(target) {
				target = path.Dir(dest) + "/" + target
			}
			dest = target
		case isDir, strings.HasSuffix(dest, "/"):
			return "", "", fmt.Errorf("%w: %s is no directory", sandbox.ErrFileKind, dest)
		default:
			return path.Dir(dest), path.Base(dest), nil
		}
	}
	return "", "", fmt.Errorf("%w: %s leads through too many links", sandbox.ErrFileKind, dest)
}

// LeftOutError tells which links of a box were not made on this machine. All
// else was copied.
type LeftOutError struct {
	Links []string // "name -> target"
	Count int      // of all; Links has the first ones
}

// Error names the links.
func (e *LeftOutError) Error() string {
	text := strings.Join(e.Links, ", ")
	if e.Count > len(e.Links) {
		text += fmt.Sprintf(" and %d more", e.Count-len(e.Links))
	}
	return "left out, since they lead out of what was copied: " + text
}

const maxTold = 10 // links that an error names

// From copies a file or tree of a box to this machine.
func From(ctx context.Context, b Box, source, dest string, o Options) error {
	source, name, err := sourceName(source)
	if err != nil {
		return err
	}
	follow := o.Follow || name == "." || strings.HasSuffix(source, "/")
	info, err := b.Stat(ctx, source, follow)
	if err != nil {
		return err
	}
	packed, err := packedName(ctx, b, source, name, follow)
	if err != nil {
		return err
	}
	dir, as, err := target(dest, info.Mode.IsDir())
	if err != nil {
		return err
	}
	if as == "" {
		as = name
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	archive, err := b.CopyFrom(ctx, source, follow)
	if err != nil {
		return err
	}
	left := &LeftOutError{}
	err = tartree.Unpack(ctx, &counter{r: archive, moved: o.Moved}, root, tartree.Options{
		From: packed, To: as, Outside: true,
		LeftOut: func(name, target string) {
			if left.Count++; left.Count <= maxTold {
				left.Links = append(left.Links, fmt.Sprintf("%q -> %q", name, target))
			}
		},
	})
	err = errors.Join(err, archive.Close())
	if err == nil && left.Count > 0 {
		return left
	}
	return err
}

// sourceName makes the path of a source absolute, and says what is copied of
// it: a name, or "." for what is in it.
func sourceName(source string) (at, name string, err error) {
	if !path.IsAbs(source) {
		source = "/" + source
	}
	name = path.Base(source)
	if name == "/" || strings.HasSuffix(source, "/.") {
		name = "."
	}
	if name == ".." {
		return "", "", fmt.Errorf("%w: %s: the last element of a source is a name, or a single dot", sandbox.ErrInvalidSpec, source)
	}
	return source, name, nil
}

// packedName is the name that the stream of CopyFrom begins with.
func packedName(ctx context.Context, b Box, source, name string, follow bool) (string, error) {
	if n, ok := b.(Namer); ok {
		return n.PackedName(ctx, source, follow)
	}
	return name, nil
}

// target says into which directory of this machine a copy goes, and under
// which name.
func target(dest string, isDir bool) (dir, as string, err error) {
	info, err := os.Stat(dest)
	slash := strings.HasSuffix(dest, "/")
	switch {
	case err == nil && info.IsDir():
		return dest, "", nil
	case err == nil && (isDir || slash):
		return "", "", fmt.Errorf("%w: %s is no directory", sandbox.ErrInvalidSpec, dest)
	case err == nil && !info.Mode().IsRegular():
		return "", "", fmt.Errorf("%w: %s is no regular file", sandbox.ErrInvalidSpec, dest)
	case errors.Is(err, fs.ErrNotExist) && slash && !isDir:
		return "", "", err
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", "", err
	}
	clean := filepath.Clean(dest)
	return filepath.Dir(clean), filepath.Base(clean), nil
}

// counter counts what is read.
type counter struct {
	r     io.Reader
	total int64
	moved func(int64)
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.total += int64(n)
	if c.moved != nil {
		c.moved(c.total)
	}
	return n, err
}
