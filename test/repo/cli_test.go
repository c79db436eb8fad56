package repo_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/taibox/taibox/internal/cli"
)

// help returns what a command prints with --help.
func help(t *testing.T, verb []string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	env := cli.Env{In: strings.NewReader(""), Out: &out, Err: &stderr, LookupEnv: func(string) (string, bool) { return "", false }}
	if code := cli.Main(t.Context(), env, append(slices.Clone(verb), "--help")); code != 0 {
		t.Fatalf("taibox %v --help: code %d, %s", verb, code, &stderr)
	}
	return out.String()
}

// listed matches a command in a help: its name, then what it does.
var listed = regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z][a-z]`)

// Every command has a section in docs/cli.md, and every flag is in it or among
// those that are used alike.
func TestCLIDocs(t *testing.T) {
	text := read(t, "docs/cli.md")
	alike := section(text, "## Flags used alike")
	flag := regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z-]+)`)
	found := 0
	var walk func(verb []string)
	walk = func(verb []string) {
		below := listed.FindAllStringSubmatch(help(t, verb), -1)
		for _, match := range below {
			walk(append(slices.Clone(verb), match[1]))
		}
		if len(verb) == 0 || len(below) > 0 {
			return
		}
		found++
		heading := "### `taibox " + strings.Join(verb, " ")
		own := section(text, heading)
		if own == "" {
			t.Errorf("docs/cli.md has no section %q", heading)
			return
		}
		for _, match := range flag.FindAllStringSubmatch(help(t, verb), -1) {
			word := regexp.MustCompile(regexp.QuoteMeta(match[1]) + `\b`)
			if !word.MatchString(own) && !word.MatchString(alike) {
				t.Errorf("docs/cli.md says nothing of %s of taibox %s", match[1], strings.Join(verb, " "))
			}
		}
	}
	walk(nil)
	if found < 20 {
		t.Errorf("only %d commands were found in the help", found)
	}
}

// section returns a document's text from a heading to the next one of its
// level or above.
func section(text, heading string) string {
	start := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(heading) + "[ `\n]").FindStringIndex(text)
	if start == nil {
		return ""
	}
	rest := text[start[1]:]
	level, _, _ := strings.Cut(heading, " ")
	if end := regexp.MustCompile(`(?m)^#{1,` + string(rune('0'+len(level))) + `} `).FindStringIndex(rest); end != nil {
		rest = rest[:end[0]]
	}
	return rest
}
