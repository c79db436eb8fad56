package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// routes declares the whole API.
func (s *Server) routes() {
	useOurErrors()
	s.api = humago.New(jsonMux{s}, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info:    &huma.Info{Title: "Taibox", Version: s.cfg.Version, Description: "Isolated boxes that run commands."},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
			},
		},
		Formats:                      map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat},
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
	})
	s.spec = sync.OnceValues(func() ([]byte, error) { return json.Marshal(s.api.OpenAPI()) })

	s.serverRoutes()
	s.boxRoutes()
	s.execRoutes()
	s.fileRoutes()
	s.workspaceRoutes()
	s.imageRoutes()
	s.keyRoutes()
	s.lookRoutes()
	s.describeBodies()
}

// schemaName names the schemas after the types of api/rest.
func schemaName(t reflect.Type, hint string) string {
	if t == reflect.TypeFor[bodyError]() {
		t = reflect.TypeFor[rest.ErrorBody]()
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// jsonMux is where huma puts its routes. It knows no wildcard over several
// segments: an image's reference is one.
type jsonMux struct{ s *Server }

func (m jsonMux) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	limit := int64(maxBody)
	if strings.HasSuffix(pattern, "/exec") {
		limit = maxExecBody
	}
	m.s.mux.HandleFunc(strings.Replace(pattern, "{ref}", "{ref...}", 1), func(w http.ResponseWriter, r *http.Request) {
		limitBody(w, r, limit)
		h(w, r)
	})
}

func (m jsonMux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.s.mux.ServeHTTP(w, r) }

// output is an answer with a JSON body.
type output[T any] struct {
	Status int
	Body   T
}

func ok[T any](body T) *output[T] { return &output[T]{Status: http.StatusOK, Body: body} }

// nothing is an input or an output without anything in it.
type nothing struct{}

// handle declares a JSON route.
func handle[I, O any](s *Server, method, path, summary string, h func(context.Context, *I) (*O, error)) {
	huma.Register(s.api, huma.Operation{
		OperationID:     operationID(method, path),
		Method:          method,
		Path:            path,
		Summary:         summary,
		Tags:            []string{tag(path)},
		MaxBodyBytes:    -1, // see limitBody
		BodyReadTimeout: -1,
	}, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			return nil, s.fail(ctx, err)
		}
		return out, nil
	})
}

// raw declares a route whose body, in one direction or both, is not JSON.
func (s *Server) raw(method, path, summary string, query []string, h func(http.ResponseWriter, *http.Request) error) {
	op := &huma.Operation{
		OperationID: operationID(method, path), Method: method, Path: path, Summary: summary, Tags: []string{tag(path)},
		Responses: map[string]*huma.Response{"default": {Description: "See the summary; errors as everywhere."}},
	}
	for seg := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(seg, "{"); ok {
			op.Parameters = append(op.Parameters, parameter("path", strings.TrimSuffix(name, "}")))
		}
	}
	for _, name := range query {
		op.Parameters = append(op.Parameters, parameter("query", name))
	}
	s.api.OpenAPI().AddOperation(op)
	s.mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
		body := steady(w, r)
		err := checkQuery(r, query)
		if err == nil {
			err = h(w, r)
		}
		body.leave()
		if err != nil {
			s.fail(r.Context(), err).write(w)
		}
	})
}

func parameter(in, name string) *huma.Param {
	return &huma.Param{Name: name, In: in, Required: in == "path", Schema: &huma.Schema{Type: huma.TypeString}}
}

// checkQuery refuses names that the route does not have.
func checkQuery(r *http.Request, names []string) error {
	for name := range r.URL.Query() {
		if !slices.Contains(names, name) {
			return fmt.Errorf("%w: query.%.64s: unknown query parameter", rest.ErrRequest, name)
		}
	}
	return nil
}

// operationID names an operation after its route: get-sandboxes-id.
func operationID(method, path string) string {
	path = strings.NewReplacer("/v1/", "-", "/", "-", "{", "", "}", "", ".", "-").Replace(path)
	return strings.ToLower(method) + path
}

func tag(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/v1"), "/")
	return parts[1]
}

func (s *Server) serverRoutes() {
	handle(s, http.MethodGet, "/healthz", "Whether the server answers", func(ctx context.Context, _ *nothing) (*output[rest.Health], error) {
		if err := s.allow(ctx, VerbGet, Object{Kind: KindServer}); err != nil {
			return nil, err
		}
		return ok(rest.Health{Status: "ok"}), nil
	})
	handle(s, http.MethodGet, "/v1/version", "Which server this is", s.version)
	handle(s, http.MethodGet, "/v1/nodes", "All nodes", s.nodes)
	s.raw(http.MethodGet, "/openapi.json", "This description", nil, func(w http.ResponseWriter, r *http.Request) error {
		if err := s.allow(r.Context(), VerbGet, Object{Kind: KindServer}); err != nil {
			return err
		}
		spec, err := s.spec()
		if err != nil {
			return fmt.Errorf("describe the API: %w", err)
		}
		w.Header().Set("Content-Type", "application/openapi+json")
		w.Write(spec) //nolint:errcheck // the client is gone, and there is nobody else to tell
		return nil
	})
}

// OpenAPI30 returns the description of the API as version 3.0 has it, for
// generators of clients that know no other.
func (s *Server) OpenAPI30() ([]byte, error) {
	spec, err := s.api.OpenAPI().Downgrade()
	if err != nil {
		return nil, fmt.Errorf("describe the API: %w", err)
	}
	return spec, nil
}

func (s *Server) version(ctx context.Context, _ *nothing) (*output[rest.Version], error) {
	if err := s.allow(ctx, VerbGet, Object{Kind: KindServer}); err != nil {
		return nil, err
	}
	return ok(rest.Version{
		Version: s.cfg.Version, Commit: s.cfg.Commit, PID: os.Getpid(),
		DataDir: s.cfg.DataDir, Host: s.cfg.Host, Listen: s.cfg.Listen, Instance: s.cfg.Instance,
	}), nil
}

type nodesInput struct{ Paging }

func (s *Server) nodes(ctx context.Context, in *nodesInput) (*output[rest.NodeList], error) {
	if err := s.allow(ctx, VerbList, Object{Kind: KindNode}); err != nil {
		return nil, err
	}
	name := func(n *registry.NodeSnapshot) cursor { return cursor{0, n.TaiID} }
	show := func(n *registry.NodeSnapshot) (rest.Node, bool) {
		return nodeOf(*n), s.allow(ctx, VerbGet, Object{Kind: KindNode, ID: n.TaiID, Node: n.TaiID}) == nil
	}
	items, next, err := page(in.Paging, inOrder(s.cfg.Manager.Nodes(), name), name, show)
	if err != nil {
		return nil, err
	}
	return ok(rest.NodeList{Items: items, NextToken: next}), nil
}

// images returns the images of a node; the default one if node is empty.
func (s *Server) images(node string) (taisandbox.Image, error) {
	if node == "" {
		node = s.cfg.Defaults.Node
	}
	return s.cfg.Manager.Images(node)
}
