package sandbox

import (
	"fmt"
	"strings"
)

// MaxArgBytes is the most that Linux takes as one argument, and as one variable
// with its name and the sign between.
const MaxArgBytes = 128<<10 - 1

// ExplainTooLong says what of a command was too long for the kernel, and what
// to do. env has lines NAME=value, of which no value is told.
func ExplainTooLong(args, env []string) string {
	n := 0
	for i, a := range args {
		if n += len(a) + 1; len(a) > MaxArgBytes {
			return tooLong(fmt.Sprintf("argument %d is", i), len(a))
		}
	}
	for _, kv := range env {
		if n += len(kv) + 1; len(kv) > MaxArgBytes {
			name, _, _ := strings.Cut(kv, "=")
			return tooLong(fmt.Sprintf("variable %.64q with its name is", name), len(kv))
		}
	}
	return fmt.Sprintf("arguments and environment are %d bytes long in all, more than the kernel takes: pass the data by stdin or in a file", n)
}

func tooLong(what string, n int) string {
	return fmt.Sprintf("%s %d bytes long; the kernel takes at most %d: pass the data by stdin or in a file", what, n, MaxArgBytes)
}
