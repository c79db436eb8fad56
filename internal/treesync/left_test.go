package treesync_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/internal/nofollow"
	"github.com/taibox/taibox/internal/treesync"
	"github.com/taibox/taibox/tai/volume"
)

// What a sync that was killed left half written goes with a later one.
func TestLeftFilesGo(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	plant(t, from, map[string]string{"d/f": "f"})
	left, used := nofollow.TempName(".taibox-sync-"), nofollow.TempName(".taibox-sync-")
	plant(t, to, map[string]string{"d/" + left: "half", "gone/" + left: "half", left: "->half", used: "half", ".taibox-sync-mine": "m"})
	f, err := os.Open(filepath.Join(to, used))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	nofollow.InUse(f)
	for _, c := range []struct {
		o     volume.SyncOptions
		after time.Duration
		want  []string
	}{
		{volume.SyncOptions{}, 0, []string{".taibox-sync-mine", "d", "d/" + left, "d/f", "gone", "gone/" + left, left, used}},
		{volume.SyncOptions{DryRun: true}, 100 * 365 * 24 * time.Hour, []string{".taibox-sync-mine", "d", "d/" + left, "d/f", "gone", "gone/" + left, left, used}},
		{volume.SyncOptions{Delete: true}, 100 * 365 * 24 * time.Hour, []string{".taibox-sync-mine", "d", "d/f", used}},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(c.after) // files have the time of the machine
			if _, err := treesync.Sync(t.Context(), treesync.Dir(from), treesync.Dir(to), c.o); err != nil {
				t.Fatal(err)
			}
		})
		var got []string
		for line := range strings.Lines(picture(t, to)) {
			got = append(got, strings.Trim(strings.Fields(line)[0], `"`))
		}
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("after %v: there is\n%q, want\n%q", c.after, got, c.want)
		}
	}
}

// pausing is a side that sends one file, and does something half way.
type pausing struct {
	volume.SyncEnd
	halfway func()
}

func (p *pausing) Fetch(_ context.Context, _ []string, w io.Writer) error {
	const size = 1 << 20
	half := stream().kind('F').str("big").uint(0o644).int(1).uint(0).uint(size).kind('C').uint(size)
	if _, err := w.Write(append(half, make([]byte, size/2)...)); err != nil { // it was read: the file is there
		return err
	}
	p.halfway()
	_, err := w.Write(append(record(make([]byte, size/2)).kind('K'), 'E'))
	return err
}

// However slow a sync is, another one does not take it for dead.
func TestHalfFilesInUseStay(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "big"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(100 * 365 * 24 * time.Hour) // files have the time of the machine
		end := &pausing{treesync.Dir(from), func() {
			if entries, err := os.ReadDir(to); len(entries) != 1 {
				t.Errorf("half way there are %v, %v", entries, err)
			}
			if _, err := treesync.Sync(t.Context(), treesync.Dir(filepath.Join(to, "none")), treesync.Dir(to), volume.SyncOptions{}); err != nil {
				t.Error(err)
			}
		}}
		if _, err := treesync.Sync(t.Context(), end, treesync.Dir(to), volume.SyncOptions{}); err != nil {
			t.Error(err)
		}
	})
	if info, err := os.Stat(filepath.Join(to, "big")); err != nil || info.Size() != 1<<20 {
		t.Errorf("%v, %v", info, err)
	}
}
