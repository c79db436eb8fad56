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
// # Registries
//
// A pull looks its name up once and goes by digests from there on. Blobs come
// by containerd's resolver and fetcher, whose requests pass a guard that knows
// where plain HTTP and credentials may go. Each blob goes on where it was cut,
// and is committed only if its digest is right. What a failed pull fetched is
// held by a lease of an hour, for the next pull of the same name.
//
// # Errors
//
// Those of the contract, github.com/taibox/taibox/tai/sandbox.Image.
//
// # Concurrency
//
// A Store is safe for concurrent use. Loads and pulls run side by side; a blob
// that two of them need is fetched once, and a layer unpacked once. Pulls of one
// image by the same credentials are one pull, which ends early only when
// nobody waits for it any more. A directory must be open once only, which the
// lock of the node's data directory sees to.
package image
