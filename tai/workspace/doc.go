// Package workspace shows a workspace of a node as a file system of the
// standard library.
//
// # Model
//
// An [FS] is the files of one workspace, made by [New]: what reads any [fs.FS]
// reads it, and it writes too. Opening a file reads nothing yet; reading
// fetches it piece by piece, and a seek fetches from there. A file that is
// replaced meanwhile is read to its end as it was where the volume keeps it,
// else the read fails; it is never a mixture.
//
// # Errors
//
// As of package os: a *[fs.PathError] that matches [fs.ErrNotExist],
// [fs.ErrExist], [fs.ErrPermission], [fs.ErrInvalid] or [fs.ErrClosed], and
// the sentinel of tai/volume that it came of.
//
// # Concurrency
//
// An [FS] is safe for concurrent use, a file it opened is not, as in package
// os.
//
// # Example
//
// See the example of [FS].
package workspace
