package boxcopy

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/taibox/taibox/internal/tartree"
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
		err := tartree.Rename(pw, &counter{r: archive, moved: o.Moved}, packed, as)
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
