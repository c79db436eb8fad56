// Package sandbox is the contract for running boxes on one node.
//
// # Model
//
// A [Sandbox] runs boxes; an [Image] keeps what they are made of. A box is
// made by Create from a [Spec], runs between Start and Stop, and is gone after
// Remove. Commands run in it as execs: each has one record ([ExecInfo]), one
// log of its output counted in bytes ([Chunk]), and any number of readers
// ([Stream]), of which at most one is attached: it feeds the input, and it
// alone can hold the command back.
//
// The end of a stream is not the end of a command, and a broken connection is
// neither: an exec has ended when, and only when, its record says so.
//
// # Writing a driver
//
// Drivers under drivers/ implement [Sandbox] and [Image]. Passing the suite in
// sandboxtest is the definition of having done so. What a driver cannot do is
// absent from [Features] and fails with [ErrUnsupported]; what only some
// drivers can do is a small extra interface, found with [As].
//
// # Errors
//
// The sentinels of this package, wrapped with the verb and the object. Text is
// for people; test with errors.Is.
//
// # Concurrency
//
// All methods are safe for concurrent use, also on one box. Each returns soon
// after its context ends and leaves the box in a state that Inspect reports.
package sandbox
