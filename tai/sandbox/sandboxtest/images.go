package sandboxtest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"strings"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/taibox/taibox/internal/testimage"
	"github.com/taibox/taibox/tai/sandbox"
)

func images(e *env) {
	e.need(sandbox.FeatureImageImport)
	e.test("built-in", builtIn)
	e.test("load", load)
	e.test("load-names", loadNames)
	e.test("load-bad", loadBad)
	e.test("in-use", inUse)
	e.test("settings", imageSettings)
	e.test("exists", imageExists)
	e.test("commit", commit)
	e.test("prune", pruneImages)
}

// archive builds an OCI archive with one small layer.
func (e *env) archive(name string, mods ...func(*testimage.Image)) []byte {
	e.Helper()
	im := testimage.Image{
		Name:   name,
		Layers: []testimage.Layer{{testimage.Dir("etc", 0o755), testimage.File("etc/name", []byte(name), 0o644)}},
		Config: v1.ImageConfig{Env: []string{"A=b"}, WorkingDir: "/srv", Cmd: []string{"x"}},
	}
	for _, m := range mods {
		m(&im)
	}
	data, err := testimage.OCI(im)
	e.ok(err)
	return data
}

func (e *env) imageNames() []string {
	e.Helper()
	list, err := e.d.ListImages(e.ctx)
	e.ok(err)
	var names []string
	for _, im := range list {
		names = append(names, im.Name)
	}
	return names
}

func builtIn(e *env) {
	im, err := e.d.InspectImage(e.ctx, sandbox.HostFS)
	if errors.Is(err, sandbox.ErrImageNotFound) {
		e.Skip("this node has no built-in image")
	}
	e.ok(err)
	if !im.BuiltIn || im.Name != sandbox.HostFS || im.Platform == "" {
		e.Errorf("it is %+v", im)
	}
	if names := e.imageNames(); names[0] != sandbox.HostFS {
		e.Errorf("the images are %v", names)
	}
	if err := e.d.RemoveImage(e.ctx, sandbox.HostFS); err == nil {
		e.Error("the built-in image can be removed")
	}
	if _, err := e.d.Load(e.ctx, bytes.NewReader(e.archive("")), sandbox.HostFS); err == nil {
		e.Error("the built-in image can be replaced")
	}
}

func load(e *env) {
	const name = "example.test/load:1"
	docker, err := testimage.Docker(testimage.Image{Name: name, Layers: []testimage.Layer{{testimage.File("f", nil, 0o644)}}})
	e.ok(err)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(e.archive(name))
	e.ok(err)
	e.ok(z.Close())
	for how, data := range map[string][]byte{
		"oci":    e.archive(name),
		"none":   e.archive(name, func(im *testimage.Image) { im.Compression = testimage.None }),
		"zstd":   e.archive(name, func(im *testimage.Image) { im.Compression = testimage.Zstd }),
		"packed": packed.Bytes(),
		"docker": docker,
	} {
		before := e.imageNames()
		for range 2 {
			infos, err := e.d.Load(e.ctx, bytes.NewReader(data), "")
			e.ok(err)
			if len(infos) != 1 || infos[0].Name != name || infos[0].BuiltIn || infos[0].SizeBytes <= 0 {
				e.Fatalf("%s: loaded is %+v", how, infos)
			}
		}
		im, err := e.d.InspectImage(e.ctx, name)
		e.ok(err)
		byDigest, err := e.d.InspectImage(e.ctx, im.Digest)
		e.ok(err)
		if byDigest.Digest != im.Digest || im.Digest == "" || im.Platform == "" {
			e.Errorf("%s: by name it is %+v, by digest %+v", how, im, byDigest)
		}
		if names := e.imageNames(); !slices.Contains(names, name) || len(names) != len(before)+1 || !slices.IsSorted(names[1:]) {
			e.Errorf("%s: the images are %v", how, names)
		}
		e.reopened()
		if !slices.Contains(e.imageNames(), name) {
			e.Errorf("%s: after reopening it is gone", how)
		}
		e.ok(e.d.RemoveImage(e.ctx, name))
		e.wantErr(e.d.RemoveImage(e.ctx, name), sandbox.ErrImageNotFound)
		_, err = e.d.InspectImage(e.ctx, name)
		e.wantErr(err, sandbox.ErrImageNotFound)
		if names := e.imageNames(); !slices.Equal(names, before) {
			e.Errorf("%s: after its removal the images are %v", how, names)
		}
	}
}

