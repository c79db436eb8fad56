package treesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/taibox/taibox/tai/volume"
)

// maxLeftOut is how many links a result names.
const maxLeftOut = 100

// progressStep is how often progress is told at most.
const progressStep = 200 * time.Millisecond

// Sync makes to what from is. What a side has that can be in no tree ends it
// with [volume.ErrArchive]; links that lead out of the tree are left alone and
// named in the result. Without Delete, a directory with something in it is not
// replaced by a file. Memory grows with the number of names that differ.
func Sync(ctx context.Context, from, to volume.SyncEnd, o volume.SyncOptions) (volume.SyncResult, error) {
	s := &syncer{from: from, to: to, o: o}
	err := s.plan(ctx)
	if err == nil {
		err = s.compareHashes(ctx)
	}
	if err == nil && len(s.extra) > 0 {
		err = s.keepIgnored(ctx)
	}
	if err == nil && !o.DryRun {
		err = s.transfer(ctx)
	}
	if err == nil {
		s.res = s.goal()
	}
	s.progress(true)
	if err != nil {
		return s.res, fmt.Errorf("sync: %w", err)
	}
	return s.res, nil
}

// meta is an entry that differs by its mode or time alone.
type meta struct {
	name string
	mode fs.FileMode
	time time.Time
	size int64
}

type syncer struct {
	from, to volume.SyncEnd
	o        volume.SyncOptions

	send      []string
	sendBytes int64
	metas     []meta
	doubtful  []meta   // of the same size; their hashes tell
	retype    []string // to be removed, since something of another kind comes
	extra     []string // that only the destination has

	mu   sync.Mutex // of what follows: both sides tell of progress
	res  volume.SyncResult
	told time.Time
}

// goal is the result of what was planned.
func (s *syncer) goal() volume.SyncResult {
	r := s.res
	r.FilesSynced = int64(len(s.send) + len(s.metas))
	r.FilesRemoved = int64(len(s.extra) + len(s.retype))
	r.BytesSynced = s.sendBytes
	return r
}

// update changes the result and tells of it.
func (s *syncer) update(change func(*volume.SyncResult)) {
	s.mu.Lock()
	change(&s.res)
	s.mu.Unlock()
	s.progress(false)
}

func (s *syncer) progress(last bool) {
	if s.o.Progress == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); last || now.Sub(s.told) >= progressStep {
		s.told = now
		s.o.Progress(s.res)
	}
}

// plan merges the two indexes.
func (s *syncer) plan(ctx context.Context) error {
	nextFrom, stopFrom := iter.Pull2(checked(s.from.Index(ctx, s.o.IndexOptions), s.o.IndexOptions))
	defer stopFrom()
	nextTo, stopTo := iter.Pull2(checked(s.indexTo(ctx), s.o.IndexOptions))
	defer stopTo()
	// On the way the result is only this function's.
	src, err, haveSrc := nextFrom()
	if err != nil {
		return fmt.Errorf("index of the source: %w", err)
	}
	dst, err, haveDst := nextTo()
	if err != nil {
		return fmt.Errorf("index of the destination: %w", err)
	}
	for haveSrc || haveDst {
		var order int
		switch {
		case !haveSrc:
			order = 1
		case !haveDst:
			order = -1
		default:
			order = compare(src.Path, dst.Path)
		}
		switch {
		case order < 0:
			s.one(&src, nil)
		case order > 0 && s.o.Delete:
			s.extra = append(s.extra, dst.Path)
		case order == 0:
			s.one(&src, &dst)
		}
		if order <= 0 {
			if src, err, haveSrc = nextFrom(); err != nil {
				return fmt.Errorf("index of the source: %w", err)
			}
		}
		if order >= 0 {
			if dst, err, haveDst = nextTo(); err != nil {
				return fmt.Errorf("index of the destination: %w", err)
			}
		}
	}
	return nil
}

// indexTo is the index of the destination.
func (s *syncer) indexTo(ctx context.Context) iter.Seq2[volume.SyncEntry, error] {
	if dst, ok := s.to.(*Tree); ok {
		return dst.index(ctx, s.o.IndexOptions, !s.o.DryRun)
	}
	return s.to.Index(ctx, s.o.IndexOptions)
}

// one decides what becomes of an entry of the source.
func (s *syncer) one(src, dst *volume.SyncEntry) {
	s.update(func(r *volume.SyncResult) {
		r.FilesTotal++
		r.BytesTotal += src.Size
		if leadsOut(src) && len(r.LeftOut) < maxLeftOut {
			r.LeftOut = append(r.LeftOut, src.Path)
		}
	})
	if leadsOut(src) {
		return
	}
	m := meta{src.Path, src.Mode & bits, src.ModTime, src.Size}
	switch {
	case dst == nil:
		s.sendEntry(src)
	case src.Mode&kinds != dst.Mode&kinds:
		if src.Mode.IsDir() || dst.Mode.IsDir() {
			s.retype = append(s.retype, src.Path)
		}
		s.sendEntry(src)
	case src.Mode.IsDir():
		if src.Mode&bits != dst.Mode&bits {
			s.metas = append(s.metas, m)
		}
	case src.Mode&kinds == fs.ModeSymlink:
		if src.Link != dst.Link {
			s.sendEntry(src)
		}
	case src.Size != dst.Size:
		s.sendEntry(src)
	case !sameTime(src.ModTime, dst.ModTime), s.o.Checksum:
		if sameTime(src.ModTime, dst.ModTime) && src.Mode&bits == dst.Mode&bits {
			m.mode |= same
		}
		s.doubtful = append(s.doubtful, m)
	case src.Mode&bits != dst.Mode&bits:
		s.metas = append(s.metas, m)
	}
}

