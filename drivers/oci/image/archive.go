package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	dockerManifestFile = "manifest.json"
	blobDir            = "blobs/"
)

// archive is what was read of an image archive: its metadata files in memory,
// all else in the content store. Names are keys only, and never become paths.
type archive struct {
	cs    content.Store
	lease string

	meta  map[string][]byte
	files map[string]file
	links map[string]string // symbolic and hard links, to names
	blobs map[digest.Digest]file
}

// file is a file of an archive that is now a blob.
type file struct {
	digest digest.Digest
	size   int64
	head   []byte // its first bytes
}

func newArchive(cs content.Store, lease string) *archive {
	return &archive{
		cs: cs, lease: lease,
		meta: map[string][]byte{}, files: map[string]file{}, links: map[string]string{}, blobs: map[digest.Digest]file{},
	}
}

// readArchive reads a whole archive, to its end marker and beyond, so that a
// cut is noticed wherever it is. Blobs go into the content store under the
// lease of ctx.
func readArchive(ctx context.Context, cs content.Store, lease string, r io.Reader) (*archive, error) {
	a := newArchive(cs, lease)
	in := &meter{r: r}
	plain, err := decompress(in)
	if err != nil {
		return nil, blame(ctx, fmt.Errorf("read archive: %w", err))
	}
	defer plain.Close()
	out := &bounded{r: plain, limit: func() int64 { return expanded(in.n.Load()) }}
	if err := a.readTar(ctx, out); err != nil {
		return nil, blame(ctx, fmt.Errorf("read archive: %w", err))
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		return nil, blame(ctx, fmt.Errorf("read archive to its end: %w", err))
	}
	return a, nil
}

func (a *archive) readTar(ctx context.Context, r io.Reader) error {
	tail := &zeros{r: r}
	tr := tar.NewReader(tail)
	for n := 0; ; n++ {
		tail.n = 0
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			// The reader takes the end of its input for the end of the
			// archive; only a block of zeros is one.
			if tail.n < 512 {
				return corrupt("archive ends too early")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if n == maxArchiveEntries {
			return corrupt("more than %d files", maxArchiveEntries)
		}
		if err := a.entry(ctx, n, hdr, tr); err != nil {
			return fmt.Errorf("%.200q: %w", hdr.Name, err)
		}
	}
}

// entry keeps one file of the archive.
func (a *archive) entry(ctx context.Context, n int, hdr *tar.Header, r io.Reader) error {
	name := path.Clean(hdr.Name)
	switch hdr.Typeflag {
	case tar.TypeReg:
	case tar.TypeSymlink:
		a.links[name] = path.Join(path.Dir(name), hdr.Linkname)
		return nil
	case tar.TypeLink:
		a.links[name] = path.Clean(hdr.Linkname)
		return nil
	default:
		return nil
	}
	switch base := path.Base(name); {
	case name == ocispec.ImageLayoutFile, name == ocispec.ImageIndexFile, name == dockerManifestFile:
		data, err := readMetadata(r)
		a.meta[name] = data
		return err
	case base == "repositories", !strings.HasPrefix(name, blobDir) && (base == "json" || base == "VERSION"):
		// Of the first Docker format; all in them is said elsewhere too.
		_, err := io.Copy(io.Discard, r)
		return err
	}
	f, err := a.ingest(ctx, n, blobDigest(name), hdr.Size, r)
	if err != nil {
		return err
	}
	a.files[name] = f
	a.blobs[f.digest] = f
	return nil
}

func readMetadata(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxMetadataBytes+1))
	if err == nil && len(data) > maxMetadataBytes {
		err = corrupt("metadata of more than %d bytes", maxMetadataBytes)
	}
	return data, err
}

// blobDigest returns the digest that a name in an OCI layout promises, or "".
func blobDigest(name string) digest.Digest {
	alg, hex, ok := strings.Cut(strings.TrimPrefix(name, blobDir), "/")
	d := digest.NewDigestFromEncoded(digest.Algorithm(alg), hex)
	if !ok || !strings.HasPrefix(name, blobDir) || d.Validate() != nil {
		return ""
	}
	return d
}

// ingest writes a blob to the content store, or, where it is there already,
// only reads it; either way what was read has the digest that is returned.
func (a *archive) ingest(ctx context.Context, n int, want digest.Digest, size int64, r io.Reader) (_ file, err error) {
	head := make([]byte, min(size, int64(len(zstdMagic))))
	if _, err := io.ReadFull(r, head); err != nil {
		return file{}, err
	}
	algorithm := digest.Canonical
	if want != "" {
		algorithm = want.Algorithm()
	}
	sum := algorithm.Digester()
	dst := io.Writer(sum.Hash())

	ref := fmt.Sprintf("%s/%d", a.lease, n)
	w, err := content.OpenWriter(ctx, a.cs, content.WithRef(ref), content.WithDescriptor(ocispec.Descriptor{Digest: want, Size: size}))
	known := errdefs.IsAlreadyExists(err)
	if err != nil && !known {
		return file{}, err
	}
	if !known {
		defer func() {
			w.Close() //nolint:errcheck // after Commit there is nothing to lose
			if err != nil {
				// At once: a full disk has no room to note it for later.
				err = errors.Join(err, a.cs.Abort(context.WithoutCancel(ctx), ref))
			}
		}()
		st, err := w.Status()
		if err != nil {
			return file{}, err
		}
		if st.Offset == 0 { // else the bytes are there, and only a record of them is missing
			dst = io.MultiWriter(dst, w)
		}
	}
	r = io.MultiReader(bytes.NewReader(head), r)
	if copied, err := io.CopyBuffer(struct{ io.Writer }{dst}, r, make([]byte, 256<<10)); err != nil {
		return file{}, err
	} else if copied != size {
		return file{}, io.ErrUnexpectedEOF
	}
	got := sum.Digest()
	if want != "" && got != want {
		return file{}, corrupt("contents have digest %s", got)
	}
	if !known {
		if err := w.Commit(ctx, size, got); err != nil && !errdefs.IsAlreadyExists(err) {
			return file{}, err
		}
	}
	return file{digest: got, size: size, head: head}, nil
}

// resolve finds a file by name, through the archive's own links.
func (a *archive) resolve(name string) (file, bool) {
	name = path.Clean(name)
	for range maxIndexDepth {
		if f, ok := a.files[name]; ok {
			return f, true
		}
		to, ok := a.links[name]
		if !ok {
			break
		}
		name = to
	}
	return file{}, false
}

// blob returns a metadata blob that a descriptor leads to.
func (a *archive) blob(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if err := a.check(desc); err != nil {
		return nil, err
	}
	if desc.Size > maxMetadataBytes {
		return nil, corrupt("%s: metadata of %d bytes", desc.Digest, desc.Size)
	}
	return content.ReadBlob(ctx, a.cs, desc)
}

// check says whether a descriptor leads to a blob of this archive.
func (a *archive) check(desc ocispec.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return corrupt("digest %.200q: %w", desc.Digest, err)
	}
	f, ok := a.blobs[desc.Digest]
	if !ok {
		return corrupt("%s is not in the archive", desc.Digest)
	}
	if f.size != desc.Size {
		return corrupt("%s has %d bytes instead of %d", desc.Digest, f.size, desc.Size)
	}
	return nil
}
