package treesync

import (
	"fmt"
	"io/fs"
	"iter"
	"path"
	"strings"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/volume"
)

// tempPrefix begins the names of files that are half written. They belong to
// no tree.
const tempPrefix = ".taibox-sync-"

// compare orders paths as an index does: a directory before what is in it, and
// that by name. It is the order of bytes with the slash before all others.
func compare(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		switch {
		case x == y:
			continue
		case x == '/':
			return -1
		case y == '/':
			return 1
		case x < y:
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}

// checkName refuses what is not the shortest form of a path below a tree.
func checkName(name string) error {
	if name == "" || len(name) > maxString-1 {
		return bad(name, "an impossible name")
	}
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "", part == ".", part == "..", len(part) > 255, strings.IndexByte(part, 0) >= 0:
			return bad(name, "an impossible name")
		case strings.HasPrefix(part, tempPrefix):
			return bad(name, "a name of our own")
		}
		depth++
	}
	if depth > nofollow.MaxDepth {
		return bad(name, fmt.Sprintf("more than %d directories deep", nofollow.MaxDepth))
	}
	return nil
}

// kinds are the bits that tell files, directories and links apart.
const kinds = fs.ModeType

// bits are what of a mode travels.
const bits = fs.ModePerm | fs.ModeSticky

// checked hands on the entries of an index that is hostile, if they are what an
// index may have, without those that are excluded.
func checked(entries iter.Seq2[volume.SyncEntry, error], o volume.IndexOptions) iter.Seq2[volume.SyncEntry, error] {
	return func(yield func(volume.SyncEntry, error) bool) {
		exclude, err := excluded(o)
		if err != nil {
			yield(volume.SyncEntry{}, err)
			return
		}
		last, skipped := "", ""
		var dirs []string // the directory that was listed last, and those above it
		for e, err := range entries {
			if err == nil {
				err = checkEntry(&e)
			}
			if err == nil && last != "" && compare(last, e.Path) >= 0 {
				err = bad(e.Path, "out of order")
			}
			if err == nil {
				parent := path.Dir(e.Path)
				for len(dirs) > 0 && dirs[len(dirs)-1] != parent {
					dirs = dirs[:len(dirs)-1]
				}
				if len(dirs) == 0 && parent != "." {
					err = bad(e.Path, "in no directory")
				}
			}
			if err != nil {
				yield(volume.SyncEntry{}, err)
				return
			}
			last = e.Path
			if e.Mode.IsDir() {
				dirs = append(dirs, e.Path)
			}
			if skipped != "" && strings.HasPrefix(e.Path, skipped+"/") {
				continue
			}
			if exclude.Ignored(e.Path, e.Mode.IsDir()) || o.GitIgnore && path.Base(e.Path) == ".git" {
				skipped = e.Path
				continue
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

func checkEntry(e *volume.SyncEntry) error {
	if err := checkName(e.Path); err != nil {
		return err
	}
	switch e.Mode & kinds {
	case 0:
		if e.Size < 0 || e.Link != "" {
			return bad(e.Path, "an impossible file")
		}
	case fs.ModeDir:
		e.Size, e.Link = 0, ""
	case fs.ModeSymlink:
		e.Size = 0
		if e.Link == "" || len(e.Link) > maxString-1 || strings.IndexByte(e.Link, 0) >= 0 {
			return bad(e.Path, "an impossible link")
		}
	default:
		return bad(e.Path, "no file, directory or link")
	}
	return nil
}

// leadsOut reports whether an entry is a link that could lead out of its tree.
func leadsOut(e *volume.SyncEntry) bool {
	return e.Mode&kinds == fs.ModeSymlink && !tartree.Inside(e.Path, e.Link)
}
