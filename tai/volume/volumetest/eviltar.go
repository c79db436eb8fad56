package volumetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

// badArchive is an archive that is refused.
type badArchive struct {
	name  string
	data  []byte
	o     volume.ArchiveOptions
	plain bool // its tar form alone is evil
}

func dirEntry(name string) tar.Header {
	return tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}
}
func fileEntry(name string) tar.Header { return tar.Header{Name: name} }
func linkEntry(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}

func hardEntry(name, to string) tar.Header {
	return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

// tarOf makes a tar stream of headers; the contents of a file are its name.
func tarOf(hs ...tar.Header) []byte {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range hs {
		data := []byte(nil)
		if h.Typeflag == 0 {
			h.Typeflag, data = tar.TypeReg, []byte(h.Name)
			h.Size = int64(len(data))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1e9, 0)
		}
		if err := tw.WriteHeader(&h); err != nil {
			panic(err)
		}
		if _, err := tw.Write(data); err != nil {
			panic(err)
		}
	}
	if err := tw.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// rawTar is one entry of a tar stream, with what no writer would write.
func rawTar(kind byte, name, link string, size int64, contents string) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00", size))
	copy(b[136:], fmt.Sprintf("%011o\x00", int64(1e9)))
	b[156] = kind
	copy(b[157:], link)
	copy(b[257:], "ustar\x0000")
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return slices.Concat(b, []byte(contents), make([]byte, (512-len(contents)%512)%512))
}

// rawPax is one entry whose header has PAX records.
func rawPax(kind byte, name string, size int64, contents string, records ...string) []byte {
	var all strings.Builder
	for _, r := range records {
		n := len(r) + 2
		for n != len(fmt.Sprint(n))+len(r)+2 {
			n = len(fmt.Sprint(n)) + len(r) + 2
		}
		fmt.Fprintf(&all, "%d %s\n", n, r)
	}
	return slices.Concat(rawTar('x', "pax", "", int64(all.Len()), all.String()), rawTar(kind, name, "", size, contents))
}

func ended(entries ...[]byte) []byte {
	return append(slices.Concat(entries...), make([]byte, 1024)...)
}

