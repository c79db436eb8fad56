package tartree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/taibox/taibox/internal/holes"
)

const (
	// minHole is how much must be missing of a file to write it as a sparse one.
	minHole = 1 << 20
	// maxRuns bounds the pieces of a sparse file; readers bound their map.
	maxRuns = 10_000
)

// run is a piece of a file that is on the disk.
type run struct{ at, len int64 }

func total(runs []run) (n int64) {
	for _, r := range runs {
		n += r.len
	}
	return n
}

// dataRuns finds the pieces of a file. If there are too many, the last one
// reaches to the end, and whole is false.
func dataRuns(f *os.File, size int64) (runs []run, whole bool) {
	for at := int64(0); at < size; {
		start, stop := holes.Next(f, at, size)
		if start == stop { // a hole to the end
			return runs, true
		}
		if len(runs) == maxRuns-1 && stop < size {
			return append(runs, run{start, size - start}), false
		}
		runs = append(runs, run{start, stop - start})
		at = stop
	}
	return runs, true
}

const blockSize = 512

// sparse writes a file with holes in the form that GNU tar calls 1.0, which
// [tar.Writer] lacks and all readers know.
func (p *Packer) sparse(as string, info fs.FileInfo, f *os.File, runs []run) error {
	if err := p.entry(as); err != nil {
		return err
	}
	if err := p.tw.Flush(); err != nil {
		return err
	}
	if last := info.Size(); len(runs) == 0 || runs[len(runs)-1].at+runs[len(runs)-1].len < last {
		runs = append(runs, run{last, 0})
	}
	var m bytes.Buffer
	fmt.Fprintf(&m, "%d\n", len(runs))
	for _, r := range runs {
		fmt.Fprintf(&m, "%d\n%d\n", r.at, r.len)
	}
	pad(&m)
	size := int64(m.Len()) + total(runs)
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return fmt.Errorf("pack %s: %w", as, err)
	}
	for _, b := range [][]byte{sparseHead(as, h, size), m.Bytes()} {
		if _, err := p.w.Write(b); err != nil {
			return err
		}
	}
	for _, r := range runs {
		if err := p.contents(p.w, as, io.NewSectionReader(f, r.at, r.len), r.len); err != nil {
			return err
		}
	}
	_, err = p.w.Write(make([]byte, padding(size)))
	return err
}

// sparsePrefix begins the records that describe a sparse file.
const sparsePrefix = "GNU.sparse."

// sparseHead describes a sparse file, before its map. Size is that of the map
// and the data.
func sparseHead(as string, h *tar.Header, size int64) []byte {
	var records bytes.Buffer
	for _, kv := range [][2]string{
		{sparsePrefix + "major", "1"},
		{sparsePrefix + "minor", "0"},
		{sparsePrefix + "name", as},
		{sparsePrefix + "realsize", strconv.FormatInt(h.Size, 10)},
		{"size", strconv.FormatInt(size, 10)},
		{"uid", strconv.Itoa(h.Uid)},
		{"gid", strconv.Itoa(h.Gid)},
	} {
		paxRecord(&records, kv[0], kv[1])
	}
	n := int64(records.Len())
	pad(&records)
	base := path.Base(as)
	return slices.Concat(
		rawHeader("./PaxHeaders.0/"+base[:min(len(base), 64)], 'x', 0o644, n, 0), records.Bytes(),
		rawHeader("./GNUSparseFile.0/"+base[:min(len(base), 64)], tar.TypeReg, h.Mode&0o7777, min(size, 1<<33-1), h.ModTime.Unix()),
	)
}

// padding is what contents of a size are filled up with.
func padding(size int64) int64 { return -size & (blockSize - 1) }

func pad(b *bytes.Buffer) { b.Write(make([]byte, padding(int64(b.Len())))) }

// paxRecord writes "length key=value\n", where the length counts itself.
func paxRecord(b *bytes.Buffer, key, value string) {
	rest := len(key) + len(value) + len(" =\n")
	n := rest + len(strconv.Itoa(rest))
	n = rest + len(strconv.Itoa(n))
	fmt.Fprintf(b, "%d %s=%s\n", n, key, value)
}

// rawHeader is a header in the form of POSIX.
func rawHeader(name string, kind byte, mode, size, mtime int64) []byte {
	b := make([]byte, blockSize)
	octal := func(at, digits int, n int64) { copy(b[at:], fmt.Sprintf("%0*o", digits, n)) }
	copy(b[:100], name)
	octal(100, 7, mode)
	octal(108, 7, 0)
	octal(116, 7, 0)
	octal(124, 11, size)
	octal(136, 11, max(mtime, 0))
	copy(b[148:156], "        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	octal(148, 6, sum)
	b[154], b[155] = 0, ' '
	return b
}
