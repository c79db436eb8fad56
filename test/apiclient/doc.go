// Package apiclient is a client of the API that is generated from the
// description that the server serves: the test of that description.
//
// The tests use it against a server. After a change of the API `make gen`
// writes it anew.
package apiclient

//go:generate go run ./gen .
