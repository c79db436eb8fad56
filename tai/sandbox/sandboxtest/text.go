package sandboxtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

func contains(b []byte, s string) bool { return bytes.Contains(b, []byte(s)) }

// numbers is what Commands.Count prints.
func numbers(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// pattern returns n bytes of which no two near ones are alike.
func pattern(n int) []byte {
	b := make([]byte, n)
	x := uint32(2463534242)
	for i := range b {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b[i] = byte(x)
	}
	return b
}
