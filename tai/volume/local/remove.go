package local

import "github.com/taibox/taibox/internal/rmtree"

// removeTree deletes a file or tree without following a link. Nothing there is
// no error. What is too deep goes to the directory spare on the way, by a name
// with the prefix.
func removeTree(dir int, base string, spare int, prefix string) error {
	return rmtree.At(dir, base, spare, func() string { return newName(prefix) })
}
