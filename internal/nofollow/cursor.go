package nofollow

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxDepth bounds how deep a [Cursor] goes: each directory on the way is open.
const MaxDepth = 256

// Cursor walks a tree.
type Cursor struct {
	names []string
	dirs  []*Dir // the root, and one for each name
}

// NewCursor returns a cursor at a directory, which it closes in the end.
func NewCursor(root *Dir) *Cursor { return &Cursor{dirs: []*Dir{root}} }

// Close closes all directories.
func (c *Cursor) Close() {
	for _, d := range c.dirs {
		d.Close()
	}
	c.names, c.dirs = nil, nil
}

// To goes to a directory, by the shortest form of its name below the root, and
// "." for that. A directory that is missing is made if make says how: it gets
// the name and the directory to make it in.
func (c *Cursor) To(name string, create func(in *Dir, path, name string) error) (*Dir, error) {
	var parts []string
	if name != "." {
		parts = strings.Split(name, "/")
	}
	if len(parts) > MaxDepth {
		return nil, wrap("open", name, unix.ENAMETOOLONG)
	}
	same := 0
	for same < len(parts) && same < len(c.names) && parts[same] == c.names[same] {
		same++
	}
	c.back(same)
	for i, part := range parts[same:] {
		in := c.dirs[len(c.dirs)-1]
		d, err := in.Open(part)
		if errors.Is(err, fs.ErrNotExist) && create != nil {
			if err = create(in, strings.Join(parts[:same+i+1], "/"), part); err == nil {
				d, err = in.Open(part)
			}
		}
		if err != nil {
			if pe, ok := errors.AsType[*fs.PathError](err); ok {
				err = pe.Err
			}
			return nil, wrap("open", strings.Join(parts[:same+i+1], "/"), err)
		}
		c.names, c.dirs = append(c.names, part), append(c.dirs, d)
	}
	return c.dirs[len(c.dirs)-1], nil
}

// back leaves all but the first n directories below the root.
func (c *Cursor) back(n int) {
	for _, d := range c.dirs[n+1:] {
		d.Close()
	}
	c.names, c.dirs = c.names[:n], c.dirs[:n+1]
}

// Forget leaves a directory and what is below it, if the cursor is there: it
// is about to go.
func (c *Cursor) Forget(name string) {
	parts := strings.Split(name, "/")
	if len(parts) > len(c.names) {
		return
	}
	for i, part := range parts {
		if c.names[i] != part {
			return
		}
	}
	c.back(len(parts) - 1)
}
