package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
)

// Boxes of one image, and on one node, are bounded; who holds them is said,
// and one that failed or is gone does not count.
func TestLimitsOfImageAndNode(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit func(*sandbox.Config)
		says  string
	}{
		{"image", func(c *sandbox.Config) { c.MaxPerImage = 2 }, `image hostfs has 2 of 2: owner "ann" has 1, "bob" has 1`},
		{"node", func(c *sandbox.Config) { c.MaxPerNode = 2 }, `node local has 2 of 2: owner "ann" has 1, "bob" has 1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := sandbox.DefaultConfig()
			c.limit(&cfg)
			fail := errors.New("no disk")
			r := newRigOn(t, fake.New(fake.WithFault(func(op, id string) error {
				if op == "create.rootfs" && strings.HasPrefix(id, "bad") {
					return fail
				}
				return nil
			})), nil, cfg)
			for _, err := range parallel(20, func(int) error {
				_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{ID: "bad"}))
				return err
			}) {
				if !errors.Is(err, fail) && !errors.Is(err, sandbox.ErrAlreadyExists) {
					t.Error(err)
				}
			}
			r.create(sandbox.CreateOptions{ID: "a", Owner: "ann"})
			b := r.create(sandbox.CreateOptions{ID: "b", Owner: "bob"})
			_, err := r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "eve"}))
			wantErr(t, err, sandbox.ErrTooManyContainers)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
			r.restart()
			_, err = r.m.Create(t.Context(), with(sandbox.CreateOptions{Owner: "eve"}))
			wantErr(t, err, sandbox.ErrTooManyContainers)
			must(t, r.m.Remove(t.Context(), b.ID()))
			r.create(sandbox.CreateOptions{ID: "c", Owner: "eve"})
			r.want("a", "c")
		})
	}
	for _, cfg := range []sandbox.Config{{Instance: "a", MaxPerImage: -1}, {Instance: "a", MaxPerNode: -1}} {
		if _, err := sandbox.New(cfg); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}
