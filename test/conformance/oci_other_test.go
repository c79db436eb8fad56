//go:build !linux

package conformance

func ociDrivers() []driver { return nil }
