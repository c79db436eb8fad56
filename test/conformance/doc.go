// Package conformance holds every driver to the contract of tai/sandbox, and a
// server with the embedded one to what only the whole can keep: its secrets.
package conformance
