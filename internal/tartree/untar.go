package tartree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// UnpackTo makes the files of a tar stream on a stage, and finishes it.
func UnpackTo(r io.Reader, s *Stage) error {
	tail := &tailReader{r: r}
	tr := tar.NewReader(tail)
	body := readerFunc(func(p []byte) (int, error) {
		n, err := tr.Read(p)
		return n, tail.blame(err)
	})
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return tail.blame(err)
		}
		if err := stageEntry(s, h, body); err != nil {
			return err
		}
	}
	if err := tail.end(); err != nil {
		return err
	}
	return s.Finish()
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// blame tells whether the archive is at fault or its source.
func (t *tailReader) blame(err error) error {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, sandbox.ErrArchive):
		return err
	case t.err != nil:
		return t.err
	}
	return fmt.Errorf("%w: %w", sandbox.ErrArchive, err)
}

func stageEntry(s *Stage, h *tar.Header, r io.Reader) error {
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeDir:
		return s.Dir(h.Name, mode, h.ModTime)
	case tar.TypeSymlink:
		return s.Link(h.Name, h.Linkname, time.Time{})
	case tar.TypeLink:
		return s.HardLink(h.Name, h.Linkname)
	case tar.TypeReg, tar.TypeGNUSparse:
		if strings.HasSuffix(h.Name, "/") {
			return bad(h.Name, "a file with the name of a directory")
		}
		return s.File(h.Name, mode, h.ModTime, h.Size, r, isSparse(h))
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return bad(h.Name, "devices and pipes are refused")
	}
	return bad(h.Name, fmt.Sprintf("unknown type %q", h.Typeflag))
}

// isSparse reports whether a file was packed with its holes as holes.
func isSparse(h *tar.Header) bool {
	if h.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, sparsePrefix) {
			return true
		}
	}
	return false
}
