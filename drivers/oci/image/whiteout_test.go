package image_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func white(name string) entry { return file(name, "") }

// checkLayers loads an image of layers and compares it, as mounted, with the model.
func checkLayers(t *testing.T, layers [][]entry) {
	t.Helper()
	s := open(t)
	want := model{}
	var tars [][]byte
	for _, l := range layers {
		tars = append(tars, tarOf(t, l...))
		want = want.apply(l)
	}
	load(t, s, ociArchive(t, img{name: "t:1", layers: tars}), "")
	got := readTree(t, mountImage(t, resolve(t, s, "t:1")))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
		for i, l := range layers {
			for _, e := range l {
				t.Logf("layer %d: %c %s -> %s", i, e.Typeflag, e.Name, e.Linkname)
			}
		}
	}
}

func TestR05Whiteouts(t *testing.T) {
	needRoot(t)
	base := []entry{
		dir("d"), file("d/a", "a"), dir("d/sub"), file("d/sub/x", "x"), file("f", "f"), symlink("l", "f"), dir("e"), file("e/b", "b"),
	}
	for name, layers := range map[string][][]entry{
		"file":                        {base, {white(".wh.f"), white("d/.wh.a")}},
		"directory":                   {base, {white(".wh.d")}},
		"symlink_not_its_target":      {base, {white(".wh.l")}},
		"delete_and_recreate":         {base, {white(".wh.d"), dir("d"), file("d/new", "new")}},
		"recreate_and_delete":         {base, {dir("d"), file("d/new", "new"), white(".wh.d")}},
		"recreate_implicitly":         {base, {white(".wh.d"), file("d/new", "new")}},
		"recreate_as_file":            {base, {white(".wh.d"), file("d", "file")}},
		"file_and_its_whiteout":       {base, {file("f", "new"), white(".wh.f")}},
		"opaque_first":                {base, {dir("d"), white("d/.wh..wh..opq"), file("d/new", "new")}},
		"opaque_after_siblings":       {base, {dir("d"), file("d/a", "mine"), dir("d/sub"), file("d/sub/y", "y"), white("d/.wh..wh..opq")}},
		"opaque_without_directory":    {base, {white("d/.wh..wh..opq")}},
		"opaque_of_what_is_not_there": {base, {white("no/.wh..wh..opq"), dir("new"), white("new/.wh..wh..opq"), file("new/n", "n")}},
		"opaque_root":                 {base, {white(".wh..wh..opq"), file("only", "only")}, {file("top", "top")}},
		"not_existing":                {base, {white(".wh.nothing"), white("d/.wh.nothing"), dir("new"), white("new/.wh.nothing")}},
		"in_the_lowest_layer":         {{white(".wh.x"), dir("d"), white("d/.wh.y"), file("d/z", "z"), white("d/.wh..wh..opq")}},
		"twice":                       {base, {white(".wh.d")}, {white(".wh.d")}},
		"and_back":                    {base, {white(".wh.d")}, {dir("d"), file("d/new", "new")}},
		"below_a_recreated_one":       {base, {white(".wh.d")}, {dir("d"), file("d/sub", "file")}, {white("d/.wh.sub"), white("d/.wh.a")}},
		"below_and_above":             {base, {white("d/.wh.a"), white(".wh.d")}},
		"above_and_opaque":            {base, {white(".wh.d"), white("d/sub/.wh..wh..opq")}},
		"through_a_file":              {base, {white("f/.wh.x")}},
		"through_a_link":              {append(base, symlink("dl", "d")), {white("dl/.wh.a")}},
		"file_dir_symlink_file": {
			{file("p", "1")},
			{dir("p"), file("p/q", "2")},
			{symlink("p", "elsewhere")},
			{dir("p"), file("p/r", "4")},
			{file("p", "5")},
		},
		"file_dir_symlink_file_in_one": {{file("p", "1"), dir("p"), file("p/q", "2"), symlink("p", "nowhere"), file("p", "5")}},
		"hard_link_to_below":           {base, {hardlink("d/h", "f"), hardlink("h2", "d/sub/x"), hardlink("h3", "l")}},
		"hard_link_across_a_whiteout":  {base, {hardlink("h", "f"), white(".wh.f")}},
		"whiteout_before_hard_link":    {base, {white(".wh.f"), hardlink("h", "f"), white(".wh.d"), hardlink("g", "d/sub/x")}},
		"hard_link_to_shadowed":        {base, {file("f", "new"), hardlink("h", "f")}, {hardlink("h2", "f"), file("f", "newer")}},
		"aufs_leftovers":               {base, {dir(".wh..wh.plnk"), file(".wh..wh.plnk/1.2", "x"), white(".wh..wh.aufs"), file("g", "g")}},
		"no_entries":                   {base, {}},
	} {
		t.Run(name, func(t *testing.T) { checkLayers(t, layers) })
	}
}

