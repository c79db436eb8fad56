package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	xzMagic   = []byte{0xfd, '7', 'z', 'X', 'Z'}
	bzipMagic = []byte("BZh")
)

// decompress undoes gzip or zstd, which it knows by their first bytes; what is
// neither passes unchanged. It never runs a program.
func decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(len(xzMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		return gzip.NewReader(b)
	case bytes.HasPrefix(head, zstdMagic):
		z, err := zstd.NewReader(b, zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, xzMagic), bytes.HasPrefix(head, bzipMagic):
		return nil, corrupt("xz and bzip2 are not known here: gzip and zstd are")
	}
	return io.NopCloser(b), nil
}

// meter counts what passes. A decoder may read on a goroutine of its own.
type meter struct {
	r io.Reader
	n atomic.Int64
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n.Add(int64(n))
	return n, err
}

// bounded fails once more has passed than limit allows at that time.
type bounded struct {
	r     io.Reader
	n     int64
	limit func() int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if b.n += int64(n); b.n > b.limit() {
		return n, corrupt("it expands to more than %d times its size", expandRatio)
	}
	return n, err
}

// expanded is how far a number of compressed bytes may grow.
func expanded(compressed int64) int64 {
	return max(expandFree, min(compressed, 1<<50)*expandRatio)
}

// pieceBytes is how much of a layer [squeezer] compresses as one: enough to
// make up, stored as it is, for what expandFree lets pass before.
const pieceBytes = 16 << 20

// squeezer compresses a layer as gzip, by no more than [expanded] takes: a piece
// is stored as it is where the one behind it might grow too far otherwise.
// Pieces are gzip streams of their own, which readers take as one.
type squeezer struct {
	out   *counter
	zip   *gzip.Writer // of the piece under way
	plain int64        // bytes of the pieces, this one counted whole
	left  int          // of the piece under way
}

func newSqueezer(out *counter) *squeezer {
	return &squeezer{out: out, zip: gzip.NewWriter(out), plain: pieceBytes, left: pieceBytes}
}

func (s *squeezer) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if s.left == 0 {
			if err := s.next(); err != nil {
				return n, err
			}
		}
		wrote, err := s.zip.Write(p[n:min(len(p), n+s.left)])
		n += wrote
		s.left -= wrote
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// next begins another piece.
func (s *squeezer) next() (err error) {
	if err := s.zip.Close(); err != nil {
		return err
	}
	s.plain += pieceBytes
	s.left = pieceBytes
	level := gzip.DefaultCompression
	if s.plain+pieceBytes > expanded(s.out.n) {
		level = gzip.NoCompression
	}
	s.zip, err = gzip.NewWriterLevel(s.out, level)
	return err
}

// Close ends the last piece.
func (s *squeezer) Close() error { return s.zip.Close() }

// zeros counts the zero bytes at the end of what has passed.
type zeros struct {
	r io.Reader
	n int64
}

func (z *zeros) Read(p []byte) (int, error) {
	n, err := z.r.Read(p)
	if tail := n - len(bytes.TrimRight(p[:n], "\x00")); tail == n {
		z.n += int64(n)
	} else {
		z.n = int64(tail)
	}
	return n, err
}

// source reads r on a goroutine of its own, so that a reader that blocks does
// not hold a caller back whose context has ended. stop ends it, and waits for
// it unless ctx has ended.
func source(ctx context.Context, r io.Reader) (_ io.Reader, stop func()) {
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.CopyBuffer(pw, struct{ io.Reader }{r}, make([]byte, 256<<10))
		if err != nil {
			err = &sourceError{err}
		}
		pw.CloseWithError(err)
	}()
	end := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	return pr, func() {
		end()
		pr.Close() //nolint:errcheck // a pipe's Close never fails
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}
