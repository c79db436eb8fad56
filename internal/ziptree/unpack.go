package ziptree

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/flate"

	"github.com/taibox/taibox/internal/tartree"
	"github.com/taibox/taibox/tai/sandbox"
)

// Limits bound what an archive may hold.
type Limits struct {
	Entries int64 // in its directory, which is read into memory
	Ratio   int64 // unpacked bytes for each packed one, beyond the first Free
	Free    int64
}

func bad(name, why string) error {
	if name == "" {
		return fmt.Errorf("%w: %s", sandbox.ErrArchive, why)
	}
	return fmt.Errorf("%w: %.256q: %s", sandbox.ErrArchive, name, why)
}

// Unpack makes the entries of a zip archive of size bytes on a stage, and
// finishes it.
func Unpack(r io.ReaderAt, size int64, s *tartree.Stage, l Limits) error {
	src := &source{r: r, left: l.Entries + slack, leftBytes: maxDirectory}
	zr, err := zip.NewReader(src, size)
	switch {
	case src.tooMany:
		return bad("", fmt.Sprintf("more than %d entries, or more than %d bytes that describe them", l.Entries, maxDirectory))
	case err != nil && !errors.Is(err, zip.ErrInsecurePath):
		return src.blame("", err)
	}
	src.open = true
	zr.RegisterDecompressor(zip.Deflate, inflate)
	if err := overlaps(zr.File, src); err != nil {
		return err
	}
	for _, f := range zr.File {
		if err := entry(f, s, src, l, size); err != nil {
			return err
		}
	}
	return s.Finish()
}

// maxDirectory bounds the directory of an archive. Its end is looked for in what
// may be part of it: slack is how many entries are counted twice. The stage
// counts again.
const (
	maxDirectory = 128 << 20
	slack        = 4096
)

// inflaters are kept for the next entry, for they are large.
var inflaters sync.Pool

type inflater struct{ io.ReadCloser }

func inflate(r io.Reader) io.ReadCloser {
	if old, ok := inflaters.Get().(io.ReadCloser); ok {
		if err := old.(flate.Resetter).Reset(r, nil); err == nil {
			return &inflater{old}
		}
	}
	return &inflater{flate.NewReader(r)}
}

func (i *inflater) Close() error {
	if i.ReadCloser == nil {
		return nil
	}
	err := i.ReadCloser.Close()
	inflaters.Put(i.ReadCloser)
	i.ReadCloser = nil
	return err
}

