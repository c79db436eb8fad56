// Package treesync makes one tree of files what another is.
//
// # Model
//
// [Sync] works on two sides of the kind [volume.SyncEnd]. It merges their two
// sorted indexes, has the files hashed of which only the time differs, and sends
// what is missing from one side's Fetch to the other's Apply in one stream.
// [Dir] is a directory of this machine as a side, [Tree] one that is reached in
// another way, and the functions of the wire form carry the calls of a side
// between machines.
//
// What is compared are kinds, permissions, contents and where links lead, and
// the times of files. Times of directories and links are not: they change with
// whatever is done around them. Set-user-ID and set-group-ID bits, owners and
// further attributes do not travel, and two names of one file become two files.
//
// A side is hostile to the other. Names on the wire are in order and bounded, of
// a stream nothing is taken that was not asked for, and what is kept of
// .gitignore files and of directories in each other is bounded, too.
//
// A sync that is killed leaves a file named ".taibox-sync-…" in a [Dir], which is
// in no index. The next one to the same directory removes it, once it is a day
// old and not in use.
//
// # Errors
//
// What another side sent and none may send is [volume.ErrArchive], and what a tree
// has too much of [volume.ErrTooLarge]. Other errors
// wrap the error number of the system call.
//
// # Concurrency
//
// A side may be used by many callers at once. Each name has, at any moment, the
// whole of one file.
package treesync
