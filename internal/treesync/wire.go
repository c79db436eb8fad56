package treesync

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/taibox/taibox/tai/volume"
)

// ContentType is the media type of all that this file writes: records of binary
// fields, compressed by zstd. Names are bytes in them. The calls of a
// [volume.SyncEnd] travel like this:
//
//	Index   the options as the protocol likes; the answer is WriteIndex
//	Hashes  WriteNames in the order of an index; the answer is WriteNames of the hashes
//	Fetch   WriteNames in that order; the answer is what Fetch writes, as it is
//	Apply   WriteApply; the answer is an error or nothing
//
// An error after the first byte of an answer travels in the answer, and its
// reader returns it with its sentinel.
const ContentType = "application/vnd.taibox.sync"

// WriteIndex writes the entries of an index. An error among them is written
// for the reader, and returned.
func WriteIndex(w io.Writer, entries iter.Seq2[volume.SyncEntry, error]) (err error) {
	e, err := newEncoder(w, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	for entry, eerr := range entries {
		if eerr != nil {
			return errors.Join(eerr, e.fail(eerr))
		}
		e.kind(recordEntry)
		e.str(entry.Path)
		e.uint(uint64(entry.Mode))
		e.uint(uint64(max(entry.Size, 0)))
		e.time(entry.ModTime)
		e.str(entry.Link)
		if err := e.flush(); err != nil {
			return err
		}
	}
	return e.end()
}

// ReadIndex reads what [WriteIndex] wrote, in constant memory. It ends with an
// error unless the index is whole. [Sync] checks what the entries say.
func ReadIndex(r io.Reader) iter.Seq2[volume.SyncEntry, error] {
	return func(yield func(volume.SyncEntry, error) bool) {
		d, err := newDecoder(r)
		if err != nil {
			yield(volume.SyncEntry{}, err)
			return
		}
		defer d.close()
		for {
			entry, err := d.entry()
			if errors.Is(err, errEnd) {
				return
			}
			if !yield(entry, err) || err != nil {
				return
			}
		}
	}
}

// errEnd is the regular end of a list.
var errEnd = errors.New("the end")

func (d *decoder) entry() (e volume.SyncEntry, err error) {
	switch k, err := d.kind(); {
	case err != nil:
		return e, err
	case k == recordEnd:
		return e, errEnd
	case k == recordError:
		return e, d.failure()
	case k != recordEntry:
		return e, bad("", "no index")
	}
	if e.Path, err = d.str(); err != nil {
		return e, err
	}
	if e.Mode, err = d.mode(); err != nil {
		return e, err
	}
	if e.Size, err = d.size(); err != nil {
		return e, err
	}
	if e.ModTime, err = d.time(); err != nil {
		return e, err
	}
	e.Link, err = d.str()
	return e, err
}

// WriteNames writes a list of names, or of hashes.
func WriteNames(w io.Writer, names []string) (err error) {
	e, err := newEncoder(w, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	for _, n := range names {
		e.kind(recordName)
		e.str(n)
		if err := e.flush(); err != nil {
			return err
		}
	}
	return e.end()
}

// WriteError writes, in place of a list, why there is none.
func WriteError(w io.Writer, why error) (err error) {
	e, err := newEncoder(w, false)
	if err != nil {
		return err
	}
	return errors.Join(e.fail(why), e.close())
}

// Bounds of what one call may name. [Sync] makes as many calls as it takes.
const (
	MaxNames     = 10_000
	MaxNameBytes = 4 << 20
)

// ReadNames reads the names that [WriteNames] wrote, which are in the order of
// an index.
func ReadNames(r io.Reader) ([]string, error) {
	left, last := MaxNameBytes, ""
	return readList(r, MaxNames, func(name string) error {
		if err := checkName(name); err != nil {
			return err
		}
		if compare(last, name) >= 0 {
			return bad(name, "out of order")
		}
		if left -= len(name); left < 0 {
			return bad("", fmt.Sprintf("names of more than %d bytes", MaxNameBytes))
		}
		last = name
		return nil
	})
}

// ReadHashes reads the hashes of n files that [WriteNames] wrote.
func ReadHashes(r io.Reader, n int) ([]string, error) {
	hashes, err := readList(r, n, func(hash string) error {
		if len(hash) > hex.EncodedLen(sha256.Size) {
			return bad("", "an impossible hash")
		}
		return nil
	})
	if err == nil && len(hashes) != n {
		err = bad("", fmt.Sprintf("%d hashes of %d files", len(hashes), n))
	}
	return hashes, err
}

// readList reads a list of which each part is checked before the next is read.
func readList(r io.Reader, most int, check func(string) error) ([]string, error) {
	d, err := newDecoder(r)
	if err != nil {
		return nil, err
	}
	defer d.close()
	var list []string
	for {
		k, err := d.kind()
		switch {
		case err != nil:
			return nil, err
		case k == recordEnd:
			return list, nil
		case k == recordError:
			return nil, d.failure()
		case k != recordName:
			return nil, bad("", "no list of names")
		case len(list) == most:
			return nil, bad("", fmt.Sprintf("more than %d names", most))
		}
		s, err := d.str()
		if err == nil {
			err = check(s)
		}
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
}

// WriteApply writes the arguments of Apply as one body.
func WriteApply(w io.Writer, remove []string, r io.Reader) error {
	var names bytes.Buffer
	if err := WriteNames(&names, remove); err != nil {
		return err
	}
	head := binary.BigEndian.AppendUint64(nil, uint64(names.Len()))
	_, err := io.Copy(w, io.MultiReader(bytes.NewReader(head), &names, r))
	return err
}

// ReadApply reads what [WriteApply] wrote. The stream is read from body as
// Apply asks for it.
func ReadApply(body io.Reader) (remove []string, stream io.Reader, err error) {
	var head [8]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		return nil, nil, cutShort(err)
	}
	n := binary.BigEndian.Uint64(head[:])
	if n > 2*MaxNameBytes { // what cannot be compressed takes a little more
		return nil, nil, bad("", fmt.Sprintf("names of more than %d bytes", MaxNameBytes))
	}
	remove, err = ReadNames(io.LimitReader(body, int64(n)))
	return remove, body, err
}
