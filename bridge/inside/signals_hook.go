//go:build amd64 || arm64

package inside

// nextTermHandler is Go's own handler.
var nextTermHandler uintptr

// termHandlerPC is the address of termHandler, set in assembly.
var termHandlerPC uintptr

// discardHandlerPC is that of discardHandler, likewise.
var discardHandlerPC uintptr

// termHandler notes whether kill(2) sent the signal from outside the pid
// namespace (si_code and si_pid are both 0), and goes on in Go's handler.
func termHandler()

var _ = termHandler
