package tartree

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// entry is one entry of a tar stream, with what [tar.Reader] keeps for itself
// of a file with holes: where they are.
type entry struct {
	h    *tar.Header
	body io.Reader // the contents, holes as zeros
	raw  io.Reader // the stream behind the head, and behind a map: read this, or body, to the end
	size int64     // of the contents in the stream, with a map

	holes     bool   // runs is where the contents belong; the rest of the file are holes
	runs      []run  // in order
	sparseMap []byte // as it is in the stream, if the contents begin with it
}

// nextEntry reads the head of an entry. The entry has a reader of its own, so
// that what that reads before the contents is what describes this entry.
func nextEntry(r io.Reader) (*entry, error) {
	head := &recorder{r: r}
	tr := tar.NewReader(head)
	h, err := tr.Next()
	if err != nil {
		return nil, err
	}
	head.done = true
	e := &entry{h: h, body: tr, raw: r}
	return e, e.layout(head.data)
}

// end reads what fills the contents up.
func (e *entry) end() error {
	_, err := io.CopyN(io.Discard, e.raw, padding(e.size))
	return unexpected(err)
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

// layout finds how long the contents are in the stream, and where they belong.
// Head is what was read to know the entry.
func (e *entry) layout(head []byte) (err error) {
	h := e.h
	switch h.Typeflag {
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo:
		return nil
	}
	if e.size = h.Size; !isSparse(h) && h.Typeflag != tar.TypeXGlobalHeader {
		return nil
	}
	// The headers that only extend the one of the file come before it.
	for {
		var ok bool
		if len(head) < blockSize {
			return bad(h.Name, "a header is missing")
		}
		if e.size, ok = number(head[124:136]); !ok {
			return bad(h.Name, "an impossible size")
		}
		kind := head[156]
		if kind != tar.TypeXHeader && kind != tar.TypeGNULongName && kind != tar.TypeGNULongLink {
			break
		}
		head = head[blockSize:]
		head = head[min(e.size+padding(e.size), int64(len(head))):]
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if long, ok := h.PAXRecords["size"]; ok {
		if e.size, err = strconv.ParseInt(long, 10, 63); err != nil {
			return bad(h.Name, "an impossible size")
		}
	}
	if err := e.findRuns(head); err != nil {
		return err
	}
	if e.holes && total(e.runs) != e.size-int64(len(e.sparseMap)) {
		return bad(h.Name, "a map that is not of its contents")
	}
	return nil
}

// findRuns reads the map of a file with holes, in each of the forms that GNU
// tar has. own is the file's header and what follows it.
func (e *entry) findRuns(own []byte) (err error) {
	major, minor := e.h.PAXRecords[sparsePrefix+"major"], e.h.PAXRecords[sparsePrefix+"minor"]
	list := e.h.PAXRecords[sparsePrefix+"map"]
	switch {
	case e.h.Typeflag == tar.TypeGNUSparse:
		e.holes, e.runs = true, oldRuns(own)
	case major == "1" && minor == "0":
		e.holes, e.sparseMap = true, own[blockSize:]
		n, rest, _ := strings.Cut(string(e.sparseMap), "\n")
		count, err := strconv.Atoi(n)
		if err != nil {
			return bad(e.h.Name, "an impossible map")
		}
		if e.runs, err = runsOf(strings.SplitN(rest, "\n", 2*count+1), count); err != nil {
			return bad(e.h.Name, err.Error())
		}
	case major == "0" && (minor == "0" || minor == "1"), major == "" && minor == "" && list != "":
		e.holes = true
		numbers := strings.Split(list, ",")
		if e.runs, err = runsOf(numbers, len(numbers)/2); err != nil {
			return bad(e.h.Name, err.Error())
		}
	}
	return nil
}

// runsOf reads so many runs from a list of their places and lengths.
func runsOf(numbers []string, count int) ([]run, error) {
	if len(numbers) < 2*count {
		return nil, errors.New("a map that is cut")
	}
	runs := make([]run, count)
	for i := range runs {
		at, err := strconv.ParseInt(numbers[2*i], 10, 64)
		length, lerr := strconv.ParseInt(numbers[2*i+1], 10, 64)
		if err := errors.Join(err, lerr); err != nil {
			return nil, err
		}
		runs[i] = run{at, length}
	}
	return runs, nil
}

// oldRuns reads the map of the form without PAX records: four runs in the
// header itself, and as many in blocks behind it as those say.
func oldRuns(own []byte) (runs []run) {
	const runSize = 24
	for at, most := 386, 4; ; at, most = 0, 21 {
		for i := range most {
			field := own[at+i*runSize:][:runSize]
			start, ok := number(field[:12])
			length, also := number(field[12:])
			if field[0] == 0 || !ok || !also {
				break
			}
			runs = append(runs, run{start, length})
		}
		more := own[at+most*runSize]
		if own = own[blockSize:]; more == 0 || len(own) < blockSize {
			return runs
		}
	}
}

// number reads a field of a header: octal digits, or, if these do not reach, a
// binary number.
func number(field []byte) (int64, bool) {
	if last := len(field) - 8; field[0] == 0x80 {
		n := binary.BigEndian.Uint64(field[last:])
		return int64(n), n>>63 == 0 && strings.Trim(string(field[1:last]), "\x00") == ""
	}
	n, err := strconv.ParseInt(strings.Trim(string(field), " \x00"), 8, 63)
	return n, err == nil
}
