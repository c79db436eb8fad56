package oci_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/taibox/taibox/drivers/oci"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// ownBridge gives an instance a bridge of its own, which a test may change.
func ownBridge(t *testing.T, cfg *oci.Config) {
	t.Helper()
	data, err := os.ReadFile(cfg.BridgePath)
	if err != nil {
		t.Fatal(err)
	}
	cfg.BridgePath = filepath.Join(t.TempDir(), "taibox-bridge")
	if err := os.WriteFile(cfg.BridgePath, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// S11: programs other than those of the build are not run.
func TestS11PinnedPrograms(t *testing.T) {
	machine(t)
	for name, pin := range map[string]func(*oci.Config, string) string{
		"runc":   func(c *oci.Config, sum string) string { c.RuncSHA256 = sum; return c.RuncPath },
		"bridge": func(c *oci.Config, sum string) string { c.BridgeSHA256 = sum; return c.BridgePath },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, instanceOf(t))
			sum := strings.Repeat("0", 64)
			path := pin(&cfg, sum)
			d, err := oci.Open(t.Context(), cfg)
			if err == nil {
				d.Close()
				t.Fatal("it is run")
			}
			if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), sum) || reason.Hint(err) == "" {
				t.Errorf("%v, hint %q", err, reason.Hint(err))
			}
		})
	}
}

// S11: what lies in the place of the bridge is looked at before each start.
func TestS11KeptBridge(t *testing.T) {
	machine(t)
	cfg := config(t, instanceOf(t))
	cfg.PoolSize = -1
	dismantle(t, cfg)
	ownBridge(t, &cfg)
	good, err := os.ReadFile(cfg.BridgePath)
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, cfg)
	kept, err := filepath.Glob(filepath.Join(cfg.DataDir, "bridge", "*", "taibox-bridge"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	foreign := []byte("#!/bin/sh\nsleep 1000\n")
	for name, harm := range map[string]func() error{
		"written": func() error { return os.WriteFile(kept[0], foreign, 0) },
		"cut":     func() error { return os.Truncate(kept[0], 100) },
		"removed": func() error { return os.Remove(kept[0]) },
		"one-byte": func() error {
			return os.WriteFile(kept[0], append(good[:len(good)-1:len(good)-1], good[len(good)-1]+1), 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := harm(); err != nil {
				t.Fatal(err)
			}
			started(t, d, sandbox.Spec{ID: name})
			if got, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(got, good) {
				t.Errorf("the copy is not put right: %v", err)
			}
			if err := d.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		})
	}
	// Nobody has a good one any more.
	for _, path := range []string{kept[0], cfg.BridgePath} {
		if err := os.WriteFile(path, foreign, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{ID: "b1", Image: sandbox.HostFS}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "b1"); err == nil || !strings.Contains(err.Error(), cfg.BridgePath) || reason.Hint(err) == "" {
		t.Errorf("a foreign bridge: %v, hint %q", err, reason.Hint(err))
	}
	if err := os.WriteFile(cfg.BridgePath, good, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "b1"); err != nil {
		t.Errorf("with the good one back: %v", err)
	}
}
