package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// BenchmarkMain is what every command pays before it does anything.
func BenchmarkMain(b *testing.B) {
	env := Env{In: strings.NewReader(""), Out: &bytes.Buffer{}, Err: &bytes.Buffer{}, LookupEnv: variables(nil)}
	b.ReportAllocs()
	for b.Loop() {
		if code := Main(context.Background(), env, []string{"config", "dump", "-o", "json"}); code != exitOK {
			b.Fatal(code)
		}
	}
}
