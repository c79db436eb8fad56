// Package repo_test holds the rules of this repository that no linter knows:
// what links what, how files look, and that the documents tell the truth.
package repo_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

const (
	root         = "../.." // from this directory, where tests run
	module       = "github.com/taibox/taibox"
	maxLines     = 1000
	maxFileBytes = 512 << 10
	generated    = ".gen.go" // what no person reads may be longer
)

// files returns the names of the repository's files that match one of the
// patterns, relative to its root. What git ignores is left out.
func files(t *testing.T, patterns ...string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist"}, name) {
				return filepath.SkipDir
			}
			return nil
		}
		for _, p := range patterns {
			if ok, err := filepath.Match(p, d.Name()); ok || err != nil {
				found = append(found, name)
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// scripts returns the files that bash or sh is to run.
func scripts(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, name := range files(t, "*") {
		if strings.Contains(name, "testdata/") || filepath.Ext(name) == ".go" {
			continue
		}
		first, _, _ := strings.Cut(read(t, name), "\n")
		if strings.HasPrefix(first, "#!") && strings.HasSuffix(first, "sh") {
			found = append(found, name)
		}
	}
	return found
}

func TestFilesAreNotTooLong(t *testing.T) {
	for _, name := range files(t, "*.go") {
		if n := strings.Count(read(t, name), "\n"); n > maxLines && !strings.HasSuffix(name, generated) {
			t.Errorf("%s has %d lines; %d is the most", name, n, maxLines)
		}
	}
}

func TestNoLargeFiles(t *testing.T) {
	for _, name := range files(t, "*") {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > maxFileBytes && !strings.HasSuffix(name, generated) {
			t.Errorf("%s has %d bytes: what is built does not belong in the repository", name, info.Size())
		}
	}
}

// Work that is left open is an issue, and the comment names it.
func TestOpenWorkHasAnIssue(t *testing.T) {
	open := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b(\(#(\d+|n)\))?`)
	for _, name := range files(t, "*.go", "*.sh", "*.yml", "*.md", "Makefile") {
		for _, match := range open.FindAllStringSubmatch(read(t, name), -1) {
			if match[2] == "" {
				t.Errorf("%s: %s without the number of an issue", name, match[1])
			}
		}
	}
}

func TestLicense(t *testing.T) {
	text := read(t, "LICENSE")
	for _, part := range []string{"Apache License", "Version 2.0, January 2004", "END OF TERMS AND CONDITIONS"} {
		if !strings.Contains(text, part) {
			t.Errorf("LICENSE lacks %q", part)
		}
	}
}

// One Go version builds everything, and one linter version checks it.
func TestVersionsAgree(t *testing.T) {
	versions := map[string]string{}
	for _, name := range files(t, "go.mod") {
		mod, err := modfile.Parse(name, []byte(read(t, name)), nil)
		if err != nil {
			t.Fatal(err)
		}
		versions[name] = mod.Go.Version
	}
	for name, version := range versions {
		if version != versions["go.mod"] {
			t.Errorf("%s asks for go %s, go.mod for %s", name, version, versions["go.mod"])
		}
	}
	first, _, _ := strings.Cut(read(t, ".golangci.yml"), "\n")
	version := regexp.MustCompile(`^# (v\d+\.\d+\.\d+) `).FindStringSubmatch(first)
	if version == nil {
		t.Fatalf(".golangci.yml does not begin with a version: %q", first)
	}
	if !strings.Contains(read(t, "tools/lint/go.mod"), "github.com/golangci/golangci-lint/v2 "+version[1]+" ") {
		t.Errorf("tools/lint/go.mod does not require golangci-lint %s", version[1])
	}
}

func TestScripts(t *testing.T) {
	names := scripts(t)
	if !slices.Contains(names, ".ci/run") {
		t.Fatalf("scripts found: %v", names)
	}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&0o111 == 0 {
			t.Errorf("%s cannot be executed", name)
		}
		if !strings.Contains(read(t, name), "\nset -euo pipefail\n") {
			t.Errorf("%s goes on after errors", name)
		}
	}
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Skip("shellcheck is not installed")
	}
	cmd := exec.CommandContext(t.Context(), "shellcheck", names...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("shellcheck: %v\n%s", err, out)
	}
}

// Boxes outlive the server only with a unit that lets them.
func TestUnit(t *testing.T) {
	lines := strings.Split(read(t, "packaging/taibox.service"), "\n")
	for _, want := range []string{"Delegate=yes", "KillMode=process", "Restart=always", "ExecStart=@PREFIX@/bin/taibox serve"} {
		if !slices.Contains(lines, want) {
			t.Errorf("packaging/taibox.service lacks %s", want)
		}
	}
}

// Every target that a person may call says what it does in make help.
func TestMakeHelp(t *testing.T) {
	text := read(t, "Makefile")
	for _, target := range regexp.MustCompile(`(?m)^\.PHONY: (.+)$`).FindAllStringSubmatch(text, -1) {
		if !regexp.MustCompile(`(?m)^` + target[1] + `:.* ## \S`).MatchString(text) {
			t.Errorf("make help does not list %s", target[1])
		}
	}
}
