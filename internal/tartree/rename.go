package tartree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
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

// entry copies one entry. It has a reader of its own, so that what that reads
// before the contents is what describes this entry.
func (n *renamer) entry() error {
	head := &recorder{r: n.r}
	tr := tar.NewReader(head)
	h, err := tr.Next()
	if err != nil {
		return err
	}
	head.done = true
	size, sparseMap, err := layout(h, head.data)
	if err != nil {
		return err
	}
	if h.Typeflag != tar.TypeXGlobalHeader {
		if err := n.rename(h); err != nil {
			return err
		}
		if sparseMap != nil {
			err = n.sparse(h, size, sparseMap)
		} else {
			err = n.plain(h, tr)
		}
		if err != nil {
			return err
		}
	}
	_, err = io.CopyN(io.Discard, n.r, padding(size))
	return unexpected(err)
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
func (n *renamer) sparse(h *tar.Header, size int64, sparseMap []byte) error {
	if err := n.tw.Flush(); err != nil {
		return err
	}
	for _, b := range [][]byte{sparseHead(h.Name, h, size), sparseMap} {
		if _, err := n.w.Write(b); err != nil {
			return err
		}
	}
	if _, err := io.CopyN(n.w, n.r, size-int64(len(sparseMap))); err != nil {
		return unexpected(err)
	}
	_, err := n.w.Write(make([]byte, padding(size)))
	return err
}

// unexpected is the error of a stream that ends within an entry.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxHead bounds what may describe one entry. A map of [maxRuns] is much shorter.
const maxHead = 4 << 20

// recorder keeps what is read through it until that is done.
type recorder struct {
	r    io.Reader
	data []byte
	done bool
}

func (c *recorder) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.done {
		return n, err
	}
	if c.data = append(c.data, p[:n]...); len(c.data) > maxHead {
		return 0, bad("", fmt.Sprintf("more than %d bytes that describe a file", maxHead))
	}
	return n, err
}

// layout tells how long the contents of an entry are in the stream and, if they
// begin with the map of a sparse file, what that is. Head is what was read to
// know the entry.
func layout(h *tar.Header, head []byte) (size int64, sparseMap []byte, err error) {
	switch h.Typeflag {
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		return 0, nil, nil
	}
	if !isSparse(h) && h.Typeflag != tar.TypeXGlobalHeader {
		return h.Size, nil, nil
	}
	// The headers that only extend the one of the file come before it.
	for {
		if len(head) < blockSize {
			return 0, nil, bad(h.Name, "a header is missing")
		}
		if size, err = strconv.ParseInt(strings.Trim(string(head[124:136]), " \x00"), 8, 63); err != nil {
			return 0, nil, bad(h.Name, "an impossible size")
		}
		kind := head[156]
		head = head[blockSize:]
		if kind != tar.TypeXHeader && kind != tar.TypeGNULongName && kind != tar.TypeGNULongLink {
			break
		}
		head = head[min(size+padding(size), int64(len(head))):]
	}
	if long, ok := h.PAXRecords["size"]; ok && h.Typeflag != tar.TypeXGlobalHeader {
		if size, err = strconv.ParseInt(long, 10, 63); err != nil {
			return 0, nil, bad(h.Name, "an impossible size")
		}
	}
	if h.PAXRecords[sparsePrefix+"major"] == "1" && h.PAXRecords[sparsePrefix+"minor"] == "0" {
		sparseMap = head
	}
	return size, sparseMap, nil
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
