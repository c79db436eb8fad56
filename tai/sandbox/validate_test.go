package sandbox_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// TestI01IDs: one grammar for all, and our own ids are within it.
func TestI01IDs(t *testing.T) {
	for _, id := range []string{"a", "0", "a-b", "x1", "con", strings.Repeat("x", sandbox.MaxIDLen)} {
		if err := sandbox.ValidateID(id); err != nil {
			t.Errorf("%q is refused: %v", id, err)
		}
	}
	for _, id := range []string{
		"", ".", "..", "a/b", "%2f", "A", "a_b", "a b", "-x", "x-", "a.b", "ä", "a\x00", "a\n", "a\u202e",
		strings.Repeat("x", sandbox.MaxIDLen+1), strings.Repeat("x", 300),
	} {
		if err := sandbox.ValidateID(id); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%q gives %v", id, err)
		}
	}
	seen := map[string]bool{}
	for range 100_000 {
		id := sandbox.NewID("box-")
		if err := sandbox.ValidateID(id); err != nil || seen[id] {
			t.Fatalf("our own id %q: %v, seen before %v", id, err, seen[id])
		}
		seen[id] = true
	}
	if err := sandbox.ValidateID(sandbox.NewID(strings.Repeat("x", 30))); err != nil {
		t.Errorf("with the longest prefix: %v", err)
	}
}

func FuzzValidateID(f *testing.F) {
	for _, s := range []string{"a", "-", "a/b", "ä", "a\x00b", strings.Repeat("x", 51)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if sandbox.ValidateID(id) != nil {
			return
		}
		if len(id) == 0 || len(id) > 63 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || id[0] == '-' || id[len(id)-1] == '-' {
			t.Errorf("%q is no DNS label", id)
		}
	})
}

func TestSpecValidate(t *testing.T) {
	none, evil := []string{}, []string{""}
	good := sandbox.Spec{
		ID: "a", Image: "x", Isolation: sandbox.IsolationContainer, Network: sandbox.NetworkNone, User: "a:b", WorkDir: "/",
		Env: map[string]string{"A": "b\n=", "_": ""}, Labels: map[string]string{"a.b/c": ""}, Hostname: "a.b-c",
		ExtraHosts: []string{"a:1.2.3.4", "b.c:::1"}, Entrypoint: &none, MemoryBytes: sandbox.MinMemoryBytes,
		CPUs: sandbox.MinCPUs, Pids: sandbox.MaxPids, OpenFiles: sandbox.MaxOpenFiles, Tmpfs: []string{"/a", "/b:size=1"},
	}
	if err := good.Validate(); err != nil {
		t.Fatalf("a good spec is refused: %v", err)
	}
	for name, c := range map[string]struct {
		spoil func(*sandbox.Spec)
		says  string
	}{
		"id":         {func(s *sandbox.Spec) { s.ID = "A" }, "id"},
		"image":      {func(s *sandbox.Spec) { s.Image = "" }, "image"},
		"isolation":  {func(s *sandbox.Spec) { s.Isolation = "x" }, "isolation"},
		"network":    {func(s *sandbox.Spec) { s.Network = "host" }, "network"},
		"memory":     {func(s *sandbox.Spec) { s.MemoryBytes = -1 }, "memory"},
		"memory-big": {func(s *sandbox.Spec) { s.MemoryBytes = math.MaxInt64 }, "memory"},
		"cpus":       {func(s *sandbox.Spec) { s.CPUs = math.NaN() }, "cpus"},
		"cpus-inf":   {func(s *sandbox.Spec) { s.CPUs = math.Inf(-1) }, "cpus"},
		"pids":       {func(s *sandbox.Spec) { s.Pids = -1 }, "pids"},
		"files":      {func(s *sandbox.Spec) { s.OpenFiles = math.MaxUint64 }, "open files"},
		"hostname":   {func(s *sandbox.Spec) { s.Hostname = "-a" }, "hostname"},
		"hosts":      {func(s *sandbox.Spec) { s.ExtraHosts = []string{"a\nb:1.2.3.4"} }, "extra host"},
		"tmpfs":      {func(s *sandbox.Spec) { s.Tmpfs = []string{"/a:size=0"} }, "tmpfs"},
		"entrypoint": {func(s *sandbox.Spec) { s.Entrypoint = &evil }, "command"},
		"user":       {func(s *sandbox.Spec) { s.User = "a b" }, "user"},
		"dir":        {func(s *sandbox.Spec) { s.WorkDir = "a" }, "directory"},
		"env":        {func(s *sandbox.Spec) { s.Env = map[string]string{"A=": ""} }, "environment"},
		"label":      {func(s *sandbox.Spec) { s.Labels = map[string]string{"": "x"} }, "label"},
		"label-utf8": {func(s *sandbox.Spec) { s.Labels = map[string]string{"a": "\xff"} }, "label"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			c.spoil(&bad)
			err := bad.Validate()
			if !errors.Is(err, sandbox.ErrInvalidSpec) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	bad := sandbox.Spec{Pids: -1, WorkDir: "x"}
	err := bad.Validate()
	for _, says := range []string{"id", "image", "pids", "directory"} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("of four mistakes %q is not named in %v", says, err)
		}
	}
}