func loadNames(e *env) {
	for _, c := range []struct{ in, given, want string }{
		{"example.test/a:1", "example.test/b:2", "example.test/b:2"},
		{"", "example.test/c:3", "example.test/c:3"},
		{"short", "", "short:latest"},
		{"", "docker.io/library/short:2", "short:2"},
	} {
		infos, err := e.d.Load(e.ctx, bytes.NewReader(e.archive(c.in)), c.given)
		e.ok(err)
		if len(infos) != 1 || infos[0].Name != c.want {
			e.Errorf("%q loaded as %q is %+v", c.in, c.given, infos)
		}
		im, err := e.d.InspectImage(e.ctx, c.want)
		e.ok(err)
		if !strings.Contains(c.want, "/") {
			full, err := e.d.InspectImage(e.ctx, "docker.io/library/"+c.want)
			e.ok(err)
			if full.Digest != im.Digest || full.Name != im.Name {
				e.Errorf("by its full name %s is %+v", c.want, full)
			}
		}
		e.ok(e.d.RemoveImage(e.ctx, c.want))
	}
}

// loadBad: of an archive that is not right nothing is kept.
func loadBad(e *env) {
	const name = "example.test/bad:1"
	good := e.archive(name)
	layer := bytes.Index(good, []byte{0x1f, 0x8b})
	corrupt := bytes.Clone(good)
	corrupt[layer+40] ^= 255
	before := e.imageNames()
	for how, c := range map[string]struct {
		data []byte
		name string
		want error
	}{
		"empty":    {nil, "", sandbox.ErrImageCorrupt},
		"no-tar":   {pattern(5000), "", sandbox.ErrImageCorrupt},
		"cut":      {good[:len(good)/2], "", sandbox.ErrImageCorrupt},
		"cut-soon": {good[:1000], "", sandbox.ErrImageCorrupt},
		"corrupt":  {corrupt, "", sandbox.ErrImageCorrupt},
		"platform": {e.archive(name, func(im *testimage.Image) { im.Architecture = "s390x" }), "", sandbox.ErrImagePlatform},
		"windows":  {e.archive(name, func(im *testimage.Image) { im.OS = "windows" }), "", sandbox.ErrImagePlatform},
		"name":     {good, "Not A Name", sandbox.ErrImageRef},
	} {
		_, err := e.d.Load(e.ctx, bytes.NewReader(c.data), c.name)
		if !errors.Is(err, c.want) {
			e.Errorf("%s: the error is %q; wanted is %q", how, errText(err), c.want)
		}
		if names := e.imageNames(); !slices.Equal(names, before) {
			e.Errorf("%s: the images are %v", how, names)
		}
	}
	_, err := e.d.Load(e.already(), bytes.NewReader(good), "")
	e.wantErr(err, errCause)
	// The good one is none the worse for it.
	_, err = e.d.Load(e.ctx, bytes.NewReader(good), "")
	e.ok(err)
	e.ok(e.d.RemoveImage(e.ctx, name))
	for _, ref := range []string{"UPPER", "a b", "..", "", "a:b:c"} {
		_, err := e.d.InspectImage(e.ctx, ref)
		e.wantErr(err, sandbox.ErrImageRef)
	}
}

func inUse(e *env) {
	const name, other = "example.test/used:1", "example.test/used:2"
	for _, n := range []string{name, other} {
		_, err := e.d.Load(e.ctx, bytes.NewReader(e.archive(name)), n)
		e.ok(err)
	}
	id := e.create(func(s *sandbox.Spec) { s.Image = name })
	e.ok(e.d.RemoveImage(e.ctx, other)) // another name of the same is left
	err := e.d.RemoveImage(e.ctx, name)
	e.wantErr(err, sandbox.ErrImageInUse)
	if err != nil && !bytes.Contains([]byte(err.Error()), []byte(id)) {
		e.Errorf("the error does not name the box: %q", err)
	}
	e.ok(e.d.Remove(e.ctx, id))
	e.ok(e.d.RemoveImage(e.ctx, name))
	_, err = e.d.Create(e.ctx, e.spec(func(s *sandbox.Spec) { s.Image = name }))
	e.wantErr(err, sandbox.ErrImageNotFound)
}

