package volumetest

import (
	"context"
	"os"

	"golang.org/x/sys/unix"
)

// swapLoop has a directory, and a link out called evil beside it, change places
// as quickly as it can. What was removed meanwhile it makes again.
func swapLoop(ctx context.Context, dir *os.File, name, out string) {
	fd := int(dir.Fd())
	for ctx.Err() == nil {
		if unix.Renameat2(fd, name, fd, "evil", unix.RENAME_EXCHANGE) != nil {
			unix.Mkdirat(fd, name, 0o755)
			unix.Symlinkat(out, fd, "evil")
		}
	}
}
