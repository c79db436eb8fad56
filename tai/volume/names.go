package volume

import (
	"fmt"
	"path"
	"strings"
	"unicode/utf8"
)

// MaxName is the longest name of a file, in bytes.
const MaxName = 255

// NumberedName is the name to try after n others were taken: "a (2).txt". A
// long one is cut to fit.
func NumberedName(name string, n int) string {
	if n == 0 {
		return name
	}
	ext := path.Ext(name)
	stem := strings.TrimSuffix(name, ext)
	if stem == "" || len(ext) > 32 { // .profile has none
		stem, ext = name, ""
	}
	mark := fmt.Sprintf(" (%d)", n)
	if over := len(stem) + len(mark) + len(ext) - MaxName; over > 0 {
		stem = stem[:len(stem)-over]
		for !utf8.ValidString(stem) && utf8.ValidString(name) {
			stem = stem[:len(stem)-1]
		}
	}
	return stem + mark + ext
}
