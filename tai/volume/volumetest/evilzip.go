package volumetest

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/taibox/taibox/tai/volume"
)

// zipEntry is a file of a zip archive; its contents are its name if none are set.
type zipEntry struct {
	zip.FileHeader
	data string
}

func zipFile(name string) zipEntry { return zipEntry{FileHeader: zip.FileHeader{Name: name}} }

func zipMode(name string, mode fs.FileMode, data string) zipEntry {
	e := zipEntry{FileHeader: zip.FileHeader{Name: name}, data: data}
	e.SetMode(mode)
	return e
}

func zipOf(entries ...zipEntry) []byte {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, e := range entries {
		if e.data == "" && !strings.HasSuffix(e.Name, "/") {
			e.data = e.Name
		}
		w, err := zw.CreateHeader(&e.FileHeader)
		if err == nil && !strings.HasSuffix(e.Name, "/") {
			_, err = io.WriteString(w, e.data)
		}
		if err != nil {
			panic(err)
		}
	}
	if err := zw.Close(); err != nil {
		panic(err)
	}
	return buf.Bytes()
}

// zipRaw is an archive of one file whose headers say what they like.
func zipRaw(change func(h *zip.FileHeader), data string) []byte {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	h := &zip.FileHeader{Name: "x", Method: zip.Store, UncompressedSize64: uint64(len(data)), CompressedSize64: uint64(len(data))}
	change(h)
	w, err := zw.CreateRaw(h)
	if err == nil {
		_, err = io.WriteString(w, data)
	}
	if err == nil {
		err = zw.Close()
	}
	if err != nil {
		panic(err)
	}
	return buf.Bytes()
}

const (
	centralMark = "PK\x01\x02"
	endMark     = "PK\x05\x06"
)

// central changes the directory's first entry.
func central(data []byte, change func(entry []byte)) []byte {
	data = bytes.Clone(data)
	change(data[bytes.Index(data, []byte(centralMark)):])
	return data
}

// overlapping is an archive whose entries all have the same data.
func overlapping(n int) []byte {
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	w, err := zw.Create("kernel")
	if err == nil {
		_, err = io.CopyN(w, zeroReader{}, 1<<20)
	}
	if err == nil {
		err = zw.Close()
	}
	if err != nil {
		panic(err)
	}
	one := buf.Bytes()
	at := bytes.Index(one, []byte(centralMark))
	end := bytes.Index(one, []byte(endMark))
	entry := one[at:end]
	all := bytes.Clone(one[:at])
	for i := range n {
		e := bytes.Clone(entry)
		copy(e[46:], fmt.Sprintf("k%05d", i))
		all = append(all, e...)
	}
	tail := bytes.Clone(one[end:])
	binary.LittleEndian.PutUint16(tail[8:], uint16(n))
	binary.LittleEndian.PutUint16(tail[10:], uint16(n))
	binary.LittleEndian.PutUint32(tail[12:], uint32(len(all)-at))
	return append(all, tail...)
}

// lying64 is an archive that says it has more entries than there is memory for.
func lying64() []byte {
	data := zipOf(zipFile("x"))
	end := bytes.Index(data, []byte(endMark))
	dir := bytes.Index(data, []byte(centralMark))
	tail := bytes.Clone(data[end:])
	out := bytes.Clone(data[:end])
	at := len(out)
	e64 := make([]byte, 56)
	copy(e64, "PK\x06\x06")
	le := binary.LittleEndian
	le.PutUint64(e64[4:], 44)
	le.PutUint64(e64[24:], 1<<34)
	le.PutUint64(e64[32:], 1<<34)
	le.PutUint64(e64[40:], uint64(end-dir))
	le.PutUint64(e64[48:], uint64(dir))
	loc := make([]byte, 20)
	copy(loc, "PK\x06\x07")
	le.PutUint64(loc[8:], uint64(at))
	le.PutUint32(loc[16:], 1)
	le.PutUint16(tail[8:], 0xffff)
	le.PutUint16(tail[10:], 0xffff)
	le.PutUint32(tail[12:], 0xffffffff)
	le.PutUint32(tail[16:], 0xffffffff)
	out = append(append(out, e64...), loc...)
	return append(out, tail...)
}

