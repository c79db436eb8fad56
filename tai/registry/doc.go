// Package registry knows the nodes of this program.
//
// # Model
//
// A node is entered as a [TaiNode]: what is known of it, and its client. It is
// named by its TaiID: "local", "<ip>-<port>" for a node that is called
// (colons of IPv6 written as dashes), or "tai-<hash>" for one that calls.
// [Global] is the registry of the process; tests make their own with [New].
//
// # Errors
//
// [ErrNotFound], [ErrAlreadyExists], [ErrInvalidID].
//
// # Concurrency
//
// All methods are safe for concurrent use. What a registry returns is a copy.
package registry
