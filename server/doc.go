// Package server is the HTTP API of Taibox, under /v1.
//
// # Model
//
// A [Server] translates: each handler asks the one [Authorizer], calls the
// manager and encodes what it says. JSON routes are declared to huma, which
// makes /openapi.json from them and checks each body; execs with live input
// and output are WebSockets (see session.go), archives and raw output are
// plain streams. The JSON itself is in api/rest.
//
// # Callers
//
// Over a Unix socket the peer must be root, the server's own user or, where
// the socket admits a group, whoever could open it; it is admin. No credential
// exists yet, so a request with one is refused wherever it comes from, and
// over anything but a Unix socket nobody is known. Host and Origin are checked
// before that.
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
