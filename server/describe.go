package server

import (
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/taibox/taibox/api/rest"
)

// describeBodies adds to the API's description what routes that read their
// body themselves read: bytes, where nothing else is said.
func (s *Server) describeBodies() {
	doc := s.api.OpenAPI()
	schemas := map[string]reflect.Type{
		"/v1/images/pull": reflect.TypeFor[rest.PullImage](), "/v1/images/save": reflect.TypeFor[rest.SaveImages](),
	}
	for path, item := range doc.Paths {
		for method, op := range map[string]*huma.Operation{http.MethodPut: item.Put, http.MethodPost: item.Post} {
			if op == nil || op.RequestBody != nil || op.Responses["default"] == nil || len(op.Responses) > 1 {
				continue // declared with its types
			}
			media := &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
			kind := "application/octet-stream"
			switch t := schemas[path]; {
			case t != nil:
				kind, media.Schema = "application/json", doc.Components.Schemas.Schema(t, true, t.Name())
			case strings.HasSuffix(path, "/archive"), strings.HasSuffix(path, "/load"):
				kind = "application/x-tar"
			case method == http.MethodPost && strings.HasSuffix(path, "/files"):
				kind, media.Schema = "multipart/form-data", &huma.Schema{Type: huma.TypeObject}
			}
			op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{kind: media}}
		}
	}
}
