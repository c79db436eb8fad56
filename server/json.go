package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/taibox/taibox/api/rest"
)

// jsonFormat is how huma reads and writes bodies.
var jsonFormat = huma.Format{
	Marshal: huma.DefaultJSONFormat.Marshal,
	Unmarshal: func(raw []byte, v any) error {
		if err := checkText(raw); err != nil {
			return err
		}
		return huma.DefaultJSONFormat.Unmarshal(raw, v)
	},
}

// checkText refuses what is not UTF-8: the decoder would put other characters
// in the place of what it does not know, and so mean something else.
func checkText(raw []byte) error {
	if !utf8.Valid(raw) {
		return errors.New("JSON is UTF-8, and this is not: bytes go into fields that end in _b64")
	}
	return nil
}

// decodeStrict decodes one value and names what it should not have.
func decodeStrict(raw []byte, v any) error {
	if err := checkText(raw); err != nil {
		return fmt.Errorf("%w: %w", rest.ErrRequest, err)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", rest.ErrRequest, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one value", rest.ErrRequest)
	}
	return nil
}
