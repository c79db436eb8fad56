// Package gitignore tells which files of a tree the patterns of .gitignore
// files name.
//
// # Model
//
// A [Matcher] holds the patterns that count in one directory: those of its own
// .gitignore over those of the directories above. Whoever walks a tree makes one
// for each directory by [Matcher.Sub], and does not enter directories that are
// ignored, so that nothing in them can be taken back by a pattern. The rules are
// those of gitignore(5), byte by byte.
//
// Patterns may be hostile: matching takes time in proportion to the product of
// the lengths of pattern and name at the most, and how many count in one
// directory is bounded, with those of all directories above.
//
// # Errors
//
// [ErrTooMany] is all that can go wrong.
//
// # Concurrency
//
// A [Matcher] does not change, and is safe for concurrent use.
package gitignore

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// Bounds of the patterns that count in one directory.
const (
	maxPatterns = 64 << 10
	maxBytes    = 1 << 20 // of their files, with all that is no pattern
)

// ErrTooMany reports more patterns than may count in one directory.
var ErrTooMany = fmt.Errorf("with those of the directories above, there are more than %d patterns, or %d bytes of them", maxPatterns, maxBytes)

// Matcher is the patterns that count in a directory and below.
type Matcher struct {
	up       *Matcher
	dir      string // where the patterns were found, with a slash behind it; "" is the root
	patterns []pattern
	count    int // of patterns, with those above
	bytes    int
}

type pattern struct {
	segments []string // of the path below dir, with escapes
	anyDepth bool     // a name alone: it counts in each directory
	negated  bool
	onlyDirs bool
}

// New returns a matcher of the root of a tree.
func New(lines []string) (*Matcher, error) { return (*Matcher)(nil).Sub("", slices.Values(lines)) }

// Lines splits the contents of a .gitignore file.
func Lines(data []byte) iter.Seq[string] {
	text := strings.TrimPrefix(string(data), "\ufeff")
	return func(yield func(string) bool) {
		for line := range strings.SplitSeq(text, "\n") {
			if !yield(strings.TrimSuffix(line, "\r")) {
				return
			}
		}
	}
}

// Sub returns the matcher of a directory, given by its path below the root, that
// adds patterns of its own. It is m if there are none.
func (m *Matcher) Sub(dir string, lines iter.Seq[string]) (*Matcher, error) {
	sub := &Matcher{up: m}
	if dir != "" {
		sub.dir = dir + "/"
	}
	if m != nil {
		sub.count, sub.bytes = m.count, m.bytes
	}
	for line := range lines {
		sub.bytes += len(line) + 1
		if p, ok := parse(line); ok {
			sub.patterns = append(sub.patterns, p)
			sub.count++
		}
		if sub.count > maxPatterns || sub.bytes > maxBytes {
			return nil, ErrTooMany
		}
	}
	if len(sub.patterns) == 0 && m != nil {
		return m, nil
	}
	return sub, nil
}

// Ignored reports whether a file or directory, given by its path below the
// root, is ignored. Whether a directory above it is does not count here.
func (m *Matcher) Ignored(path string, isDir bool) bool {
	names := strings.Split(path, "/")
	for ; m != nil; m = m.up {
		if !strings.HasPrefix(path, m.dir) {
			continue
		}
		below := names[strings.Count(m.dir, "/"):]
		for _, p := range slices.Backward(m.patterns) {
			if p.matches(below, isDir) {
				return !p.negated
			}
		}
	}
	return false
}

// parse reads a line; one that is empty, a comment or no pattern is none.
func parse(line string) (p pattern, ok bool) {
	line = trimSpaces(line)
	if line == "" || line[0] == '#' {
		return p, false
	}
	if line[0] == '!' {
		p.negated, line = true, line[1:]
	}
	if strings.HasSuffix(line, "/") {
		p.onlyDirs, line = true, line[:len(line)-1]
	}
	if line == "" || strings.IndexByte(line, 0) >= 0 {
		return p, false
	}
	p.anyDepth = !strings.Contains(line, "/")
	p.segments = strings.Split(strings.TrimPrefix(line, "/"), "/")
	return p, true
}

// trimSpaces cuts the spaces at the end that no backslash keeps.
func trimSpaces(line string) string {
	end := 0
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case ' ':
			continue
		case '\\':
			i++
		}
		end = i + 1
	}
	return line[:min(end, len(line))]
}

// matches takes the elements of a path below where the pattern was found.
func (p *pattern) matches(names []string, isDir bool) bool {
	if p.onlyDirs && !isDir {
		return false
	}
	if p.anyDepth {
		return glob(p.segments[0], names[len(names)-1])
	}
	return matchPath(p.segments, names)
}

// matchPath matches the elements of a path. A pattern "**" stands for any
// number of them, at the end for one or more. Like stars in a name, all but the
// last one that matched may be forgotten.
func matchPath(pattern, names []string) bool {
	pi, ni := 0, 0
	star, from := -1, 0
	for ni < len(names) {
		switch {
		case pi < len(pattern) && pattern[pi] == "**":
			if pi == len(pattern)-1 {
				return true
			}
			star, from = pi, ni
			pi++
			continue
		case pi < len(pattern) && glob(pattern[pi], names[ni]):
			pi++
			ni++
			continue
		case star >= 0:
			from++
			pi, ni = star+1, from
			continue
		}
		return false
	}
	return pi == len(pattern)
}
