// Package server is the HTTP API of Taibox, under /v1.
//
// # Model
//
// A [Server] translates: each handler asks the one [Authorizer], calls the
// manager and encodes what it says. JSON routes are declared to huma, which
// makes /openapi.json from them and checks each body; execs with live input
// and output are WebSockets (see session.go), archives and raw output are
// plain streams. The JSON itself is in api/rest. What happens to boxes is told by
// server-sent events, from the manager's own ring of recent ones, and counted in
// metrics for Prometheus, whose labels have no value that a caller chooses.
//
// # Callers
//
// A caller shows a key, of an owner or of an admin. Over a Unix socket none is
// needed if the peer is root, the server's own user or, where the socket
// admits a group, whoever could open it: it is admin. A wrong key is refused
// wherever it comes from. Host and Origin are checked before that. What a
// caller does ends with its key. The default authoriser is [Border]: a box of
// another owner is answered for, to the byte, as one that does not exist.
// What changes something and what is refused is written to the audit log.
//
// # Errors
//
// A handler returns an error; one function makes the answer of it (errors.go),
// with the status of internal/errmap. The text of a 500 is for the log: the
// caller gets the request's id to find it.
//
// # Stopping
//
// [Server.Run] ends within [StopTimeout] of its context, and ends no box and no
// exec: waits are answered with 503, WebSockets are closed with 1012, which
// tells the client to come again and resume.
package server
