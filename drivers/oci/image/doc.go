// Package image keeps the images that boxes of this machine are made of.
//
// # Model
//
// A [Store] is a directory: blobs in containerd's content store, layers as the
// directories of containerd's overlayfs snapshotter, and names in containerd's
// bolt metadata. Each name leads to the manifest for this machine's platform;
// the manifest's labels lead to all else, so that containerd's garbage
// collector knows what is needed. Layers are unpacked while an archive is
// loaded and never change afterwards. They are handed out as plain directories
// for an overlay's lowerdir: owners, modes and capabilities are the image's
// own numbers, deletions are overlay whiteouts (character device 0:0, xattr
// trusted.overlay.opaque).
//
// An archive is hostile. Blobs are checked against their digests while they
// are read, layers against the diff ids of the image's configuration while
// they are unpacked; nothing in an archive reaches a file outside its own
// layer's directory; sizes, counts and ratios are bounded, see limits.go.
// Nothing outside this process is run.
//
// All that a load makes hangs on a lease that ends with it. A process that is
// killed leaves its leases behind: the next [Open] ends them, and collects
// what nothing else needs.
//
// # Errors
//
// Those of the contract, github.com/taibox/taibox/tai/sandbox.Image.
//
// # Concurrency
//
// A Store is safe for concurrent use. Loads run side by side; a layer that two
// of them need is unpacked once. A directory must be open once only, which the
// lock of the node's data directory sees to.
package image
