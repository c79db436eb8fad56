package sandbox_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/taibox/taibox/tai/sandbox"
)

func TestClip(t *testing.T) {
	long := strings.Repeat("é", sandbox.MaxRecordList)
	short := []string{"sh", "-c", "echo \xff\n"}
	for name, args := range map[string][]string{
		"short":     short,
		"long":      {"sh", "-c", long, "more"},
		"one_more":  {strings.Repeat("x", sandbox.MaxRecordList-16), "x"},
		"many":      slices.Repeat([]string{""}, sandbox.MaxRecordList),
		"no_text":   slices.Repeat([]string{"\xbf"}, sandbox.MaxRecordList),
		"no_letter": {strings.Repeat("\xbf", 2*sandbox.MaxRecordList)},
	} {
		t.Run(name, func(t *testing.T) {
			given := slices.Clone(args)
			e := sandbox.ExecInfo{Args: args, EnvNames: args, User: long, WorkDir: long, Error: long}
			e.Clip()
			if !slices.Equal(args, given) {
				t.Error("what was given has changed")
			}
			if most := 2*(sandbox.MaxRecordList+20) + 3*(sandbox.MaxRecordText+3); e.TextBytes() > most {
				t.Errorf("%d bytes are left, at most %d may be", e.TextBytes(), most)
			}
			if !utf8.ValidString(e.User) || !strings.HasSuffix(e.User, "é…") {
				t.Errorf("a text ends in %q", e.User[len(e.User)-8:])
			}
			if name == "short" {
				if !slices.Equal(e.Args, short) {
					t.Errorf("%q", e.Args)
				}
			} else if n := len(e.Args); !strings.HasSuffix(e.Args[n-1], "…") || !slices.Equal(e.Args[:n-1], args[:n-1]) {
				t.Errorf("%d arguments, the last ends in no ellipsis, or others were changed", n)
			}
			once := e
			e.Clip()
			if !slices.Equal(e.Args, once.Args) || e.User != once.User {
				t.Error("a second cut changes more")
			}
		})
	}
}
