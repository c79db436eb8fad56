package tartree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Rename copies a tar stream and gives its only tree, from, the name to. What
// is not of that tree is refused. Files that [Pack] wrote with their holes as
// holes keep them.
func Rename(w io.Writer, r io.Reader, from, to string) error {
	n := &renamer{w: w, tw: tar.NewWriter(w), r: r, from: from, to: to}
	for {
		err := n.entry()
		if errors.Is(err, io.EOF) {
			// What follows the end, a stream that breaks off does not have.
			if _, err := io.Copy(io.Discard, r); err != nil {
				return err
			}
			return n.tw.Close()
		}
		if err != nil {
			return err
		}
	}
}

type renamer struct {
	w        io.Writer
	tw       *tar.Writer
	r        io.Reader
	from, to string
}

func (n *renamer) entry() error {
	e, err := nextEntry(n.r)
	if err != nil {
		return err
	}
	if e.h.Typeflag != tar.TypeXGlobalHeader {
		if err := n.rename(e.h); err != nil {
			return err
		}
		if e.sparseMap != nil {
			err = n.sparse(e)
		} else {
			err = n.plain(e.h, e.body)
		}
		if err != nil {
			return err
		}
	}
	return e.end()
}

func (n *renamer) rename(h *tar.Header) (err error) {
	if h.Name, err = replaceRoot(h.Name, n.from, n.to); err == nil && h.Typeflag == tar.TypeLink {
		h.Linkname, err = replaceRoot(h.Linkname, n.from, n.to)
	}
	return err
}

// plain writes an entry as the reader has it.
func (n *renamer) plain(h *tar.Header, r io.Reader) error {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, sparsePrefix) || key == "path" || key == "linkpath" { // the reader has applied them
			delete(h.PAXRecords, key)
		}
	}
	h.Format = tar.FormatPAX
	if h.Typeflag == tar.TypeGNUSparse {
		h.Typeflag = tar.TypeReg
	}
	if err := n.tw.WriteHeader(h); err != nil {
		return bad(h.Name, err.Error())
	}
	_, err := io.Copy(n.tw, r)
	return err
}

// sparse writes a file as it was packed: its map, and the data without the holes.
func (n *renamer) sparse(e *entry) error {
	if err := n.tw.Flush(); err != nil {
		return err
	}
	for _, b := range [][]byte{sparseHead(e.h.Name, e.h, e.size), e.sparseMap} {
		if _, err := n.w.Write(b); err != nil {
			return err
		}
	}
	if _, err := io.CopyN(n.w, e.raw, e.size-int64(len(e.sparseMap))); err != nil {
		return unexpected(err)
	}
	_, err := n.w.Write(make([]byte, padding(e.size)))
	return err
}

func replaceRoot(name, from, to string) (string, error) {
	clean := path.Clean(name)
	rest, below := strings.CutPrefix(clean, from+"/")
	switch {
	case clean == from:
		clean = to
	case below:
		clean = path.Join(to, rest)
	case from == "." && clean != ".." && !strings.HasPrefix(clean, "../") && !path.IsAbs(clean):
		clean = path.Join(to, clean)
	default:
		return "", bad(name, fmt.Sprintf("it is not below %q", from))
	}
	if strings.HasSuffix(name, "/") {
		clean += "/"
	}
	return clean, nil
}
