//go:build !amd64 && !arm64

package inside

// Without a hook every SIGTERM counts as one from inside.
var nextTermHandler, termHandlerPC, discardHandlerPC uintptr