// overlaps refuses entries that share data: small archives that unpack to huge
// ones are made of such.
func overlaps(files []*zip.File, src *source) error {
	type span struct{ from, to int64 }
	spans := make([]span, 0, len(files))
	for _, f := range files {
		from, err := f.DataOffset()
		if err != nil {
			return src.blame(f.Name, err)
		}
		if f.CompressedSize64 > 1<<62 {
			return bad(f.Name, "an impossible size")
		}
		if f.CompressedSize64 > 0 {
			spans = append(spans, span{from, from + int64(f.CompressedSize64)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(spans); i++ {
		if spans[i].from < spans[i-1].to {
			return bad("", "entries that share their data")
		}
	}
	return nil
}

const encrypted = 1 << 0

func entry(f *zip.File, s *tartree.Stage, src *source, l Limits, packed int64) error {
	name := f.Name
	switch {
	case strings.ContainsRune(name, '\\'):
		return bad(name, "a backslash in a name")
	case f.Flags&encrypted != 0:
		return bad(name, "it is encrypted")
	case f.Method != zip.Store && f.Method != zip.Deflate:
		return bad(name, fmt.Sprintf("it is compressed by method %d; known are store and deflate", f.Method))
	}
	mode, mtime := mode(f), modified(f)
	dir := strings.HasSuffix(name, "/")
	switch {
	case dir || mode.IsDir():
		if f.UncompressedSize64 != 0 || mode.Type() != fs.ModeDir && mode.Type() != 0 {
			return bad(name, "a directory with contents")
		}
		return s.Dir(name, mode, mtime)
	case mode.Type() != 0 && mode.Type() != fs.ModeSymlink:
		return bad(name, "devices, pipes and sockets are refused")
	case f.UncompressedSize64 > 1<<62:
		return bad(name, "an impossible size")
	}
	r, err := f.Open()
	if err != nil {
		return src.blame(name, err)
	}
	defer r.Close()
	body := &body{r: r, name: name, src: src, s: s, max: l.Free, ratio: l.Ratio, packed: packed}
	if mode.Type() == fs.ModeSymlink {
		target, err := io.ReadAll(io.LimitReader(body, maxTarget+1))
		if err != nil {
			return err
		}
		return s.Link(name, string(target), mtime)
	}
	return s.File(name, mode, mtime, int64(f.UncompressedSize64), body, false)
}

// maxTarget is longer than where any link leads.
const maxTarget = 4096

// mode is the mode of an entry. Where its system has none, or nothing is set, it
// is what others would get.
func mode(f *zip.File) fs.FileMode {
	m := f.Mode()
	if creator := f.CreatorVersion >> 8; creator != unixCreator && creator != macCreator || m.Perm() == 0 && m.Type() == 0 && f.ExternalAttrs == 0 {
		if m.IsDir() {
			return fs.ModeDir | 0o755
		}
		return 0o644
	}
	return m
}

const (
	unixCreator = 3
	macCreator  = 19
)

func modified(f *zip.File) time.Time {
	if f.Modified.Year() < 1980 && f.ModifiedDate == 0 {
		return time.Time{}
	}
	return f.Modified
}

// body reads the contents of an entry within the ratio.
type body struct {
	r      io.Reader
	name   string
	src    *source
	s      *tartree.Stage
	n      int64
	max    int64
	ratio  int64
	packed int64
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.n += int64(n)
	if all := b.s.Bytes() + b.n; all > b.max && all/b.ratio > b.packed {
		return 0, bad(b.name, fmt.Sprintf("more than %d bytes for each packed one", b.ratio))
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return n, b.src.blame(b.name, err)
	}
	return n, err
}

// source counts the entries of the directory while it is read, and remembers
// what the file failed for.
type source struct {
	r       io.ReaderAt
	open    bool
	err     error
	tooMany bool

	left      int64
	leftBytes int64
	end       int64  // where the last read ended
	tail      []byte // and with what
}

var errTooMany = errors.New("too many entries")

var (
	entryMark = []byte("PK\x01\x02")
	end64Mark = []byte("PK\x06\x06")
)

// end64Len is how long the end of the directory of a large archive is.
const end64Len = 56

func (s *source) ReadAt(p []byte, at int64) (int, error) {
	n, err := s.r.ReadAt(p, at)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	if s.open {
		return n, err
	}
	// The reader makes room for as many entries as the end of the directory says.
	if len(p) == end64Len && bytes.HasPrefix(p, end64Mark) && binary.LittleEndian.Uint64(p[32:]) > uint64(s.left) {
		s.left = -1
	}
	// The directory is read from its beginning on; each entry bears the mark.
	seen := p[:n]
	if at == s.end {
		seen = append(bytes.Clone(s.tail), seen...)
	}
	s.left -= int64(bytes.Count(seen, entryMark))
	s.end, s.tail = at+int64(n), bytes.Clone(seen[max(0, len(seen)-len(entryMark)+1):])
	if s.leftBytes -= int64(n); s.left < 0 || s.leftBytes < 0 {
		s.tooMany = true
		return 0, errTooMany
	}
	return n, err
}

// blame tells whether the archive is at fault or its source.
func (s *source) blame(name string, err error) error {
	switch {
	case errors.Is(err, sandbox.ErrArchive):
		return err
	case s.err != nil:
		return s.err
	}
	return fmt.Errorf("%w: %.256q: %w", sandbox.ErrArchive, name, err)
}
