// Package sandbox creates and keeps boxes on nodes.
//
// # Model
//
// A [Manager] makes boxes on the nodes of a [registry.Registry] and hands out
// a [Box] for each: a handle to run commands in, stop and remove. A box has an
// ID, unique over all nodes of a manager (see [taisandbox.ValidateID]), an
// owner, labels and a [LifecyclePolicy].
//
// The truth is at the nodes. What a manager must know again after a restart is
// in each box's labels; [Manager.Start] finds the boxes of its
// [Config.Instance] by them, removes what was half made, and goes on with what
// it had been doing. Boxes of other instances are not touched. Before Start a
// manager knows only what it made itself.
//
// Get and List answer from memory, which each node's events and a sweep each
// minute keep fresh; no call waits for another box or for a node that hangs. A
// box that vanished from its node is "failed" with the reason "lost" until it
// is removed.
//
// # Policies
//
// A [OneShot] box is removed once its first command has ended and its output
// was taken; also when that command could not be started, and when none was
// run within five minutes (one minute after a restart of the manager). If the
// reader went away without a word, the box and its output are kept for another
// minute. Boxes of the other policies stay until they are removed.
//
// # Errors
//
// The sentinels of this package; those of tai/sandbox are the same values.
//
// # Concurrency
//
// All methods are safe for concurrent use. Removes of one box join, and so
// does GetOrCreate with a create under way. [Manager.Close] ends all
// goroutines and detaches all streams; boxes and commands go on.
package sandbox
