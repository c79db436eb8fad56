package bridge

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// maxZeros is how much may lie between the first data of a file and the first
// chunk: part of a block that was not given back whole.
const maxZeros = 1 << 20

// OpenLog reads the output of an exec that has ended from the file that was
// its [Files.Log]. info is the exec's record; where it tells of bytes that the
// file does not have, there is a gap. The stream owns f, even if there is an
// error.
//
// The file was written from inside the box and may hold anything.
func OpenLog(f *os.File, info sandbox.ExecInfo, opts sandbox.AttachOptions) (sandbox.Stream, error) {
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	var start int64
	if err == nil {
		start, err = firstData(f)
	}
	if err != nil {
		f.Close() //nolint:errcheck // the first error counts
		return nil, fmt.Errorf("open log of exec %s: %w", info.ID, err)
	}
	if opts.Since < -1 {
		f.Close() //nolint:errcheck // it was not read
		return nil, fmt.Errorf("open log of exec %s: offset %d: %w", info.ID, opts.Since, sandbox.ErrInvalidSpec)
	}
	l := &logStream{f: f, info: info, next: opts.Since, end: math.MaxInt64}
	if info.State == sandbox.ExecExited {
		l.end = info.Bytes
	}
	if opts.Since < 0 {
		l.next = l.end
	}
	l.in = bufio.NewReaderSize(io.NewSectionReader(f, start, st.Size()-start), wire.MaxData)
	if err := l.skipZeros(); err != nil {
		f.Close() //nolint:errcheck // the first error counts
		return nil, fmt.Errorf("open log of exec %s: %w", info.ID, err)
	}
	return l, nil
}

// firstData returns where the holes at the front of f end.
func firstData(f *os.File) (int64, error) {
	at, err := f.Seek(0, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, nil // nothing but a hole
	}
	return at, err
}

// logStream is the sandbox.Stream of a file.
type logStream struct {
	info sandbox.ExecInfo

	mu     sync.Mutex
	f      *os.File
	in     *bufio.Reader
	next   int64 // offset of the byte that Recv returns next
	end    int64 // offset after the last one
	source sandbox.Source
	at     int64  // offset of data
	data   []byte // of the chunk that was read last, as far as Recv may want it
	buf    [wire.MaxData]byte
	begun  bool // a chunk was found
	ended  bool // there are no more
	closed bool
}

func (l *logStream) skipZeros() error {
	for range maxZeros {
		b, err := l.in.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if b != 0 {
			return l.in.UnreadByte()
		}
	}
	return nil
}

// ID returns the exec's ID.
func (l *logStream) ID() string { return l.info.ID }

// Recv returns the next chunk, then io.EOF.
func (l *logStream) Recv() (sandbox.Chunk, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.next < l.end {
		last := l.at + int64(len(l.data))
		switch {
		case len(l.data) == 0 && !l.ended:
			if err := l.readLocked(last); err != nil {
				return sandbox.Chunk{}, fmt.Errorf("read log of exec %s: %w", l.info.ID, err)
			}
		case len(l.data) == 0 && l.end == math.MaxInt64:
			return sandbox.Chunk{}, io.EOF
		case len(l.data) == 0:
			return l.lostLocked(l.end), nil
		case last <= l.next:
			l.at, l.data = last, nil
		case l.at > l.next:
			return l.lostLocked(min(l.at, l.end)), nil
		default:
			data := l.data[l.next-l.at:]
			data = data[:min(int64(len(data)), l.end-l.next)]
			chunk := sandbox.Chunk{Source: l.source, Offset: l.next, Data: data}
			l.next = chunk.End()
			l.at, l.data = last, nil
			return chunk, nil
		}
	}
	if l.closed {
		return sandbox.Chunk{}, errStreamClosed
	}
	return sandbox.Chunk{}, io.EOF
}

// lostLocked moves over bytes that are not in the file.
func (l *logStream) lostLocked(to int64) sandbox.Chunk {
	gap := sandbox.Chunk{Source: sandbox.Gap, Offset: l.next, Lost: to - l.next}
	l.next = to
	return gap
}

// readLocked reads the next chunk, or finds that there is none: the file ends,
// in the midst of one perhaps, or goes on with what no bridge writes. All but
// the first must be at the offset want.
func (l *logStream) readLocked(want int64) error {
	var head [wire.LogHead]byte
	_, err := io.ReadFull(l.in, head[:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		l.ended = true
		return nil
	}
	if err != nil {
		return err
	}
	source, offset, n, ok := wire.ParseLogHead(head[:])
	if !ok || l.begun && offset != want {
		l.ended = true
		return nil
	}
	n, err = io.ReadFull(l.in, l.buf[:n])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		l.ended, err = true, nil
	}
	l.begun, l.source, l.at, l.data = true, sandbox.Source(source), offset, l.buf[:n]
	return err
}

// Ack does nothing: there is nothing to hold back.
func (l *logStream) Ack(int64) error { return nil }

func (l *logStream) over(verb string) error {
	return fmt.Errorf("%s exec %s: %w", verb, l.info.ID, sandbox.ErrExecEnded)
}

// Write fails: the exec has ended.
func (l *logStream) Write([]byte) (int, error) { return 0, l.over("write to") }

// CloseWrite fails: the exec has ended.
func (l *logStream) CloseWrite() error { return l.over("end the input of") }

// Resize fails: the exec has ended.
func (l *logStream) Resize(sandbox.Size) error { return l.over("resize") }

// Wait returns the record that the log was opened with.
func (l *logStream) Wait(context.Context) (sandbox.ExecInfo, error) { return l.info, nil }

// Hangup is Close.
func (l *logStream) Hangup() error { return l.Close() }

// Close closes the file.
func (l *logStream) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return l.f.Close()
}
