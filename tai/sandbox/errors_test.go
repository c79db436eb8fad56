package sandbox_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"

	"github.com/taibox/taibox/tai/sandbox"
)

// TestReasonsAreComplete: a sentinel that is declared and not listed would not
// be known to a remote program.
func TestReasonsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, e := range sandbox.Reasons() {
		if seen[e.Reason] || e.Reason == "" || e.Msg == "" || e.Class == nil {
			t.Errorf("%+v lacks something, or is there twice", e)
		}
		seen[e.Reason] = true
	}
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var declared, listed []string
	for _, decl := range file.Decls {
		ast.Inspect(decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				declared = append(declared, n.Names[0].Name)
			case *ast.Ident:
				if _, isFunc := decl.(*ast.FuncDecl); isFunc && len(n.Name) > 3 && n.Name[:3] == "Err" {
					listed = append(listed, n.Name)
				}
			}
			return true
		})
	}
	listed = slices.DeleteFunc(listed, func(s string) bool { return s == "Error" })
	slices.Sort(declared)
	slices.Sort(listed)
	if !slices.Equal(declared, listed) || len(listed) != len(sandbox.Reasons()) {
		t.Errorf("declared are %v, listed %v", declared, listed)
	}
}
