// Package volume is the contract for keeping workspaces on a node.
//
// # Model
//
// A workspace is a tree of files that outlives boxes and can be mounted in many
// of them at once. A [Volume] keeps the workspaces of one node: below the
// node's data directory, each under its id, with what its manager knows of it
// beside the data. What boxes write there is hostile: no link, race or name of
// theirs makes a volume read or write anything else. On disk, uid 0 is the
// workspace's owner; a mount maps it to the box's user.
//
// Passing volumetest is the definition of a volume.
//
// # Errors
//
// Failures are told by the sentinels of this package; those of files are the
// same as of the files of boxes.
//
// # Concurrency
//
// All methods are safe for concurrent use. Two writers of one file leave the
// whole of one of them.
package volume
