package server_test

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// operation is what the linter looks at.
type operation struct {
	OperationID string   `json:"operationId"`
	Summary     string   `json:"summary"`
	Tags        []string `json:"tags"`
	Parameters  []struct {
		Name     string
		In       string
		Required bool
		Schema   json.RawMessage
	}
	RequestBody *struct{ Content map[string]json.RawMessage }
	Responses   map[string]struct {
		Description string
		Content     map[string]json.RawMessage
	}
}

// The OpenAPI document is one that generators of clients take: version 3.1,
// unique operation ids, each operation with a summary, tags, parameters that
// fit its path and answers for failures, and no reference to nowhere.
func TestOpenAPILint(t *testing.T) {
	w := newWorld(t)
	status, header, body := w.call(http.MethodGet, "/openapi.json", "")
	if status != http.StatusOK || !strings.Contains(header.Get("Content-Type"), "json") {
		t.Fatalf("%d %s", status, header.Get("Content-Type"))
	}
	var doc struct {
		OpenAPI    string
		Info       struct{ Title, Version string }
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal([]byte(body), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") || doc.Info.Title == "" || doc.Info.Version == "" || len(doc.Paths) < 20 {
		t.Errorf("version %q, info %+v, %d paths", doc.OpenAPI, doc.Info, len(doc.Paths))
	}
	inPath := regexp.MustCompile(`\{([a-z_]+)\}`)
	ids := map[string]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			name := strings.ToUpper(method) + " " + path
			if other := ids[op.OperationID]; op.OperationID == "" || other != "" {
				t.Errorf("%s: operation id %q, which is also that of %q", name, op.OperationID, other)
			}
			ids[op.OperationID] = name
			if op.Summary == "" || len(op.Tags) == 0 || op.Tags[0] == "" {
				t.Errorf("%s: summary %q, tags %q", name, op.Summary, op.Tags)
			}
			failure := false
			for code, r := range op.Responses {
				failure = failure || code == "default" || code[0] == '4' || code[0] == '5'
				if r.Description == "" {
					t.Errorf("%s: answer %s is not described", name, code)
				}
			}
			if !failure {
				t.Errorf("%s: no answer for failures", name)
			}
			declared := map[string]bool{}
			for _, p := range op.Parameters {
				if p.Name == "" || len(p.Schema) == 0 || declared[p.In+p.Name] {
					t.Errorf("%s: parameter %+v", name, p)
				}
				declared[p.In+p.Name] = true
				if p.In == "path" && (!p.Required || !strings.Contains(path, "{"+p.Name+"}")) {
					t.Errorf("%s: path parameter %q is not in the path, or not required", name, p.Name)
				}
			}
			for _, m := range inPath.FindAllStringSubmatch(path, -1) {
				if !declared["path"+m[1]] {
					t.Errorf("%s: parameter %q is not declared", name, m[1])
				}
			}
			if (method == "get" || method == "delete") && op.RequestBody != nil {
				t.Errorf("%s: has a body", name)
			}
		}
	}
	for _, m := range regexp.MustCompile(`"\$ref":"([^"]*)"`).FindAllStringSubmatch(body, -1) {
		schema, local := strings.CutPrefix(m[1], "#/components/schemas/")
		if _, ok := doc.Components.Schemas[schema]; !local || !ok {
			t.Errorf("reference to nowhere: %s", m[1])
		}
	}
}
