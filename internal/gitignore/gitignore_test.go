package gitignore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/taibox/taibox/internal/gitignore"
)

// sub adds the patterns of a directory.
func sub(m *gitignore.Matcher, dir, text string) *gitignore.Matcher {
	m, err := m.Sub(dir, gitignore.Lines([]byte(text)))
	if err != nil {
		panic(err)
	}
	return m
}

// ignored asks the matcher as a walk does: what is in an ignored directory is.
func ignored(files map[string]string, name string, isDir bool) bool {
	m := sub(nil, "", files[""])
	parts := strings.Split(name, "/")
	for i := range parts {
		at := strings.Join(parts[:i+1], "/")
		last := i == len(parts)-1
		if m.Ignored(at, !last || isDir) {
			return true
		}
		m = sub(m, at, files[at])
	}
	return false
}

// git asks git itself.
func git(t testing.TB, files map[string]string, names []string) []string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git here")
	}
	dir := t.TempDir()
	run := func(in string, args ...string) []byte {
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(in)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "XDG_CONFIG_HOME="+dir)
		out, err := cmd.Output()
		if ee := (*exec.ExitError)(nil); errors.As(err, &ee) && ee.ExitCode() == 1 {
			err = nil // none is ignored
		}
		if err != nil {
			t.Fatalf("git %v: %v", args, err)
		}
		return out
	}
	run("", "init", "-q", ".")
	for _, n := range names {
		full := filepath.Join(dir, n)
		if strings.HasSuffix(n, "/") {
			if err := os.MkdirAll(full, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(full), 0o755), os.WriteFile(full, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for in, text := range files {
		if err := os.WriteFile(filepath.Join(dir, in, ".gitignore"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// Git would take a slash at the end of a name for one that a pattern may match.
	asked := strings.ReplaceAll(strings.Join(names, "\x00")+"\x00", "/\x00", "\x00")
	var all []string
	for n := range bytes.SplitSeq(run(asked, "check-ignore", "-z", "--stdin", "--no-index"), []byte{0}) {
		if len(n) > 0 {
			all = append(all, string(n))
		}
	}
	return all
}

func compare(t *testing.T, files map[string]string, names []string) {
	t.Helper()
	want := git(t, files, names)
	var got []string
	for _, n := range names {
		if clean := path.Clean(n); ignored(files, clean, strings.HasSuffix(n, "/")) {
			got = append(got, clean)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%q: ignored are\n%q, git has\n%q", files, got, want)
	}
}

var tree = []string{
	"a", "b/", "b/a", "b/c/", "b/c/a", "b/c/d.log", "foo.log", "foo/", "foo/bar", "foo/bar.log", "build/", "build/x", "src/", "src/build/", "src/build/x", "src/b", "src/b.go",
	"#x", "!x", "sp ace", "trail ", "é", "x[y]", "x\\y", "deep/", "deep/a/", "deep/a/b/", "deep/a/b/c", "deep/z", "node_modules/", "node_modules/m/", "node_modules/m/i.js", "A", "-", "^", "]",
}

func TestAsGitDoes(t *testing.T) {
	for _, text := range []string{
		"a", "/a", "b/a", "b/", "a/", "*.log", "/*.log", "**/a", "b/**", "b/**/a", "**", "*", "/*", "/**", "*/", "**/", "b/*", "b/**/", "**/c/**", "/b/c",
		"*\n!a", "*\n!*/\n!*.go", "b/*\n!b/c", "b\n!b/a", "foo/*\n!foo/bar", "#x", "\\#x", "!x", "\\!x", "trail ", "trail\\ ", "sp ace", "sp?ace", "sp[ ]ace", "?", "??", "é",
		"x[[]y]", "x\\[y\\]", "x[y]", "x\\\\y", "x\\y", "[a-c]", "[!a-c]", "[^a-c]", "[]-]", "[]]", "[[:alpha:]]", "[[:upper:]]", "[[:nope:]]", "[a", "a\\", "[", "[a-", "[-a]", "[\\]]", "[\\^]",
		"d*g", "*o*", "f*o.l*g", "b/c/*.log", "deep/**/c", "deep/*/c", "deep/**/**/c", "deep/a**c", "dee**", "**p", "a**", "src/b*", "src/**/x", "**/build", "build", "/build", "/build/",
		"node_modules", "node_modules/**", "!node_modules", "\ufeffa", "a\r\nfoo", "  a", "\ta", "a\t", "", " ", "/", "//", "/a/", "b//a", "./a", "!", "!/", "[[:alpha:]", "[[:x]", "[[:x]]", "[a-\\c]", "[b-a]", "[--0]",
	} {
		compare(t, map[string]string{"": text}, tree)
	}
	compare(t, map[string]string{"": "*.log\n/build", "foo": "!bar.log\nbar", "b": "/c\n!a", "src": "build/\n"}, tree)
	compare(t, map[string]string{"": "deep/**/b", "deep": "!b", "deep/a": "b/*\n!c"}, tree)
	compare(t, map[string]string{"": "b", "b": "!a"}, tree)
}

var oddStars = regexp.MustCompile(`[^/!]\*\*.*/|/.*[^/]\*\*|\*\*[^/].*/|/.*\*\*[^/]`)

// Patterns put together by chance mean what git says they mean.
func TestAsGitDoesByChance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "b", "c", "*", "**", "/", "/", "?", "[ab]", "!", "\\", "foo", ".log", "deep", "x", " ", "[!a]", "src", "#"}
	for range 30 {
		var lines []string
		for range 1 + rnd.IntN(4) {
			var b strings.Builder
			for range 1 + rnd.IntN(5) {
				b.WriteString(pieces[rnd.IntN(len(pieces))])
			}
			// Git takes the stars of a**/b for directories, but not those of ?**/b.
			if line := b.String(); !oddStars.MatchString(line) {
				lines = append(lines, line)
			}
		}
		compare(t, map[string]string{"": strings.Join(lines, "\n")}, tree)
	}
}

// A hostile pattern costs no more than its length times the name's.
func TestHostilePattern(t *testing.T) {
	m, err := gitignore.New([]string{strings.Repeat("*a", 2000) + "b", strings.Repeat("**/a/", 400) + "b"})
	if err != nil {
		t.Fatal(err)
	}
	if m.Ignored(strings.Repeat("a", 4000), false) || m.Ignored(strings.Repeat("a/", 2000)+"c", false) {
		t.Error("it matched")
	}
}

// What counts in one directory is bounded, however it is spread over those above.
func TestTooManyPatterns(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		levels int // that are taken
	}{
		"patterns": {strings.Repeat("a\n", 20_000), 3},
		"bytes":    {strings.Repeat(strings.Repeat("x", 999)+"\n", 300), 3},
		"comments": {"a\n" + strings.Repeat("#"+strings.Repeat("x", 998)+"\n", 300), 3},
		"none":     {strings.Repeat("#\n", 100_000), 20},
		"too-long": {strings.Repeat("\n", 1<<20), 0},
	} {
		t.Run(name, func(t *testing.T) {
			var m *gitignore.Matcher
			for level := range 20 {
				next, err := m.Sub(strings.Repeat("d/", level)+"d", gitignore.Lines([]byte(c.text)))
				if taken := level < c.levels; taken != (err == nil) || !taken && !errors.Is(err, gitignore.ErrTooMany) {
					t.Errorf("level %d: %v", level, err)
				}
				if err == nil {
					m = next
				}
			}
		})
	}
	if _, err := gitignore.New(make([]string, 1<<21)); !errors.Is(err, gitignore.ErrTooMany) {
		t.Error(err)
	}
}

func FuzzIgnored(f *testing.F) {
	f.Add("*.log\n!a/**/b[x-z]\n", "a/b.log", true)
	f.Add("[[:alpha:]\\", "x", false)
	f.Fuzz(func(t *testing.T, text, name string, isDir bool) {
		m, err := (*gitignore.Matcher)(nil).Sub("", gitignore.Lines([]byte(text)))
		if err == nil {
			m, err = m.Sub("d", gitignore.Lines([]byte(text)))
		}
		if err != nil {
			return
		}
		if a, b := m.Ignored(name, isDir), m.Ignored(name, isDir); a != b {
			t.Error(fmt.Sprint("it changed its mind on ", name))
		}
	})
}
