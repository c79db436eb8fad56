// Package local keeps workspaces in a directory of this machine.
//
// # Model
//
// Each workspace is a directory below [Config].Dir, named by its id:
//
//	.workspace.json       its record
//	fs.img                the file system that has the rest, if it has a quota by image
//	fs/data/              the files, which boxes mount
//	fs/tmp/               what is half written; no box sees it
//	fs/snapshots/NAME/    kept states: tree/, index and snapshot.json
//
// What is in fs/data is hostile: boxes change it while it is read. All that is
// done there goes through an [os.Root] or, below a directory that is open, name
// by name without following links. Nothing waits for a pipe, and no device is
// opened.
//
// # Errors
//
// Those of package volume. [os.Root]'s answer to what leads out of a workspace
// is [volume.ErrFileDenied].
//
// # Concurrency
//
// All methods are safe for concurrent use by one process. Two processes must
// not have the same directory open.
//
// # Recovery by hand
//
// A directory whose name begins with .removing- is what is left of a deleted
// workspace, and one whose record says "creating" was never finished: both may
// be deleted, after umount of fs. [Open] does so. A directory that has lost its
// record is left alone and logged: with the record back it is a workspace again.
package local
