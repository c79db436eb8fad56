// Package conformance holds every driver to the contract of tai/sandbox.
package conformance
