package local_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/tai/volume/local"
)

// outside is a name that nothing inside a workspace has.
const outside = "only-outside-7d1e93"

// FuzzPaths makes any call with any path in a workspace full of links that lead
// out: nothing outside is read or changes.
func FuzzPaths(f *testing.F) {
	base := f.TempDir()
	canary := filepath.Join(base, "canary")
	if err := errors.Join(os.MkdirAll(filepath.Join(canary, "sub"), 0o755), os.WriteFile(filepath.Join(canary, "secret"), []byte("untouched"), 0o600),
		os.WriteFile(filepath.Join(canary, "sub", "secret"), []byte("untouched"), 0o600),
		os.WriteFile(filepath.Join(canary, outside), nil, 0o600), os.WriteFile(filepath.Join(canary, "sub", outside), nil, 0o600)); err != nil {
		f.Fatal(err)
	}
	v, err := local.Open(context.Background(), local.Config{Dir: filepath.Join(base, "node", "workspaces")})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { v.Close() })
	data := create(f, v, "ws", volume.Options{})
	restore := func() {
		old, _ := os.ReadDir(data)
		for _, e := range old {
			os.RemoveAll(filepath.Join(data, e.Name()))
		}
		for name, to := range map[string]string{
			"d/up": "../../../../../../canary", "d/abs": canary, "l": "d/up", "in": "d", "d/leak": canary + "/secret", "rel": "../../../../../canary/secret", "loop": "loop",
		} {
			os.MkdirAll(filepath.Dir(filepath.Join(data, name)), 0o755)
			os.Symlink(to, filepath.Join(data, name))
		}
		os.WriteFile(filepath.Join(data, "f"), []byte("inside"), 0o644)
	}
	for i, p := range []string{
		"f", "l/secret", "d/up/sub/secret", "in/up/secret", "rel", "d/leak", "..", "/etc/passwd", "in/../../x", "d/abs/sub", "./f", "f/.", "loop/x", "a//b", "\x00", "\xff", "...",
		"in/abs/sub/secret", "d/./up/../canary", "l", strings.Repeat("d/", 200), "in/in/in", "C:\\x", "%2e%2e/x",
	} {
		f.Add(byte(i), p, "x")
		f.Add(byte(i), "f", p)
	}
	ctx := context.Background()
	f.Fuzz(func(t *testing.T, op byte, p, q string) {
		restore()
		switch op % 10 {
		case 0:
			if got, err := v.ReadFile(ctx, "ws", p); err == nil && string(got) == "untouched" {
				t.Errorf("%q was read from outside", p)
			}
		case 1:
			v.WriteFile(ctx, "ws", p, strings.NewReader("written"), volume.WriteOptions{Parents: true})
		case 2:
			v.Remove(ctx, "ws", p, volume.RemoveOptions{All: true})
		case 3:
			v.Rename(ctx, "ws", p, q)
		case 4:
			v.Copy(ctx, "ws", p, q)
		case 5:
			v.MkdirAll(ctx, "ws", p, 0)
		case 6:
			for info, err := range v.Walk(ctx, "ws", p) {
				if err == nil && info.Name == outside {
					t.Errorf("a walk of %q went outside: %q", p, info.Path)
				}
			}
		case 7:
			if infos, err := v.ListDir(ctx, "ws", p); err == nil {
				for _, info := range infos {
					if info.Name == outside {
						t.Errorf("a list of %q is of the outside", p)
					}
				}
			}
		case 8:
			v.Stat(ctx, "ws", p)
			v.Remove(ctx, "ws", q, volume.RemoveOptions{})
		case 9:
			ctx, cancel := context.WithCancelCause(ctx)
			if events, err := v.Watch(ctx, "ws", p); err == nil {
				cancel(nil)
				for range events {
					continue
				}
			}
			cancel(nil)
		}
		for dir, want := range map[string]string{canary: outside + " secret sub", filepath.Join(canary, "sub"): outside + " secret", base: "canary node", filepath.Join(base, "node"): "workspaces"} {
			entries, err := os.ReadDir(dir)
			names := []string{}
			for _, e := range entries {
				names = append(names, e.Name())
			}
			if err != nil || strings.Join(names, " ") != want {
				t.Fatalf("op %d of %q and %q: outside is now %v, %v", op%10, p, q, names, err)
			}
		}
		for _, name := range []string{"secret", "sub/secret"} {
			if got, err := os.ReadFile(filepath.Join(canary, name)); err != nil || string(got) != "untouched" {
				t.Fatalf("op %d of %q and %q: outside was changed: %q, %v", op%10, p, q, got, err)
			}
		}
	})
}