// evilTars are tar archives that are refused.
func evilTars() []badArchive {
	top := dirEntry("top/")
	whole := tarOf(top, fileEntry("top/f"), fileEntry("top/g"))
	ok := rawTar('0', "before", "", 1, "x")
	flipped := bytes.Clone(whole)
	flipped[512+3] ^= 0x40
	all := slices.Concat(evilNames(), evilLinks(), []badArchive{
		{name: "char", data: tarOf(top, tar.Header{Typeflag: tar.TypeChar, Name: "top/x", Devmajor: 1, Devminor: 3})},
		{name: "block", data: tarOf(top, tar.Header{Typeflag: tar.TypeBlock, Name: "top/x", Devmajor: 8})},
		{name: "pipe", data: tarOf(top, tar.Header{Typeflag: tar.TypeFifo, Name: "top/x"})},
		{name: "pipe-setuid", data: tarOf(top, tar.Header{Typeflag: tar.TypeFifo, Name: "top/x", Mode: 0o4777})},
		{name: "unknown-type", data: ended(ok, rawTar('Z', "x", "", 0, ""))},
		{name: "contiguous", data: ended(ok, rawTar('7', "../x", "", 0, ""))},
		{name: "twice", data: tarOf(fileEntry("a"), fileEntry("a"))},
		{name: "twice-spelt", data: tarOf(fileEntry("a"), fileEntry("./a"))},
		{name: "twice-dir", data: tarOf(top, fileEntry("top/f"), top)},
		{name: "file-then-dir", data: tarOf(fileEntry("a"), dirEntry("a/"))},
		{name: "dir-then-file", data: tarOf(top, fileEntry("top"))},
		{name: "file-then-link", data: tarOf(fileEntry("a"), linkEntry("a", "b"))},
		{name: "link-then-file", data: tarOf(linkEntry("a", "b"), fileEntry("a"))},
		{name: "implied-then-file", data: tarOf(fileEntry("a/b"), fileEntry("a"))},
		{name: "root-twice", data: tarOf(dirEntry("./"), dirEntry("."))},
		{name: "root-file", data: tarOf(tar.Header{Name: "."})},
		{name: "many", data: tarOf(manyFiles(11)...), o: volume.ArchiveOptions{MaxEntries: 10}},
		{name: "many-implied", data: tarOf(fileEntry("a/b/c/d/e"), fileEntry("f/g/h/i/j")), o: volume.ArchiveOptions{MaxEntries: 9}},
		{name: "many-links", data: tarOf(fileEntry("a"), hardEntry("b", "a"), hardEntry("c", "a")), o: volume.ArchiveOptions{MaxEntries: 2}},
		{name: "bytes", data: tarOf(fileEntry("aaaa"), fileEntry("bbbb")), o: volume.ArchiveOptions{MaxBytes: 7}},
		{name: "bytes-said", data: ended(ok, rawTar('0', "x", "", 1<<32, ""))[:2048], o: volume.ArchiveOptions{MaxBytes: 1 << 20}},
		{name: "deep", data: tarOf(fileEntry(strings.Repeat("d/", 100) + "x"))},
		{name: "deep-set", data: tarOf(fileEntry("a/b/c/d")), o: volume.ArchiveOptions{MaxDepth: 3}},
		{name: "sparse-many-bytes", data: ended(ok, sparse("x", 1<<50, 0, 1)), o: volume.ArchiveOptions{MaxBytes: 1 << 20}},
		{name: "sparse-lies", data: ended(ok, rawPax('0', "s", 512, "1\n1000\n1\n", "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=x", "GNU.sparse.realsize=10"))},
		{name: "sparse-overlaps", data: ended(ok, rawPax('0', "s", 514, "2\n0\n1\n0\n1\n"+strings.Repeat("\x00", 501)+"ab", "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=10"))},
		{name: "sparse-no-data", data: ended(ok, rawPax('0', "s", 512, "1\n0\n100\n", "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=100"))},
		{name: "sparse-map-endless", data: ended(ok, rawPax('0', "s", 512, strings.Repeat("1", 512), "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.realsize=100"))},
		{name: "pax-size-negative", data: ended(ok, rawPax('0', "x", 1, "x", "size=-1"))},
		{name: "pax-length-lies", data: ended(ok, rawTar('x', "pax", "", 20, "999 path=evil\nxxxxxx"), rawTar('0', "x", "", 1, "x"))},
		{name: "bad-checksum", data: flipped},
		{name: "empty", data: nil},
		{name: "garbage", data: bytes.Repeat([]byte("garbage "), 512)},
		{name: "no-end", data: slices.Concat(ok)},
		{name: "one-end-block", data: append(bytes.Clone(ok), make([]byte, 512)...)},
		{name: "end-with-more", data: append(bytes.Clone(whole), make([]byte, 2<<20)...)},
	})
	for _, n := range []int{100, 512, 600, 1024, 1100, 1536, 2048, len(whole) - 1024, len(whole) - 512} {
		all = append(all, badArchive{name: fmt.Sprint("cut-", n), data: whole[:n]}) // K05
	}
	return all
}

func evilNames() []badArchive {
	return []badArchive{
		{name: "up", data: tarOf(fileEntry("ok"), fileEntry("../evil"))},
		{name: "up-far", data: tarOf(fileEntry("ok"), fileEntry("../../../../../../../../tmp/evil"))},
		{name: "up-inside", data: tarOf(fileEntry("ok"), fileEntry("a/../../b"))},
		{name: "up-and-back", data: tarOf(fileEntry("ok"), fileEntry("a/../b"))},
		{name: "up-at-the-end", data: tarOf(fileEntry("ok"), fileEntry("a/.."))},
		{name: "dot-dot", data: tarOf(dirEntry("..")), plain: true},
		{name: "dot-dot-dir", data: tarOf(fileEntry("ok"), dirEntry("../canary/"))},
		{name: "absolute", data: tarOf(fileEntry("ok"), fileEntry("/tmp/evil"))},
		{name: "absolute-dir", data: tarOf(fileEntry("ok"), dirEntry("/"))},
		{name: "slashes", data: tarOf(fileEntry("ok"), fileEntry("//tmp//evil"))},
		{name: "empty-name", data: ended(rawTar('0', "", "", 1, "x"))},
		{name: "long-element", data: tarOf(fileEntry("ok"), fileEntry(strings.Repeat("n", 256)))},
		{name: "long-path", data: tarOf(fileEntry("ok"), fileEntry(strings.Repeat(strings.Repeat("d", 200)+"/", 30)+"x"))},
		{name: "pax-path", data: ended(rawPax('0', "innocent", 1, "x", "path=../../evil"))},
		{name: "pax-path-absolute", data: ended(rawPax('0', "innocent", 1, "x", "path=/tmp/evil"))},
		{name: "pax-path-nul", data: ended(rawPax('0', "innocent", 1, "x", "path=a\x00b"))},
		{name: "pax-sparse-name", data: ended(rawPax('0', "innocent", 512, "0\n", "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=../evil", "GNU.sparse.realsize=0"))},
		{name: "gnu-long-name", data: ended(rawTar('L', "././@LongLink", "", 9, "../evil/x"), rawTar('0', "x", "", 1, "x"))},
		{name: "file-with-slash", data: ended(rawTar('0', "ok", "", 1, "x"), rawPax('0', "x", 1, "x", "path=../d/"))},
	}
}

