// Package fake runs boxes in memory, for tests of what lies above a driver.
//
// # Model
//
// [New] makes a driver with a machine of its own, [Open] one on the machine
// that a directory's name stands for: after [Driver.Close] its boxes and execs
// go on, and the next Open finds them. [Crash] is a restart of the machine,
// [Wipe] its end. Nothing is written to the directory.
//
// Commands are programs of this package ([Programs] lists them) or of the test
// ([WithProgram]), found by the base name of the first argument. There is no
// shell. Programs are goroutines; they end when their context does, so a test
// that lets them sleep for ever ends them with Remove, Crash or Wipe. All time
// comes from package time and nothing polls: it works under testing/synctest.
//
// Failures are scripted by [WithFault], which is asked at each step of each
// call, or by [Failpoints] in a small language.
//
// # Needs
//
// Nothing: no root, no processes, no network. Every feature is there; take
// some away with [WithoutFeatures].
//
// # Errors
//
// Those of the contract. Calls on a closed driver are of class Unavailable.
package fake
