package treesync

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/taibox/taibox/tai/volume"
)

// fetchSmall reads the contents of .gitignore files of a side. Those that are not
// there, or are no files, are left out.
func fetchSmall(ctx context.Context, from volume.SyncEnd, names []string) (map[string][]byte, error) {
	f := &smallFiles{data: map[string][]byte{}, left: maxIgnoreFiles}
	for batch := range batches(names) {
		if err := f.fetch(ctx, from, batch); err != nil {
			return nil, err
		}
	}
	return f.data, nil
}

// smallFiles are files that are kept in memory.
type smallFiles struct {
	data map[string][]byte
	left int64 // bytes that there is room for
}

func (f *smallFiles) fetch(ctx context.Context, from volume.SyncEnd, names []string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	pr, pw := io.Pipe()
	fetched := make(chan error, 1)
	go func() {
		err := from.Fetch(ctx, names, pw)
		pw.CloseWithError(err)
		fetched <- err
	}()
	err := f.read(pr, &wanted{names: names})
	pr.CloseWithError(errGivenUp)
	if err != nil {
		stop(errGivenUp)
	}
	if ferr := <-fetched; ferr != nil && !errors.Is(ferr, errGivenUp) {
		return ferr
	}
	return err
}

func (f *smallFiles) read(r io.Reader, want *wanted) error {
	d, err := newDecoder(r)
	if err != nil {
		return err
	}
	defer d.close()
	for {
		k, err := d.kind()
		switch {
		case err != nil:
			return err
		case k == recordEnd:
			return nil
		case k == recordError:
			return d.failure()
		}
		name, err := d.str()
		if err != nil {
			return err
		}
		if k != recordTold && !want.has(name) {
			return bad(name, "nobody asked for it")
		}
		switch k {
		case recordTold, recordLink:
			_, err = d.str()
		case recordDir:
			_, err = d.mode()
		case recordFile:
			var data []byte
			var whole bool
			if data, whole, err = d.smallFile(f.left); whole && err == nil {
				f.data[name] = data
				f.left -= int64(len(data))
			}
		default:
			err = bad(name, "an unknown record")
		}
		if err != nil {
			return err
		}
	}
}

// smallFile reads a file of at most [maxIgnoreFile] bytes, if there is room.
func (d *decoder) smallFile(room int64) (data []byte, whole bool, err error) {
	if _, err = d.mode(); err != nil {
		return nil, false, err
	}
	if _, err = d.time(); err != nil {
		return nil, false, err
	}
	size, err := d.size()
	if err != nil {
		return nil, false, err
	}
	if size > maxIgnoreFile {
		return nil, false, bad("", "a .gitignore that is too large")
	}
	if size > room {
		return nil, false, fmt.Errorf("%w: there are .gitignore files of more than %d bytes", volume.ErrTooLarge, maxIgnoreFiles)
	}
	for {
		k, err := d.kind()
		switch {
		case err != nil:
			return nil, false, err
		case k == recordDone:
			return data, int64(len(data)) == size, nil
		case k == recordDrop:
			return nil, false, nil
		case k != recordData && k != recordHole:
			return nil, false, bad("", "an unknown record in a file")
		}
		n, err := d.size()
		if err != nil {
			return nil, false, err
		}
		if n == 0 || n > size-int64(len(data)) {
			return nil, false, bad("", "a file that is longer than was said")
		}
		part := make([]byte, n)
		if k == recordData {
			if _, err := io.ReadFull(d.r, part); err != nil {
				return nil, false, d.cut(err)
			}
		}
		data = append(data, part...)
	}
}
