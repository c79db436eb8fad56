package sandbox_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/taibox/taibox/drivers/fake"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai"
	"github.com/taibox/taibox/tai/registry"
)

// BenchmarkManager measures what the manager adds to a node that takes no
// time, with few boxes and with many.
func BenchmarkManager(b *testing.B) {
	for _, boxes := range []int{1, 100_000} {
		cfg := sandbox.DefaultConfig()
		cfg.Registry = registry.New()
		d := fake.New()
		client := tai.NewClient(d, d)
		if err := cfg.Registry.Register(registry.TaiNode{NodeSnapshot: registry.NodeSnapshot{TaiID: node}, Client: client}); err != nil {
			b.Fatal(err)
		}
		m, err := sandbox.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		for i := range boxes {
			if _, err := m.Create(b.Context(), with(sandbox.CreateOptions{ID: fmt.Sprintf("b%d", i), IdleTimeout: 24 * time.Hour, MaxLifetime: 48 * time.Hour})); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("get/boxes=%d", boxes), func(b *testing.B) {
			for b.Loop() {
				if _, err := m.Get(b.Context(), "b0"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("timers/boxes=%d", boxes), func(b *testing.B) {
			for b.Loop() {
				m.Ring()
			}
		})
		b.Run(fmt.Sprintf("create_remove/boxes=%d", boxes), func(b *testing.B) {
			for b.Loop() {
				box, err := m.Create(b.Context(), with(sandbox.CreateOptions{}))
				if err != nil {
					b.Fatal(err)
				}
				if err := box.Remove(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("exec/boxes=%d", boxes), func(b *testing.B) {
			box, err := m.Get(b.Context(), "b0")
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := box.Exec(b.Context(), []string{"true"}); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := m.Close(); err != nil {
			b.Error(err)
		}
		if err := client.Close(); err != nil {
			b.Error(err)
		}
	}
}
