package treesync

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"

	"github.com/taibox/taibox/internal/holes"
	"github.com/taibox/taibox/internal/nofollow"
)

// blockSize is what of a file is hashed at once. The hash of a file is that of
// its blocks' hashes, so that a hole costs next to nothing. SHA-256 has
// instructions of its own on what servers run on, and a side that picks its
// contents cannot make two files look alike.
const blockSize = 1 << 20

// zeroBlock is worked out when it is needed: every command line links this.
var zeroBlock = sync.OnceValue(func() [sha256.Size]byte { return sha256.Sum256(make([]byte, blockSize)) })

// Hashes returns the files' hashes, see [volume.SyncEnd].
func (t *Tree) Hashes(ctx context.Context, names []string) ([]string, error) {
	hashes, err := t.hashes(ctx, names)
	return hashes, t.error(err)
}

func (t *Tree) hashes(ctx context.Context, names []string) ([]string, error) {
	hashes := make([]string, len(names))
	p, err := t.Open(ctx, false)
	if errors.Is(err, fs.ErrNotExist) {
		return hashes, nil
	}
	if err != nil {
		return nil, err
	}
	c := nofollow.NewCursor(p.Root)
	defer func() {
		c.Close()
		if p.Temp != nil {
			p.Temp.Close()
		}
	}()
	buf := make([]byte, blockSize)
	for i, name := range names {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		if err := checkName(name); err != nil {
			return nil, err
		}
		d, err := c.To(path.Dir(name), nil)
		if err == nil {
			hashes[i], err = hashFile(ctx, d, path.Base(name), buf)
		}
		if err != nil && !nofollow.Vanished(err) && !errors.Is(err, nofollow.ErrKind) {
			return nil, err
		}
	}
	return hashes, nil
}

func hashFile(ctx context.Context, d *nofollow.Dir, name string, buf []byte) (string, error) {
	f, st, err := d.OpenRegular(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	for at := int64(0); at < st.Size; {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		n := min(blockSize, st.Size-at)
		if n == blockSize && st.Blocks*512 < st.Size {
			next, err := nextData(f, at, st.Size)
			if err != nil {
				return "", err
			}
			if next-at >= blockSize {
				for ; next-at >= blockSize; at += blockSize {
					zeros := zeroBlock()
					sum.Write(zeros[:])
				}
				continue
			}
		}
		if _, err := io.ReadFull(f, buf[:n]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return "", nil // it shrinks: whatever it was, it is another
			}
			return "", err
		}
		block := sha256.Sum256(buf[:n])
		sum.Write(block[:])
		at += n
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// nextData returns where the next data of a file are that has none at an
// offset, or that offset, and leaves the file to be read there.
func nextData(f *os.File, at, size int64) (int64, error) {
	next, _ := holes.Next(f, at, size)
	next -= (next - at) % blockSize // what begins before the data is read as a whole
	_, err := f.Seek(next, io.SeekStart)
	return next, err
}
