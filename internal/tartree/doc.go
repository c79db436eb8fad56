// Package tartree packs file trees as tar streams and unpacks such streams.
//
// # Model
//
// [Pack] writes a file or a tree; [Unpack] makes the files of a stream below an
// [os.Root], so that nothing it does leads out of that directory, whatever the
// archive says and whoever changes the directory meanwhile. [Rename] gives a
// stream's tree another name on the way. All work in constant memory for a file
// of any size, and holes of files stay holes. Bounds are set for the number of
// entries and for the length and depth of names.
//
// An unpacking that is killed leaves a file named ".taibox-unpack-…". The next
// one into the same directory removes it, once it is a day old.
//
// # Errors
//
// [sandbox.ErrArchive] is an archive that is cut or has what none may have;
// all else wraps the error number of the system call.
package tartree
