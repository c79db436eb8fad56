// Package rest holds the JSON of the HTTP API: what server writes and
// internal/client reads.
//
// # Model
//
// One Go type for each JSON object under /v1, and [Frame] for the text frames
// of the WebSockets. Names are snake_case, times RFC 3339, sizes in bytes,
// durations in milliseconds with the suffix _ms; bytes that need not be text
// are base64 with the suffix _b64. A pointer that is absent means the server's
// default. Unknown names are refused.
//
// # Errors
//
// Every answer of 400 and above is an [ErrorBody], see [Failure]. [Reasons] lists the codes
// that belong to the API itself; the others are those of the packages that it
// speaks for.
//
// # Concurrency
//
// Plain values: a value may be read by several goroutines at once.
package rest