// evilZips are zip archives that are refused.
func evilZips() []badArchive {
	whole := zipOf(zipFile("a"), zipFile("b"))
	all := []badArchive{
		{name: "up", data: zipOf(zipFile("ok"), zipFile("../evil"))},
		{name: "up-far", data: zipOf(zipFile("ok"), zipFile("../../../../../../tmp/evil"))},
		{name: "up-inside", data: zipOf(zipFile("ok"), zipFile("a/../../b"))},
		{name: "up-dir", data: zipOf(zipFile("ok"), zipFile("../canary/"))},
		{name: "absolute", data: zipOf(zipFile("ok"), zipFile("/tmp/evil"))},
		{name: "absolute-dir", data: zipOf(zipFile("ok"), zipFile("/"))},
		{name: "backslash", data: zipOf(zipFile("ok"), zipFile(`..\evil`))},
		{name: "backslash-inside", data: zipOf(zipFile("ok"), zipFile(`a\b`))},
		{name: "nul", data: zipOf(zipFile("ok"), zipFile("a\x00b"))},
		{name: "empty-name", data: zipOf(zipFile("ok"), zipEntry{data: "x"})},
		{name: "root-file", data: zipOf(zipFile("ok"), zipFile("."))},
		{name: "long-element", data: zipOf(zipFile("ok"), zipFile(strings.Repeat("n", 256)))},
		{name: "long-path", data: zipOf(zipFile("ok"), zipFile(strings.Repeat(strings.Repeat("d", 200)+"/", 30)+"x"))},
		{name: "deep", data: zipOf(zipFile("ok"), zipFile(strings.Repeat("d/", 100)+"x"))},
		{name: "link-absolute", data: zipOf(zipMode("l", fs.ModeSymlink|0o777, "/etc/passwd"))},
		{name: "link-up", data: zipOf(zipMode("l", fs.ModeSymlink|0o777, "../x"))},
		{name: "link-climbs", data: zipOf(zipMode("a/l", fs.ModeSymlink|0o777, "b/../../../x"))},
		{name: "link-long", data: zipOf(zipMode("l", fs.ModeSymlink|0o777, strings.Repeat("x/", 5000)))},
		{name: "link-nul", data: zipOf(zipMode("l", fs.ModeSymlink|0o777, "a\x00b"))},
		{name: "through-link", data: zipOf(zipFile("d/"), zipMode("l", fs.ModeSymlink|0o777, "d"), zipFile("l/evil"))},
		{name: "dir-over-link", data: zipOf(zipFile("d/"), zipMode("l", fs.ModeSymlink|0o777, "d"), zipFile("l/"))},
		{name: "through-file", data: zipOf(zipFile("f"), zipFile("f/x"))},
		{name: "device", data: zipOf(zipMode("x", fs.ModeDevice|0o644, "x"))},
		{name: "char", data: zipOf(zipMode("x", fs.ModeDevice|fs.ModeCharDevice|0o644, "x"))},
		{name: "pipe", data: zipOf(zipMode("x", fs.ModeNamedPipe|0o644, "x"))},
		{name: "socket", data: zipOf(zipMode("x", fs.ModeSocket|0o644, "x"))},
		{name: "twice", data: zipOf(zipFile("a"), zipFile("a"))},
		{name: "twice-spelt", data: zipOf(zipFile("a"), zipFile("./a"))},
		{name: "twice-dir", data: zipOf(zipFile("d/"), zipFile("d/"))},
		{name: "file-then-dir", data: zipOf(zipFile("a"), zipFile("a/"))},
		{name: "many", data: zipOf(zipFile("a"), zipFile("b"), zipFile("c")), o: volume.ArchiveOptions{MaxEntries: 2}},
		{name: "many-implied", data: zipOf(zipFile("a/b/c/d/e")), o: volume.ArchiveOptions{MaxEntries: 4}},
		{name: "bytes", data: zipOf(zipFile("aaaa"), zipFile("bbbb")), o: volume.ArchiveOptions{MaxBytes: 7}},
		{name: "overlapping", data: overlapping(500)},
		{name: "lying-count", data: lying64()},
		{name: "method", data: zipRaw(func(h *zip.FileHeader) { h.Method = 93 }, "x")},
		{name: "encrypted", data: zipRaw(func(h *zip.FileHeader) { h.Flags |= 1 }, "x")},
		{name: "size-too-small", data: zipRaw(func(h *zip.FileHeader) { h.UncompressedSize64 = 1 }, "longer")},
		{name: "size-too-large", data: zipRaw(func(h *zip.FileHeader) { h.UncompressedSize64 = 100 }, "x")},
		{name: "size-absurd", data: zipRaw(func(h *zip.FileHeader) { h.UncompressedSize64 = 1 << 63 }, "x")},
		{name: "packed-absurd", data: zipRaw(func(h *zip.FileHeader) { h.CompressedSize64 = 1 << 63 }, "x")},
		{name: "checksum", data: zipRaw(func(h *zip.FileHeader) { h.CRC32 = 12345 }, "x")},
		{name: "deflate-garbage", data: zipRaw(func(h *zip.FileHeader) { h.Method = zip.Deflate }, "\xff\xff\xff\xff")},
		{name: "offset-lies", data: central(whole, func(e []byte) { binary.LittleEndian.PutUint32(e[42:], 1<<30) })},
		{name: "dir-with-contents", data: bytes.ReplaceAll(zipRaw(func(h *zip.FileHeader) { h.Name = "dx" }, "y"), []byte("dx"), []byte("d/"))},
		{name: "empty", data: nil},
		{name: "garbage", data: bytes.Repeat([]byte("garbage "), 512)},
		{name: "tar", data: tarOf(fileEntry("x"))},
	}
	for _, n := range []int{10, 40, len(whole) / 2, len(whole) - 22, len(whole) - 1} {
		all = append(all, badArchive{name: fmt.Sprint("cut-", n), data: whole[:n]})
	}
	return all
}
