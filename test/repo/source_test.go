package repo_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// source is one directory of Go files.
type source struct {
	dir   string
	files map[string]*ast.File // by name
}

// sources parses all packages of the module; those of tools are not in it.
func sources(t *testing.T) []*source {
	t.Helper()
	byDir := map[string]*source{}
	var all []*source
	fset := token.NewFileSet()
	for _, name := range files(t, "*.go") {
		dir := filepath.Dir(name)
		if strings.HasPrefix(dir, "tools/") || strings.Contains(dir, "testdata") {
			continue
		}
		file, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if byDir[dir] == nil {
			byDir[dir] = &source{dir, map[string]*ast.File{}}
			all = append(all, byDir[dir])
		}
		byDir[dir].files[name] = file
	}
	return all
}

func isTest(name string) bool { return strings.HasSuffix(name, "_test.go") }

// Each package says once what it is, in a comment that begins with its name.
func TestPackageComments(t *testing.T) {
	for _, src := range sources(t) {
		onlyTests := true
		for name := range src.files {
			onlyTests = onlyTests && isTest(name)
		}
		var has []string
		for name, file := range src.files {
			if file.Doc == nil || isTest(name) != onlyTests {
				continue
			}
			has = append(has, name)
			want := "Package " + file.Name.Name + " "
			if file.Name.Name == "main" {
				want = "Command " + filepath.Base(src.dir) + " "
			}
			if !strings.HasPrefix(file.Doc.Text(), want) {
				t.Errorf("%s: the package comment does not begin with %q", name, want)
			}
		}
		if len(has) != 1 {
			t.Errorf("%s: one package comment is wanted, these files have one: %q", src.dir, has)
		}
	}
}

// Whoever starts goroutines is tested for leaving some behind.
func TestGoroutineLeaksAreChecked(t *testing.T) {
	for _, src := range sources(t) {
		starts, checks := "", false
		for name, file := range src.files {
			if !isTest(name) {
				ast.Inspect(file, func(n ast.Node) bool {
					if _, ok := n.(*ast.GoStmt); ok {
						starts = name
					}
					return true
				})
				continue
			}
			for _, spec := range file.Imports {
				checks = checks || spec.Path.Value == `"go.uber.org/goleak"`
			}
		}
		if starts != "" && !checks && !strings.HasPrefix(src.dir, "cmd/") && !strings.HasSuffix(src.dir, "test") {
			t.Errorf("%s starts a goroutine, and no test of %s uses goleak", starts, src.dir)
		}
	}
}

// list runs go list at the root of the module.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %q: %v\n%s", args, err, stderr.String())
	}
	return strings.Fields(string(out))
}

// What a program links it pays for, and has to answer for. Lint holds the
// direct imports; this holds what comes with them.
func TestLayers(t *testing.T) {
	drivers := map[string]string{
		module + "/drivers":                "the SDK knows the contract only",
		module + "/bridge":                 "driver code",
		module + "/server":                 "imports point down",
		module + "/internal/cli":           "imports point down",
		"github.com/containerd/containerd": "driver code",
		"github.com/containerd/go-runc":    "driver code",
		"github.com/docker":                "driver code",
		"github.com/moby/moby":             "driver code",
		"github.com/opencontainers/runc":   "driver code",
		"k8s.io":                           "driver code",
		"testing":                          "test flags do not belong in a product",
	}
	for _, layer := range []struct {
		packages string
		not      map[string]string // package or tree → why
	}{
		{"./tai/...", drivers},
		{"./sandbox/...", drivers},
		{"./bridge/...", map[string]string{
			"net/http":                         "every box pays for what the bridge links",
			"github.com/spf13":                 "same",
			"google.golang.org":                "same",
			"github.com/containerd/containerd": "same",
			"testing":                          "test flags do not belong in a product",
		}},
		{"./cmd/...", map[string]string{
			"testing":                      "test flags do not belong in a product",
			"github.com/google/go-cmp":     "test code",
			module + "/internal/testimage": "test code",
		}},
		{"./cmd/taibox", map[string]string{
			module + "/drivers":                "the command line starts fast; the server is a program of its own",
			module + "/server":                 "same",
			module + "/node":                   "same",
			"github.com/containerd/containerd": "same",
			"github.com/danielgtaylor/huma":    "same",
		}},
		{"./internal/client/...", map[string]string{
			module + "/drivers": "a client is light",
			module + "/server":  "a client is light",
			"testing":           "test flags do not belong in a product",
		}},
	} {
		for _, pkg := range list(t, layer.packages) {
			if strings.HasSuffix(pkg, "test") { // a test kit, as sandboxtest
				continue
			}
			for _, dep := range list(t, "-deps", pkg) {
				for not, why := range layer.not {
					if dep == not || strings.HasPrefix(dep, not+"/") {
						t.Errorf("%s links %s: %s", pkg, dep, why)
					}
				}
			}
		}
	}
}
