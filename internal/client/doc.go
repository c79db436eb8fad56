// Package client speaks the HTTP API of a Taibox server.
//
// # Model
//
// A [Client] has one method for each route. Commands with live input and
// output are a [Stream] over a WebSocket. A stream outlives its link: when the
// server goes away and comes back within the exec's lease, the stream attaches
// again at the byte where it was, and the reader sees nothing of it. A wait is
// asked for again as well.
//
// # Errors
//
// What the server reports becomes an [*Error]: errors.Is finds the sentinel
// that has the server's reason, and its class; reason.Hint finds the advice. A
// server that cannot be reached is [rest.ErrUnreachable].
//
// # Concurrency
//
// A Client may be used by several goroutines at once. A Stream has the rules
// of the contract: one goroutine calls Recv, others may call the rest.
package client
