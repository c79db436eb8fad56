// Package tai is the client for one node.
//
// # Model
//
// A [Client] gives access to what one node offers: its boxes
// ([Client.Sandbox]), its images ([Client.Image]) and its workspaces
// ([Client.Volume], [Client.Workspace]). Who uses it cannot tell where the
// node runs. [NewClient] makes the client of a node that runs in
// this process, as package node opens it.
//
// # Errors
//
// Those of tai/sandbox and tai/volume. A node that cannot be reached fails with the class
// errdefs.ErrUnavailable.
//
// # Concurrency
//
// All methods are safe for concurrent use.
package tai
