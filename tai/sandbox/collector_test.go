package sandbox_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/taibox/taibox/tai/sandbox"
)

func collected(limit int64, cs ...sandbox.Chunk) (res sandbox.ExecResult) {
	c := sandbox.NewCollector(limit)
	for i := range cs {
		c.Add(cs[i])
		clear(cs[i].Data) // which is the stream's
	}
	c.Fill(&res)
	return res
}

func outputOf(source sandbox.Source, text string) sandbox.Chunk {
	return sandbox.Chunk{Source: source, Data: []byte(text)}
}

// TestCollectorKeepsHeadAndTail: exactly as much as may be, whatever the chunks.
func TestCollectorKeepsHeadAndTail(t *testing.T) {
	var all strings.Builder
	for i := range 100_000 {
		fmt.Fprintln(&all, i)
	}
	text := all.String()
	for _, limit := range []int{1, 2, 3, 1000, 64 << 10, 64<<10 + 1, len(text) - 1} {
		for _, size := range []int{1000, 32 << 10, len(text)} {
			var cs []sandbox.Chunk
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				cs = append(cs, outputOf(sandbox.Stdout, rest[:n]))
				rest = rest[n:]
			}
			res := collected(int64(limit), cs...)
			head := limit - limit/2
			want := text[:head] + text[len(text)-limit/2:]
			if string(res.Stdout) != want || !res.OutputTruncated {
				t.Errorf("%d bytes by %d: %d were kept, truncated %v", limit, size, len(res.Stdout), res.OutputTruncated)
			}
			if hole := (sandbox.Omission{At: int64(head), Bytes: int64(len(text) - limit)}); res.StdoutOmitted != hole || res.StderrOmitted.Bytes != 0 {
				t.Errorf("%d bytes by %d: %+v and %+v were left out", limit, size, res.StdoutOmitted, res.StderrOmitted)
			}
		}
	}
}

// TestCollectorKeepsTheLastWords: a flood on one side leaves the end of the other.
func TestCollectorKeepsTheLastWords(t *testing.T) {
	flood := strings.Repeat("x", 200_000)
	res := collected(1000, outputOf(sandbox.Stdout, flood), outputOf(sandbox.Stderr, "it failed\n"), outputOf(sandbox.Stdout, flood))
	if string(res.Stderr) != "it failed\n" || len(res.Stdout) != 990 || res.StderrOmitted.Bytes != 0 || res.StdoutOmitted.Bytes != 400_000-990 {
		t.Errorf("%q; %d bytes, %+v left out", res.Stderr, len(res.Stdout), res.StdoutOmitted)
	}
	res = collected(1000, outputOf(sandbox.Stderr, flood), outputOf(sandbox.Stdout, flood), outputOf(sandbox.Stderr, "end"))
	if len(res.Stdout) != 250 || len(res.Stderr) != 750 || !strings.HasSuffix(string(res.Stderr), "xend") {
		t.Errorf("%d and %d bytes were kept", len(res.Stdout), len(res.Stderr))
	}
}

// TestCollectorCutsBetweenCharacters: on both sides of the hole.
func TestCollectorCutsBetweenCharacters(t *testing.T) {
	text := strings.Repeat("é🚀a漢", 100)
	for limit := int64(1); limit < 80; limit++ {
		res := collected(limit, outputOf(sandbox.Stdout, text))
		if !utf8.Valid(res.Stdout) || int64(len(res.Stdout)) > limit || int64(len(res.Stdout)) < limit-2*(utf8.UTFMax-1) {
			t.Errorf("of %d bytes are kept %q", limit, res.Stdout)
		}
		hole := res.StdoutOmitted
		if int64(len(res.Stdout))+hole.Bytes != int64(len(text)) || string(res.Stdout[:hole.At]) != text[:hole.At] || string(res.Stdout[hole.At:]) != text[hole.At+hole.Bytes:] {
			t.Errorf("of %d bytes %q are kept, with %+v", limit, res.Stdout, hole)
		}
	}
	if res := collected(100, outputOf(sandbox.Stdout, "cut by the command \xf0\x9f")); !strings.HasSuffix(string(res.Stdout), "\xf0\x9f") {
		t.Errorf("what was not cut is %q", res.Stdout)
	}
}
