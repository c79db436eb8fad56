package treesync

import (
	"context"
	"errors"
	"io"

	"github.com/taibox/taibox/tai/volume"
)

// fetchSmall reads the contents of small files of a side. Those that are not
// there, or are no small files, are left out.
func fetchSmall(ctx context.Context, from volume.SyncEnd, names []string) (map[string][]byte, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	pr, pw := io.Pipe()
	fetched := make(chan error, 1)
	go func() {
		err := from.Fetch(ctx, names, pw)
		pw.CloseWithError(err)
		fetched <- err
	}()
	files, err := readSmall(pr, &wanted{names: names})
	pr.CloseWithError(errGivenUp)
	if err != nil {
		stop(errGivenUp)
	}
	if ferr := <-fetched; ferr != nil && !errors.Is(ferr, errGivenUp) {
		return nil, ferr
	}
	return files, err
}

func readSmall(r io.Reader, want *wanted) (map[string][]byte, error) {
	d, err := newDecoder(r)
	if err != nil {
		return nil, err
	}
	defer d.close()
	files := map[string][]byte{}
	for {
		k, err := d.kind()
		switch {
		case err != nil:
			return nil, err
		case k == recordEnd:
			return files, nil
		case k == recordError:
			return nil, d.failure()
		}
		name, err := d.str()
		if err != nil {
			return nil, err
		}
		if k != recordTold && !want.has(name) {
			return nil, bad(name, "nobody asked for it")
		}
		switch k {
		case recordTold, recordLink:
			_, err = d.str()
		case recordDir:
			_, err = d.mode()
		case recordFile:
			var data []byte
			var whole bool
			if data, whole, err = d.smallFile(); whole && err == nil {
				files[name] = data
			}
		default:
			err = bad(name, "an unknown record")
		}
		if err != nil {
			return nil, err
		}
	}
}

// smallFile reads a file of at most [maxIgnoreFile] bytes.
func (d *decoder) smallFile() (data []byte, whole bool, err error) {
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
