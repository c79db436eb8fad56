package treesync

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

const (
	// maxString bounds a name or link on the wire; none that exists is longer.
	maxString = 4096
	// window is what a stream makes its reader remember, at most.
	window = 4 << 20
	// chunkSize is how much of a file goes into one record.
	chunkSize = 128 << 10
)

// magic begins a stream that is not compressed.
const magic = "TBX1"

// emptyStream has nothing in it.
const emptyStream = magic + string(rune(recordEnd))

// zstdMagic begins a frame of zstd.
const zstdMagic = "\x28\xb5\x2f\xfd"

// A stream is records of one kind of byte each and what belongs to it. All of
// them end with recordEnd; without it a stream was cut.
const (
	recordEnd   = 'E'
	recordError = '!' // the sender gave up: reason, text

	recordEntry = 'e' // of an index

	recordDir  = 'D' // path, mode
	recordLink = 'L' // path, target
	recordFile = 'F' // path, mode, time, size; then chunks and holes
	recordData = 'C' // length, bytes
	recordHole = 'Z' // length
	recordDone = 'K' // the file is whole
	recordDrop = 'X' // the file is not to be kept
	recordMeta = 'M' // path, mode, time of what is there
	recordTold = 'W' // path, text: what could not be sent

	recordName = 'n' // of a list
)

// encoder writes records.
type encoder struct {
	w   *bufio.Writer
	zw  *zstd.Encoder // nil: not compressed
	buf []byte
}

// newEncoder returns an encoder to w; its close ends the stream.
func newEncoder(w io.Writer, plain bool) (*encoder, error) {
	if plain {
		e := &encoder{w: bufio.NewWriterSize(w, 2*chunkSize)}
		_, err := e.w.WriteString(magic)
		return e, err
	}
	zw, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, err
	}
	return &encoder{w: bufio.NewWriterSize(zw, 2*chunkSize), zw: zw}, nil
}

func (e *encoder) kind(k byte)   { e.buf = append(e.buf[:0], k) }
func (e *encoder) uint(n uint64) { e.buf = binary.AppendUvarint(e.buf, n) }
func (e *encoder) int(n int64)   { e.buf = binary.AppendVarint(e.buf, n) }
func (e *encoder) str(s string)  { e.uint(uint64(len(s))); e.buf = append(e.buf, s...) }
func (e *encoder) time(t time.Time) {
	e.int(t.Unix())
	e.uint(uint64(t.Nanosecond()))
}

func (e *encoder) flush() error {
	_, err := e.w.Write(e.buf)
	return err
}

func (e *encoder) end() error {
	e.kind(recordEnd)
	return e.flush()
}

// fail tells the reader why the stream ends here.
func (e *encoder) fail(err error) error {
	e.kind(recordError)
	e.str(reason.Of(err))
	text := err.Error()
	e.str(text[:min(len(text), maxString)])
	return e.flush()
}

// close hands on all that was written.
func (e *encoder) close() error {
	err := e.w.Flush()
	if e.zw != nil {
		err = errors.Join(err, e.zw.Close())
	}
	return err
}

// decoder reads records. Whoever wrote them is hostile.
type decoder struct {
	in  *source
	src *bufio.Reader
	r   *bufio.Reader
	zr  *zstd.Decoder
}

// newDecoder returns a decoder of a stream, compressed or not.
func newDecoder(r io.Reader) (*decoder, error) {
	in := &source{r: r}
	d := &decoder{in: in, src: bufio.NewReaderSize(in, chunkSize)}
	if err := d.segment(); err != nil {
		return nil, d.cut(err)
	}
	return d, nil
}

// segment begins one of the streams that follow each other. It returns
// [io.EOF] where there is none.
func (d *decoder) segment() error {
	head, err := d.src.Peek(len(magic))
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return io.EOF
	case string(head) == magic:
		d.src.Discard(len(magic)) //nolint:errcheck // it is in the buffer
		d.r = d.src
		return nil
	case string(head) != zstdMagic:
		return errNoStream
	}
	if d.zr == nil {
		d.zr, err = zstd.NewReader(d.src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(window), zstd.WithDecoderMaxMemory(1<<40))
		if err != nil {
			return err
		}
		d.r = bufio.NewReaderSize(d.zr, 2*chunkSize)
	}
	return nil
}

var errNoStream = errors.New("no stream of this kind")

func (d *decoder) close() {
	if d.zr != nil {
		d.zr.Close()
	}
}

// kind reads the first byte of a record.
func (d *decoder) kind() (byte, error) {
	k, err := d.r.ReadByte()
	return k, d.cut(err)
}

// more reports whether another segment follows a [recordEnd].
func (d *decoder) more() (bool, error) {
	if d.r != d.src {
		switch _, err := d.r.Peek(1); {
		case err == nil:
			return true, nil
		case !errors.Is(err, io.EOF):
			return false, d.cut(err)
		}
	}
	err := d.segment()
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	return err == nil, d.cut(err)
}

func (d *decoder) uint() (uint64, error) {
	n, err := binary.ReadUvarint(d.r)
	return n, d.cut(err)
}

func (d *decoder) size() (int64, error) {
	n, err := d.uint()
	if err == nil && n > 1<<62 {
		err = bad("", "an impossible size")
	}
	return int64(n), err
}

func (d *decoder) str() (string, error) {
	n, err := d.uint()
	if err != nil {
		return "", err
	}
	if n > maxString {
		return "", bad("", "a name that is too long")
	}
	b := make([]byte, n)
	_, err = io.ReadFull(d.r, b)
	return string(b), d.cut(err)
}

func (d *decoder) time() (time.Time, error) {
	sec, err := binary.ReadVarint(d.r)
	if err != nil {
		return time.Time{}, d.cut(err)
	}
	nsec, err := d.uint()
	if err != nil {
		return time.Time{}, err
	}
	if nsec >= 1e9 || sec > 1<<40 || sec < -(1<<40) {
		return time.Time{}, bad("", "an impossible time")
	}
	return time.Unix(sec, int64(nsec)), nil
}

func (d *decoder) mode() (fs.FileMode, error) {
	n, err := d.uint()
	if err == nil && n > 1<<32-1 {
		err = bad("", "an impossible mode")
	}
	return fs.FileMode(n), err
}

var reasons = reason.NewTable(volume.Reasons(), sandbox.Reasons())

// failure reads what the sender gave up for.
func (d *decoder) failure() error {
	name, err := d.str()
	if err != nil {
		return err
	}
	text, err := d.str()
	if err != nil {
		return err
	}
	if known := reasons[name]; known != nil {
		return fmt.Errorf("the other side: %.1000q: %w", text, known)
	}
	return fmt.Errorf("the other side: %.1000q", text)
}

func bad(name, why string) error {
	if name == "" {
		return fmt.Errorf("%w: %s", volume.ErrArchive, why)
	}
	return fmt.Errorf("%w: %.256q: %s", volume.ErrArchive, name, why)
}

// cut tells a stream that ends early, or is no stream, from one whose source
// fails.
func (d *decoder) cut(err error) error {
	switch {
	case err == nil:
		return nil
	case d.in.err != nil:
		return d.in.err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return cutShort(io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("%w: %w", volume.ErrArchive, err)
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut: %w", volume.ErrArchive, io.ErrUnexpectedEOF)
	}
	return err
}

// source remembers what its reader failed for.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.err = err
	}
	return n, err
}
