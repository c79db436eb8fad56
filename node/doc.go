// Package node runs the node of a data directory in this process.
//
// # Model
//
// [Open] takes the data directory, gives it an identity and opens a driver on
// it; [Node.Register] enters the node in a registry, from where a
// sandbox.Manager uses it; [Node.Close] takes all that back in the opposite
// order. Boxes go on when a node is closed.
//
// A data directory has one owner at a time, held by a lock that the kernel
// lets go of when the owner ends, however it ends. It is private to the user:
// mode 0700. In it are
//
//	lock      held by the owner; the owner's pid
//	layout    the version of what follows, [Layout]
//	instance  8 hexadecimal characters, made once: they are in every
//	          machine-wide name of this node
//	workspaces  the node's volume, see tai/volume/local
//
// and what the driver keeps.
//
// # Errors
//
// [ErrInUse], [ErrDataDir], [ErrLayout]; each names the directory, and most
// say what to do (see internal/reason.Hint).
//
// # Concurrency
//
// All methods are safe for concurrent use.
package node
