package workspace

import (
	"io"
	"io/fs"
)

// FS is the files of a workspace. Paths are those of [fs.ValidPath]. All
// methods are safe for concurrent use. What [New] returns is an
// [fs.ReadLinkFS] too.
type FS interface {
	fs.FS
	fs.StatFS
	fs.ReadFileFS
	fs.ReadDirFS
	// Close ends the calls under way, and what was opened. Repeated calls do
	// nothing; others fail with [fs.ErrClosed].
	io.Closer

	// WriteFile writes a file, whole or not at all. Its directory must be
	// there. The mode of a file that is there stays.
	WriteFile(name string, data []byte, perm fs.FileMode) error
	// Remove removes a file, a link or an empty directory.
	Remove(name string) error
	// RemoveAll removes a file, or a directory with all that is in it; one
	// that is not there is no error.
	RemoveAll(name string) error
	// Rename moves a file or directory, over a file that is there.
	Rename(oldname, newname string) error
	// MkdirAll makes a directory and its missing parents.
	MkdirAll(name string, perm fs.FileMode) error
}