func TestExecSpecValidate(t *testing.T) {
	for _, good := range []sandbox.ExecSpec{
		{Args: []string{"x"}},
		{Entrypoint: true},
		{Args: []string{"x", ""}, ID: "a", TTY: true, Size: sandbox.Size{Cols: 1, Rows: 10000}, Timeout: sandbox.MaxTimeout, OnDisconnect: "kill"},
		{Args: []string{"x"}, MaxLog: sandbox.MaxMaxLog},
	} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v is refused: %v", good, err)
		}
	}
	for name, bad := range map[string]sandbox.ExecSpec{
		"nothing":    {},
		"empty":      {Args: []string{""}},
		"id":         {Args: []string{"x"}, ID: "A"},
		"nul":        {Args: []string{"x", "\x00"}},
		"env-name":   {Args: []string{"x"}, Env: map[string]string{"\xff": "x"}},
		"timeout":    {Args: []string{"x"}, Timeout: -time.Second},
		"lease":      {Args: []string{"x"}, Lease: math.MaxInt64},
		"disconnect": {Args: []string{"x"}, OnDisconnect: "x"},
		"log":        {Args: []string{"x"}, MaxLog: -1},
		"long-log":   {Args: []string{"x"}, MaxLog: sandbox.MaxMaxLog + 1},
		"output":     {Args: []string{"x"}, MaxOutput: -1},
		"size":       {Args: []string{"x"}, Size: sandbox.Size{Rows: 1}},
	} {
		if err := bad.Validate(); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%s: the error is %v", name, err)
		}
	}
}

func TestParseTmpfs(t *testing.T) {
	for in, want := range map[string]int64{"/a": 0, "/a/b:size=4096": 4096} {
		if _, size, err := sandbox.ParseTmpfs(in); err != nil || size != want {
			t.Errorf("%q is %d, %v", in, size, err)
		}
	}
	for _, in := range []string{"", "/", "a", "/a:", "/a:size=", "/a:size=-1", "/a:size=1k", "/a:size=1,exec", "/a:mode=1"} {
		if _, _, err := sandbox.ParseTmpfs(in); !errors.Is(err, sandbox.ErrInvalidSpec) {
			t.Errorf("%q gives %v", in, err)
		}
	}
}

func TestFilterMatch(t *testing.T) {
	info := &sandbox.Info{State: sandbox.StateRunning, Labels: map[string]string{"a": "b", "empty": ""}}
	for _, c := range []struct {
		f    sandbox.Filter
		want bool
	}{
		{sandbox.Filter{}, true},
		{sandbox.Filter{Labels: map[string]string{"a": "b"}}, true},
		{sandbox.Filter{Labels: map[string]string{"a": "c"}}, false},
		{sandbox.Filter{Labels: map[string]string{"empty": ""}}, true},
		{sandbox.Filter{Labels: map[string]string{"absent": ""}}, false},
		{sandbox.Filter{States: []sandbox.State{sandbox.StateStopped}}, false},
		{sandbox.Filter{States: []sandbox.State{sandbox.StateStopped, sandbox.StateRunning}}, true},
	} {
		if got := c.f.Match(info); got != c.want {
			t.Errorf("%+v matches: %v", c.f, got)
		}
	}
}