// TestR05RandomLayers compares many small images, made to clash, with the model.
func TestR05RandomLayers(t *testing.T) {
	needRoot(t)
	seeds := uint64(60)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var layers [][]entry
			lower := model{}
			for n := range 2 + r.IntN(4) {
				l := randomLayer(r, lower, fmt.Sprint(n))
				layers = append(layers, l)
				lower = lower.apply(l)
			}
			checkLayers(t, layers)
		})
	}
}

func randomLayer(r *rand.Rand, lower model, tag string) []entry {
	name := func() string {
		n := []string{"a", "b", "c"}[r.IntN(3)]
		for r.IntN(2) == 0 && len(n) < 6 {
			n += "/" + []string{"a", "b", "c"}[r.IntN(3)]
		}
		return n
	}
	var entries []entry
	own := model{}
	// A tar that has a file where it later has a directory is refused by all.
	blocked := func(n string) bool {
		for d := filepath.Dir(n); d != "."; d = filepath.Dir(d) {
			if w, ok := own[d]; ok && w != "dir" {
				return true
			}
		}
		return false
	}
	for i := range 1 + r.IntN(8) {
		n := name()
		switch r.IntN(8) {
		case 0, 1:
			entries = append(entries, white(filepath.Join(filepath.Dir(n), ".wh."+filepath.Base(n))))
			continue
		case 2:
			entries = append(entries, white(n+"/.wh..wh..opq"))
			continue
		}
		if blocked(n) {
			continue
		}
		e := file(n, fmt.Sprint(tag, i))
		switch r.IntN(5) {
		case 0, 1:
			e = dir(n)
		case 2:
			e = symlink(n, "nowhere")
		case 3:
			target := name()
			if what := lower[target]; what != "" && what != "dir" && own[target] == "" && !blocked(target) && target != n && !below(n, target) {
				e = hardlink(n, target)
			}
		}
		what := "dir"
		if e.Typeflag != '5' {
			what = "other"
		}
		own.put(n, what)
		entries = append(entries, e)
	}
	return entries
}

func TestWhiteoutsLeaveDirectoriesAsTheyWere(t *testing.T) {
	needRoot(t)
	s := open(t)
	private := dir("d").with(func(h *tarHeader) { h.Mode, h.Uid, h.Gid, h.ModTime = 0o2750, 12, 34, unixTime(1000) })
	inner := dir("d/e").with(func(h *tarHeader) { h.Mode, h.Uid, h.Gid, h.ModTime = 0o1711, 56, 78, unixTime(2000) })
	load(t, s, ociArchive(t, img{name: "t:1", layers: [][]byte{
		tarOf(t, private, inner, file("d/e/x", "x"), file("d/y", "y")),
		tarOf(t, white("d/e/.wh.x")),
	}}), "")
	at := mountImage(t, resolve(t, s, "t:1"))
	for name, want := range map[string]string{"d": "dgrwxr-x--- 12 34 1000", "d/e": "dtrwx--x--x 56 78 2000"} {
		if got := describe(t, filepath.Join(at, name)); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(at, "d/e/x")); err == nil {
		t.Error("the deleted file is there")
	}
}
