// Package tartree packs file trees as tar streams and unpacks such streams.
//
// # Model
//
// [Pack] writes a file or a tree; [Unpack] makes the files of a stream below an
// [os.Root], so that nothing it does leads out of that directory, whatever the
// archive says and whoever changes the directory meanwhile. Both work in
// constant memory for a file of any size. Bounds are set for the number of
// entries and for the length and depth of names.
//
// # Errors
//
// [sandbox.ErrArchive] is an archive that is cut or has what none may have;
// all else wraps the error number of the system call.
package tartree
