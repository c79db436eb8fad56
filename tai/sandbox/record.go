package sandbox

import (
	"slices"
	"unicode/utf8"
)

// Bounds of the text in a record. A node keeps a thousand of them for each box,
// and each has to fit into one message.
const (
	MaxRecordList = 32 << 10 // bytes of Args, and of EnvNames
	MaxRecordText = 4 << 10  // bytes of any other text
)

// listItem is what each text of a list costs beside its bytes.
const listItem = 16

// Clip cuts what is too long for a record, and marks it with an ellipsis. The
// command itself gets all that was asked for. Repeated calls do nothing.
func (e *ExecInfo) Clip() {
	e.Args, e.EnvNames = clipList(e.Args), clipList(e.EnvNames)
	for _, s := range []*string{&e.ID, &e.Box, &e.User, &e.WorkDir, &e.Signal, &e.Error} {
		*s = ClipText(*s)
	}
}

// TextBytes is about what the record's text costs.
func (e *ExecInfo) TextBytes() int {
	n := len(e.ID) + len(e.Box) + len(e.User) + len(e.WorkDir) + len(e.Signal) + len(e.Error)
	for _, s := range slices.Concat(e.Args, e.EnvNames) {
		n += listItem + len(s)
	}
	return n
}

// ClipText returns a text as records keep it.
func ClipText(s string) string {
	if len(s) <= MaxRecordText {
		return s
	}
	return cut(s, MaxRecordText)
}

func clipList(list []string) []string {
	left := MaxRecordList
	for i, s := range list {
		if left -= listItem; left < len(s) {
			return append(slices.Clone(list[:i]), cut(s, max(left, 0)))
		}
		left -= len(s)
	}
	return list
}

// cut returns at most n bytes of s and an ellipsis. It does not keep s in memory.
func cut(s string, n int) string {
	for range utf8.UTFMax - 1 {
		if n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
	}
	return s[:n] + "…"
}
