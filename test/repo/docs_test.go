package repo_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links of the documents lead somewhere: to a file that exists and, with a
// fragment, to a heading in it.
func TestDocLinks(t *testing.T) {
	for _, name := range files(t, "*.md") {
		for _, match := range link.FindAllStringSubmatch(read(t, name), -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := name
			if target != "" {
				to = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: link to %s: %v", name, match[1], err)
				continue
			}
			if fragment != "" && !anchors(read(t, to))[fragment] {
				t.Errorf("%s: link to %s: no such heading", name, match[1])
			}
		}
	}
}

// anchors returns the fragments that the headings of a document make.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		found[strings.ReplaceAll(drop.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")] = true
	}
	return found
}

// Decisions are numbered without gaps and listed.
func TestDecisionsAreListed(t *testing.T) {
	index := read(t, "docs/adr/README.md")
	records, err := filepath.Glob(filepath.Join(root, "docs/adr/[0-9]*.md"))
	if err != nil || len(records) == 0 {
		t.Fatalf("no decisions found: %v", err)
	}
	for i, path := range records {
		name := filepath.Base(path)
		if want := fmt.Sprintf("%04d-", i+1); !strings.HasPrefix(name, want) {
			t.Errorf("docs/adr/%s: number %s is wanted", name, want)
		}
		if !strings.Contains(index, "]("+name+")") {
			t.Errorf("docs/adr/README.md does not list %s", name)
		}
	}
}
