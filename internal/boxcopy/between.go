package boxcopy

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/taibox/taibox/tai/sandbox"
)

// Between copies a file or tree of one box into another. Links are copied as
// they are: what they lead to is the other box's.
func Between(ctx context.Context, from Box, source string, to Box, dest string, o Options) error {
	source, name, err := sourceName(source)
	if err != nil {
		return err
	}
	follow := o.Follow || name == "." || strings.HasSuffix(source, "/")
	info, err := from.Stat(ctx, source, follow)
	if err != nil {
		return err
	}
	packed, err := packedName(ctx, from, source, name, follow)
	if err != nil {
		return err
	}
	dir, as, err := place(ctx, to, dest, info.Mode.IsDir())
	if err != nil {
		return err
	}
	if as == "" {
		as = name
	}
	archive, err := from.CopyFrom(ctx, source, follow)
	if err != nil {
		return err
	}
	pr, pw := io.Pipe()
	renamed := make(chan error, 1)
	go func() {
		err := rename(pw, &counter{r: archive, moved: o.Moved}, packed, as)
		pw.CloseWithError(err)
		renamed <- err
	}()
	err = to.CopyTo(ctx, dir, pr)
	pr.CloseWithError(errGivenUp)
	if rerr := <-renamed; rerr != nil && !errors.Is(rerr, errGivenUp) {
		err = rerr
	}
	return errors.Join(err, archive.Close())
}

// rename gives the only tree of a tar stream another name.
func rename(w io.Writer, r io.Reader, from, to string) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// What follows the end, a stream that breaks off does not have.
			if _, err := io.Copy(io.Discard, r); err != nil {
				return err
			}
			return tw.Close()
		}
		if err != nil {
			return err
		}
		if h.Name, err = replaceRoot(h.Name, from, to); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeLink {
			if h.Linkname, err = replaceRoot(h.Linkname, from, to); err != nil {
				return err
			}
		}
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") || key == "path" || key == "linkpath" { // the reader has applied them
				delete(h.PAXRecords, key)
			}
		}
		h.Format = tar.FormatPAX
		if h.Typeflag == tar.TypeGNUSparse {
			h.Typeflag = tar.TypeReg
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("%w: %.256q: %w", sandbox.ErrArchive, h.Name, err)
		}
		if _, err := io.Copy(tw, tr); err != nil { //nolint:gosec // it is passed on, and whoever unpacks it bounds it
			return err
		}
	}
}

func replaceRoot(name, from, to string) (string, error) {
	clean := path.Clean(name)
	rest, below := strings.CutPrefix(clean, from+"/")
	switch {
	case clean == from:
		clean = to
	case below:
		clean = path.Join(to, rest)
	case from == "." && clean != ".." && !strings.HasPrefix(clean, "../") && !path.IsAbs(clean):
		clean = path.Join(to, clean)
	default:
		return "", fmt.Errorf("%w: %.256q: it is not below %q", sandbox.ErrArchive, name, from)
	}
	if strings.HasSuffix(name, "/") {
		clean += "/"
	}
	return clean, nil
}
