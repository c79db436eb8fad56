package rest

import (
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Words returns a list of words for a pair of fields: JSON is text, so the
// bytes are there too if a word is not UTF-8.
func Words(words []string) (text []string, raw [][]byte) {
	valid := true
	for _, w := range words {
		valid = valid && utf8.ValidString(w)
	}
	if valid {
		return words, nil
	}
	for _, w := range words {
		text, raw = append(text, strings.ToValidUTF8(w, "\uFFFD")), append(raw, []byte(w))
	}
	return text, raw
}

// WordsOf returns the words of such a pair in a request, of which one may be
// there.
func WordsOf(name string, text []string, raw [][]byte) ([]string, error) {
	if raw == nil {
		return text, nil
	}
	if text != nil {
		return nil, fmt.Errorf("%w: %s and %s_b64 are the same thing: give one of them", ErrRequest, name, name)
	}
	words := make([]string, len(raw))
	for i, w := range raw {
		words[i] = string(w)
	}
	return words, nil
}

// SetCmd sets the command, whatever bytes it has.
func (r *ExecRequest) SetCmd(words []string) {
	r.Cmd, r.CmdB64 = Words(words)
	if r.CmdB64 != nil {
		r.Cmd = nil
	}
}

// SetEntrypoint sets the entrypoint, whatever bytes it has.
func (r *CreateBox) SetEntrypoint(words []string) {
	text, raw := Words(words)
	if r.EntrypointB64 = raw; raw == nil {
		r.Entrypoint = &text
	}
}

// CheckText refuses a request with a string that is not UTF-8: JSON would have
// something else in its place.
func CheckText(request any) error {
	if where := notText(reflect.ValueOf(request), ""); where != "" {
		return fmt.Errorf("%w: %s is not UTF-8: only fields that end in _b64 carry other bytes", ErrRequest, where)
	}
	return nil
}

// notText returns where the first string is that is not UTF-8.
func notText(v reflect.Value, where string) string {
	switch v.Kind() {
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return where
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return notText(v.Elem(), where)
		}
	case reflect.Slice, reflect.Array:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return ""
		}
		for i := range v.Len() {
			if bad := notText(v.Index(i), fmt.Sprintf("%s[%d]", where, i)); bad != "" {
				return bad
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			at := fmt.Sprintf("%s[%q]", where, k)
			if bad := notText(k, at); bad != "" {
				return bad
			}
			if bad := notText(v.MapIndex(k), at); bad != "" {
				return bad
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || name == "-" {
				continue
			}
			if name != "" && where != "" {
				name = where + "." + name
			}
			if bad := notText(v.Field(i), name); bad != "" {
				return bad
			}
		}
	default:
	}
	return ""
}
