package treesync

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"iter"

	"github.com/taibox/taibox/tai/volume"
)

// ContentType is the media type of all that this file writes: records of binary
// fields, compressed by zstd. Names are bytes in them. The calls of a
// [volume.SyncEnd] travel like this:
//
//	Index   the options as the protocol likes; the answer is WriteIndex
//	Hashes  WriteNames; the answer is WriteNames of the hashes
//	Fetch   WriteNames; the answer is what Fetch writes, as it is
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
	return e.names(names)
}

func (e *encoder) names(names []string) error {
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

// ReadNames reads what [WriteNames] wrote: most names at the most, and maxBytes
// of them in all.
func ReadNames(r io.Reader, most, maxBytes int64) ([]string, error) {
	d, err := newDecoder(r)
	if err != nil {
		return nil, err
	}
	defer d.close()
	return d.names(most, maxBytes)
}

// Bounds of what one call may name.
const (
	MaxNames     = 4 << 20
	MaxNameBytes = 512 << 20
)

func (d *decoder) names(most, maxBytes int64) ([]string, error) {
	var names []string
	for {
		k, err := d.kind()
		switch {
		case err != nil:
			return nil, err
		case k == recordEnd:
			return names, nil
		case k == recordError:
			return nil, d.failure()
		case k != recordName:
			return nil, bad("", "no list of names")
		}
		name, err := d.str()
		if err != nil {
			return nil, err
		}
		if maxBytes -= int64(len(name)); maxBytes < 0 || int64(len(names)) >= most {
			return nil, bad("", "too many names")
		}
		names = append(names, name)
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
	if n > MaxNameBytes {
		return nil, nil, bad("", "too many names")
	}
	remove, err = ReadNames(io.LimitReader(body, int64(n)), MaxNames, MaxNameBytes)
	return remove, body, err
}