// same marks what needs nothing if the hashes agree.
const same = fs.ModeIrregular

func (s *syncer) sendEntry(e *volume.SyncEntry) {
	s.send = append(s.send, e.Path)
	s.sendBytes += e.Size
}

// compareHashes finds out which of the doubtful files differ.
func (s *syncer) compareHashes(ctx context.Context) error {
	names := make([]string, len(s.doubtful))
	for i, m := range s.doubtful {
		names[i] = m.name
	}
	var differ []string
	rest := s.doubtful
	for batch := range batches(names) {
		ours, theirs, err := s.hashBoth(ctx, batch)
		if err != nil {
			return err
		}
		for i, m := range rest[:len(batch)] {
			switch {
			case ours[i] != theirs[i] || ours[i] == "":
				differ = append(differ, m.name)
				s.sendBytes += m.size
			case m.mode&same == 0:
				s.metas = append(s.metas, m)
			}
		}
		rest = rest[len(batch):]
	}
	s.send = merge(s.send, differ)
	return nil
}

func (s *syncer) hashBoth(ctx context.Context, names []string) (ours, theirs []string, err error) {
	done := make(chan error, 1)
	go func() {
		var err error
		theirs, err = s.to.Hashes(ctx, names)
		done <- err
	}()
	ours, err = s.from.Hashes(ctx, names)
	if err = errors.Join(err, <-done); err != nil {
		return nil, nil, fmt.Errorf("compare files: %w", err)
	}
	if len(ours) != len(names) || len(theirs) != len(names) {
		return nil, nil, bad("", "hashes of other files than were asked for")
	}
	return ours, theirs, nil
}

// batches cuts a list of names into what one call may name.
func batches(names []string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for len(names) > 0 {
			n, size := 0, 0
			for n < min(len(names), MaxNames) && size+len(names[n]) <= MaxNameBytes {
				size += len(names[n])
				n++
			}
			if !yield(names[:n]) {
				return
			}
			names = names[n:]
		}
	}
}

// merge joins two sorted lists.
func merge(a, b []string) []string {
	if len(b) == 0 {
		return a
	}
	all := make([]string, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if compare(a[0], b[0]) < 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// transfer has the source's entries made at the destination.
func (s *syncer) transfer(ctx context.Context) error {
	remove, err := s.removeMany(ctx)
	if err != nil || len(remove)+len(s.send)+len(s.metas) == 0 {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	src, _ := s.from.(*Tree)
	dst, _ := s.to.(*Tree)
	pr, pw := io.Pipe()
	fetched := make(chan error, 1)
	go func() {
		err := s.sendAll(ctx, pw, src, dst)
		pw.CloseWithError(err)
		fetched <- err
	}()
	r := &counter{r: pr, s: s}
	if dst != nil {
		err = dst.apply(ctx, remove, r, s.asked(), s.count)
	} else {
		err = s.to.Apply(ctx, remove, r)
	}
	pr.CloseWithError(errGivenUp)
	if err != nil {
		stop(errGivenUp)
	}
	ferr := <-fetched
	if ferr != nil && !errors.Is(ferr, errGivenUp) {
		return ferr
	}
	return err
}

// removeMany has removed what one call may not name, the deepest first, and
// returns the rest.
func (s *syncer) removeMany(ctx context.Context) ([]string, error) {
	all := slices.Collect(batches(merge(s.retype, s.extra)))
	if len(all) == 0 {
		return nil, nil
	}
	for _, batch := range slices.Backward(all[1:]) {
		if err := s.to.Apply(ctx, batch, strings.NewReader(emptyStream)); err != nil {
			return nil, err
		}
	}
	return all[0], nil
}

// asked is what the destination is to get: the metas from here, all else from
// the source.
func (s *syncer) asked() *asked {
	a := &asked{entries: wanted{names: s.send}}
	for _, m := range s.metas {
		a.metas.names = append(a.metas.names, m.name)
	}
	return a
}

var errGivenUp = errors.New("nobody takes it")

// count tells of an entry that was made, or sent where that is not known.
func (s *syncer) count(bytes int64) {
	s.update(func(r *volume.SyncResult) {
		r.FilesSynced++
		r.BytesSynced += bytes
	})
}

// sendAll writes all that Apply is to make.
func (s *syncer) sendAll(ctx context.Context, w io.Writer, src, dst *Tree) error {
	plain := src != nil && dst != nil // nothing leaves this machine
	if len(s.metas) > 0 || len(s.send) == 0 {
		e, err := newEncoder(w, plain)
		if err != nil {
			return err
		}
		for _, m := range s.metas {
			e.kind(recordMeta)
			e.str(m.name)
			e.uint(uint64(m.mode & bits))
			e.time(m.time)
			if err := e.flush(); err != nil {
				return errors.Join(err, e.close())
			}
		}
		if err := errors.Join(e.end(), e.close()); err != nil {
			return err
		}
	}
	switch {
	case len(s.send) == 0:
		return nil
	case src == nil:
		for batch := range batches(s.send) {
			if err := s.from.Fetch(ctx, batch, w); err != nil {
				return err
			}
		}
		return nil
	case dst == nil:
		return src.fetch(ctx, s.send, w, false, s.count)
	}
	return src.fetch(ctx, s.send, w, true, nil)
}

// counter counts what is sent.
type counter struct {
	r io.Reader
	s *syncer
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.s.update(func(r *volume.SyncResult) { r.BytesSent += int64(n) })
	return n, err
}
