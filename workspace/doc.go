// Package workspace makes and keeps file trees that outlive boxes.
//
// # Model
//
// A [Manager] makes workspaces on the nodes of a [registry.Registry], each on
// the volume of one node, and knows which node has which. A [Workspace] has an
// ID, unique over all nodes of a manager, a name, an owner and labels, which
// lie in a record beside its files, and a quota, which the node's file system
// enforces.
//
// The truth is at the nodes. A manager reads a node when it comes, and from
// then on remembers: Get and List answer from memory, also for a node that is
// away. What another manager of the same nodes makes is found by its ID, and
// not listed before the node comes again: a program has one manager of them.
//
// Paths are relative to the root of a workspace; see [volume.Files] for what
// is followed and refused. A file is written whole or not at all. Boxes that
// have a workspace mounted see what is written, and the other way round. One
// that is mounted, even in a stopped box, is not deleted; whoever is about to
// mount it takes a [Manager.Hold].
//
// # Errors
//
// Failures a caller may act on are sentinels to be tested with errors.Is; see
// [ErrNotFound] and its neighbours. While a node has not been heard of, a
// workspace that is not known is [ErrNodeOffline]: it may be there.
//
// # Concurrency
//
// All methods are safe for concurrent use. Updates of one workspace take
// turns; a delete waits for what holds it. No goroutine outlives a call.
//
// # Example
//
// See the example of [Manager].
package workspace