func evilLinks() []badArchive {
	top := dirEntry("top/")
	return []badArchive{
		{name: "link-absolute", data: tarOf(top, linkEntry("top/l", "/etc/passwd"))},
		{name: "link-up", data: tarOf(top, linkEntry("top/l", "../.."))},
		{name: "link-climbs", data: tarOf(top, linkEntry("top/l", "x/../../../y"))},
		{name: "link-empty", data: ended(rawTar('2', "l", "", 0, ""))},
		{name: "through-absolute", data: tarOf(linkEntry("l", "/tmp"), fileEntry("l/evil"))},
		{name: "through-up", data: tarOf(linkEntry("l", "../.."), fileEntry("l/evil"))},
		{name: "through-inside", data: tarOf(top, linkEntry("l", "top"), fileEntry("l/evil"))},
		{name: "through-late", data: tarOf(fileEntry("l/f"), linkEntry("l", "/tmp"))},
		{name: "through-two", data: tarOf(top, linkEntry("top/a", "."), linkEntry("top/b", "a/.."), fileEntry("top/b/evil"))},
		{name: "dir-over-link", data: tarOf(top, linkEntry("top/l", "."), dirEntry("top/l/"), fileEntry("top/l/evil"))},
		{name: "dir-through-link", data: tarOf(top, linkEntry("top/l", "."), dirEntry("top/l/d/"))},
		{name: "link-through-link", data: tarOf(top, linkEntry("top/l", "."), linkEntry("top/l/m", "x"))},
		{name: "through-file", data: tarOf(fileEntry("f"), fileEntry("f/x"))},
		{name: "hard-up", data: tarOf(top, hardEntry("top/h", "../canary/secret"))},
		{name: "hard-absolute", data: tarOf(top, hardEntry("top/h", "/etc/passwd"))},
		{name: "hard-late", data: tarOf(top, hardEntry("top/h", "top/later"), fileEntry("top/later"))},
		{name: "hard-link-link", data: tarOf(linkEntry("l", "x"), hardEntry("h", "l"))},
		{name: "hard-dir", data: tarOf(top, hardEntry("h", "top"))},
		{name: "hard-through", data: tarOf(top, fileEntry("top/f"), linkEntry("l", "top"), hardEntry("h", "l/f"))},
		{name: "hard-itself", data: tarOf(fileEntry("a"), hardEntry("a", "a"))},
		{name: "hard-twice", data: tarOf(fileEntry("a"), hardEntry("b", "a"), hardEntry("b", "a"))},
		{name: "hard-existing", data: tarOf(top, hardEntry("top/h", "there"))},
		{name: "link-to-long", data: tarOf(linkEntry("l", strings.Repeat("x/", 3000)))},
	}
}

func manyFiles(n int) (hs []tar.Header) {
	for i := range n {
		hs = append(hs, fileEntry(fmt.Sprint("f", i)))
	}
	return hs
}

// sparse is a file with one piece of data.
func sparse(name string, size, at, n int64) []byte {
	m := fmt.Sprintf("1\n%d\n%d\n", at, n)
	m += strings.Repeat("\x00", 512-len(m))
	return rawPax('0', "s", 512+n, m+strings.Repeat("x", int(n)), "GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name="+name, fmt.Sprint("GNU.sparse.realsize=", size))
}

func gzipped(data []byte) []byte {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	if _, err := zw.Write(data); err != nil {
		panic(err)
	}
	if err := zw.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// zeroes is a compressed file of nothing but zeros.
func zeroes(n int64) []byte {
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	if _, err := io.CopyN(zw, zeroReader{}, n); err != nil {
		panic(err)
	}
	if err := zw.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
