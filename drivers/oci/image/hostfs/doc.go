// Package hostfs makes the built-in image of this machine's own tools.
//
// # Model
//
// A box of hostfs has a root of its own, prepared here as one overlay layer:
// /etc is copied from a list, the users are ours, all else is empty and
// writable. On top of it the directories with the machine's programs are
// mounted read-only: /usr, and /bin, /sbin, /lib… where they are no links into
// it.
//
// What is mounted is an overlay of the directory over an empty one, not the
// directory itself: no file system that is mounted below it is seen, sockets
// in it lead nowhere, and since it is not id-mapped a box has no more rights
// on it than everybody has. One such overlay serves all boxes of an instance.
// The kernel does not notice when files below an overlay are replaced; so
// [HostFS.Use] looks at the places where programs are installed and mounts
// anew when one has changed. Boxes that run keep what they began with.
//
// The layer is named by a hash of what it was made from and never changes; a
// changed machine gets a new one beside it.
//
// # Errors
//
// Those of the kernel, wrapped; a full disk is sandbox.ErrNoSpace, a machine
// whose file system cannot be below an overlay sandbox.ErrUnsupported.
//
// # Concurrency
//
// A HostFS is safe for concurrent use. Its directories must be used by one
// HostFS at a time.
package hostfs
