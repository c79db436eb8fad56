package volume

import "context"

// Archiver packs and unpacks archives within a workspace: src and dst are both
// paths of it, by the rules of [Files]. What packs writes dst whole or not at
// all, over a file that is there, and leaves dst itself and what is no file,
// directory or link out of the archive. The names in it begin with the last
// element of src, or with what is in the root. What unpacks makes the directory
// dst if it is missing, and merges into one that is there: files and links are
// replaced, but a directory by nothing else, and nothing else by a directory.
// When it fails, all is as it was.
//
// Archives are hostile. Names that are absolute, lead out or have a NUL, twice
// the same name, devices, pipes, sockets, hard links that lead out, symbolic
// links that are absolute or lead out, and writes through links are
// [ErrArchive]; so is what exceeds the limits. Setuid and setgid bits are
// dropped. Nothing of a box is run to unpack.
type Archiver interface {
	// Zip packs a file or tree. Links are stored as links.
	Zip(ctx context.Context, id, src, dst string) (ArchiveResult, error)
	Unzip(ctx context.Context, id, src, dst string, o ArchiveOptions) (ArchiveResult, error)
	// Tar packs a file or tree, with holes as holes.
	Tar(ctx context.Context, id, src, dst string) (ArchiveResult, error)
	Untar(ctx context.Context, id, src, dst string, o ArchiveOptions) (ArchiveResult, error)
	// Tgz is Tar with gzip.
	Tgz(ctx context.Context, id, src, dst string) (ArchiveResult, error)
	Untgz(ctx context.Context, id, src, dst string, o ArchiveOptions) (ArchiveResult, error)
	// Gzip compresses one file.
	Gzip(ctx context.Context, id, src, dst string) (ArchiveResult, error)
	// Gunzip writes the one file dst.
	Gunzip(ctx context.Context, id, src, dst string, o ArchiveOptions) (ArchiveResult, error)
}

// ArchiveOptions bound what an archive may hold. Zero fields mean the default
// in the comment.
type ArchiveOptions struct {
	MaxEntries int64 // default 1,000,000
	MaxBytes   int64 // unpacked; default 64 GiB
	MaxRatio   int64 // unpacked bytes for each packed one, beyond the first 64 MiB; default 200
	MaxDepth   int   // elements of a path; default 100
}

// ArchiveResult says what was packed or unpacked.
type ArchiveResult struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"` // of the files' contents
}