func imageSettings(e *env) {
	const name = "example.test/set:1"
	data := e.archive(name, func(im *testimage.Image) {
		im.Config.Entrypoint = []string{"/entry"}
		im.Config.Labels = map[string]string{"l": "v"}
		im.Config.User = "1000"
	})
	_, err := e.d.Load(e.ctx, bytes.NewReader(data), "")
	e.ok(err)
	im, err := e.d.InspectImage(e.ctx, name)
	e.ok(err)
	c := im.Config
	if !slices.Equal(c.Env, []string{"A=b"}) || c.WorkDir != "/srv" || !slices.Equal(c.Cmd, []string{"x"}) ||
		!slices.Equal(c.Entrypoint, []string{"/entry"}) || c.Labels["l"] != "v" || c.User != "1000" {
		e.Errorf("its settings are %+v", c)
	}
	id := e.create(func(s *sandbox.Spec) { s.Image = name })
	info := e.inspect(id)
	if info.WorkDir != "/srv" || info.User != "1000" || !slices.Equal(info.Entrypoint, c.Entrypoint) ||
		!slices.Equal(info.Cmd, c.Cmd) || info.ImageDigest != im.Digest {
		e.Errorf("a box of it is %+v", info)
	}
	e.ok(e.d.Remove(e.ctx, id))
	e.ok(e.d.RemoveImage(e.ctx, name))
}

func imageExists(e *env) {
	const name = "example.test/there:1"
	infos, err := e.d.Load(e.ctx, bytes.NewReader(e.archive(name)), "")
	e.ok(err)
	for ref, want := range map[string]bool{name: true, infos[0].Digest: true, "example.test/there:2": false} {
		if got, err := e.d.Exists(e.ctx, ref); got != want || err != nil {
			e.Errorf("%s is there: %v, %v", ref, got, err)
		}
	}
	_, err = e.d.Exists(e.ctx, "UPPER")
	e.wantErr(err, sandbox.ErrImageRef)
	e.ok(e.d.RemoveImage(e.ctx, name))
}

// pruneImages: what a box is made of stays, and a name is enough to stay
// unless all are to go.
func pruneImages(e *env) {
	const name = "example.test/prune:1"
	_, err := e.d.Load(e.ctx, bytes.NewReader(e.archive(name)), "")
	e.ok(err)
	id := e.create(func(s *sandbox.Spec) { s.Image = name })
	prune := func(all, goes bool) {
		e.Helper()
		removed, err := e.d.Prune(e.ctx, all)
		e.ok(err)
		went := slices.ContainsFunc(removed, func(im sandbox.ImageInfo) bool { return im.Name == name })
		if there := slices.Contains(e.imageNames(), name); went != goes || there == goes {
			e.Errorf("pruned are %+v; the image is there: %v", removed, there)
		}
	}
	prune(true, false) // it is in use
	e.ok(e.d.Remove(e.ctx, id))
	prune(false, false)
	prune(true, true)
}

// commit: an image of a box is the box's image with other settings and a
// layer more, and can be saved.
func commit(e *env) {
	const base, name = "example.test/base:1", "example.test/committed:1"
	_, err := e.d.Load(e.ctx, bytes.NewReader(e.archive(base)), "")
	e.ok(err)
	id := e.create(func(s *sandbox.Spec) { s.Image = base })
	cmd := []string{"other"}
	im, err := e.d.Commit(e.ctx, id, name, sandbox.ImageChange{Cmd: &cmd, Env: []string{"A=c", "D=e"}})
	if !e.has(sandbox.FeatureImageExport) {
		e.wantErr(err, sandbox.ErrUnsupported)
		e.wantErr(e.d.Save(e.ctx, []string{base}, io.Discard), sandbox.ErrUnsupported)
		return
	}
	e.ok(err)
	if c := im.Config; !slices.Equal(c.Cmd, cmd) || !slices.Equal(c.Env, []string{"A=c", "D=e"}) || c.WorkDir != "/srv" {
		e.Errorf("its settings are %+v", c)
	}
	_, err = e.d.Commit(e.ctx, "none", name, sandbox.ImageChange{})
	e.wantErr(err, sandbox.ErrNotFound)
	e.ok(e.d.Remove(e.ctx, id))
	var archive bytes.Buffer
	e.ok(e.d.Save(e.ctx, []string{name}, &archive))
	e.ok(e.d.RemoveImage(e.ctx, name))
	e.wantErr(e.d.Save(e.ctx, []string{name}, io.Discard), sandbox.ErrImageNotFound)
	again, err := e.d.Load(e.ctx, &archive, "")
	e.ok(err)
	if len(again) != 1 || again[0].Name != name || again[0].Digest != im.Digest {
		e.Errorf("saved and loaded it is %+v, was %+v", again, im)
	}
	e.ok(e.d.RemoveImage(e.ctx, name))
	e.ok(e.d.RemoveImage(e.ctx, base))
}
