package treesync

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/taibox/taibox/internal/gitignore"
	"github.com/taibox/taibox/tai/volume"
)

// Bounds of .gitignore files.
const (
	maxIgnoreFile  = 1 << 20  // bytes of one
	maxIgnoreFiles = 64 << 20 // of all that are fetched from another side
)

// excluded returns the matcher of what a caller excludes.
func excluded(o volume.IndexOptions) (*gitignore.Matcher, error) {
	m, err := gitignore.New(o.Exclude)
	if err != nil {
		return nil, fmt.Errorf("%w: what is to be excluded: %w", volume.ErrTooLarge, err)
	}
	return m, nil
}

// addIgnore adds the patterns of a directory's own .gitignore.
func addIgnore(up *gitignore.Matcher, dir string, data []byte) (*gitignore.Matcher, error) {
	m, err := up.Sub(dir, gitignore.Lines(data))
	if err != nil {
		return nil, fmt.Errorf("%w: %.256q: %w: shorten it, or exclude its directory", volume.ErrTooLarge, path.Join(dir, ".gitignore"), err)
	}
	return m, nil
}

// keepIgnored takes what the source's .gitignore files name off the list of
// what is to be deleted: the source does not have it only since it is ignored.
func (s *syncer) keepIgnored(ctx context.Context) error {
	if !s.o.GitIgnore {
		return nil
	}
	texts, err := fetchSmall(ctx, s.from, s.ignoreFiles())
	if err != nil {
		return fmt.Errorf("read .gitignore: %w", err)
	}
	g := &ignores{texts: texts}
	kept := map[string]bool{}
	var extra []string
	for _, name := range s.extra {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		parent := path.Dir(name)
		m, err := g.of(parent)
		if err != nil {
			return fmt.Errorf("index of the source: %w", err)
		}
		// Whether a name that only the destination has is a directory is not in
		// the list; to be kept it may be either.
		if kept[parent] || m.Ignored(name, true) {
			kept[name] = true
			continue
		}
		extra = append(extra, name)
	}
	s.extra = extra
	return nil
}

// ignoreFiles are the .gitignore files of all directories that something is to
// be deleted in, in the order of an index.
func (s *syncer) ignoreFiles() []string {
	var files []string
	seen := map[string]bool{}
	for _, name := range s.extra {
		for dir := path.Dir(name); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			files = append(files, path.Join(dir, ".gitignore"))
		}
	}
	slices.SortFunc(files, compare)
	return files
}

// ignores has the matchers of a directory and of those above it.
type ignores struct {
	texts    map[string][]byte
	dirs     []string
	matchers []*gitignore.Matcher
}

// of returns the matcher of a directory. They are asked for in the order of an
// index, so that those of no parent of this one are done with.
func (g *ignores) of(dir string) (m *gitignore.Matcher, err error) {
	n := len(g.dirs)
	for n > 0 && g.dirs[n-1] != "." && dir != g.dirs[n-1] && !strings.HasPrefix(dir, g.dirs[n-1]+"/") {
		n--
	}
	g.dirs, g.matchers = g.dirs[:n], g.matchers[:n]
	if n > 0 && g.dirs[n-1] == dir {
		return g.matchers[n-1], nil
	}
	below := ""
	if dir != "." {
		below = dir
		if m, err = g.of(path.Dir(dir)); err != nil {
			return nil, err
		}
	}
	if m, err = addIgnore(m, below, g.texts[path.Join(dir, ".gitignore")]); err != nil {
		return nil, err
	}
	g.dirs, g.matchers = append(g.dirs, dir), append(g.matchers, m)
	return m, nil
}
