// Package volumetest is the contract of tai/volume, as tests.
//
// # Model
//
// [Run] runs groups of tests against any volume. A group opens a volume of its
// own in an empty directory, beside which stands a canary: a tree that must be
// the same afterwards, byte for byte, with modes and owners. Tests play the box
// through the volume's MountPath: they plant links, pipes and odd names there.
//
// To add a test, write a function that takes an env and add it to its group.
//
// # Errors
//
// Tests ask for the sentinels of package volume, never for text.
//
// # Concurrency
//
// Groups run one after the other; within a group tests make workspaces of
// their own.
package volumetest
