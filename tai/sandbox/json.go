package sandbox

import (
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// JSON is text. What may be any bytes is beside it as bytes where it is not
// UTF-8, in a field whose name ends in _b64.

type (
	plainExec ExecInfo
	execJSON  struct {
		plainExec
		ArgsB64 [][]byte `json:"args_b64,omitempty"`
	}

	plainSpec Spec
	specJSON  struct {
		plainSpec
		EntrypointB64 [][]byte          `json:"entrypoint_b64,omitempty"`
		EnvB64        map[string][]byte `json:"env_b64,omitempty"`
	}
)

// MarshalJSON implements [json.Marshaler].
func (e ExecInfo) MarshalJSON() ([]byte, error) {
	return json.Marshal(execJSON{plainExec(e), bytesOf(e.Args)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (e *ExecInfo) UnmarshalJSON(raw []byte) error {
	in := execJSON{plainExec: plainExec(*e)}
	if err := json.Unmarshal(raw, &in); err != nil {
		return err
	}
	*e = ExecInfo(in.plainExec)
	if in.ArgsB64 != nil {
		e.Args = textOf(in.ArgsB64)
	}
	return nil
}

// MarshalJSON implements [json.Marshaler].
func (s Spec) MarshalJSON() ([]byte, error) {
	out := specJSON{plainSpec: plainSpec(s)}
	if s.Entrypoint != nil {
		out.EntrypointB64 = bytesOf(*s.Entrypoint)
	}
	for k, v := range s.Env {
		if !utf8.ValidString(v) {
			if out.EnvB64 == nil {
				out.EnvB64 = map[string][]byte{}
			}
			out.EnvB64[k] = []byte(v)
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Spec) UnmarshalJSON(raw []byte) error {
	in := specJSON{plainSpec: plainSpec(*s)}
	if err := json.Unmarshal(raw, &in); err != nil {
		return err
	}
	*s = Spec(in.plainSpec)
	if in.EntrypointB64 != nil {
		words := textOf(in.EntrypointB64)
		s.Entrypoint = &words
	}
	for k, v := range in.EnvB64 {
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		s.Env[k] = string(v)
	}
	return nil
}

// bytesOf returns the bytes of words that JSON cannot carry as text; nil if it can.
func bytesOf(words []string) (raw [][]byte) {
	if !slices.ContainsFunc(words, func(w string) bool { return !utf8.ValidString(w) }) {
		return nil
	}
	for _, w := range words {
		raw = append(raw, []byte(w))
	}
	return raw
}

func textOf(raw [][]byte) []string {
	words := make([]string, len(raw))
	for i, w := range raw {
		words[i] = string(w)
	}
	return words
}
