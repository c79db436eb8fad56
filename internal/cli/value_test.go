package cli

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "512": 512, "1k": 1 << 10, "512m": 512 << 20, "512M": 512 << 20, "512mb": 512 << 20, "512MiB": 512 << 20,
		"1g": 1 << 30, "1.5g": 3 << 29, "0.5k": 512, "2t": 2 << 40, "1.0": 1, "10b": 10, "7e": 7 << 60,
	} {
		if got, err := parseSize(in); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "1.", "-1", "-512m", "+1", " 1", "1 ", "1 m", "m", ".5g", "1.5", "0.3k", "1x", "1mm", "1mib2", "1..5g", "1.2.3g", "0x10", "1e3", "1_000",
		"8e", "99999999999999999999", "NaN", "Inf", "1ib", "٣m", strings.Repeat("9", 100) + "m",
	} {
		if got, err := parseSize(in); err == nil {
			t.Errorf("parseSize(%q) = %d; want an error", in, got)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"512m", "1.5g", "-1", "9e", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parseSize(s); err == nil && n < 0 {
			t.Errorf("parseSize(%q) = %d", s, n)
		}
	})
}

func TestParseCPUs(t *testing.T) {
	for in, want := range map[string]float64{"1": 1, "1.5": 1.5, "0": 0, "0.25": 0.25} {
		if got, err := parseCPUs(in); err != nil || got != want {
			t.Errorf("parseCPUs(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "-1", "NaN", "Inf", "0x1p2", "1_0", "one", " 1"} {
		if got, err := parseCPUs(in); err == nil {
			t.Errorf("parseCPUs(%q) = %v; want an error", in, got)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for in, want := range map[string]int{"TERM": 15, "SIGTERM": 15, "kill": 9, "9": 9, "sigusr1": 10, "64": 64} {
		if got, err := parseSignal(in); err != nil || got != want {
			t.Errorf("parseSignal(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "-9", "65", "SIG", "SIGSIGTERM", "BOGUS"} {
		if got, err := parseSignal(in); err == nil {
			t.Errorf("parseSignal(%q) = %v; want an error", in, got)
		}
	}
}

func TestFormat(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 1536: "1.50 KiB", 10 << 20: "10.0 MiB", 300 << 30: "300 GiB", math.MaxInt64: "8.00 EiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("formatSize(%d) = %q, want %q", n, got, want)
		}
	}
	now := time.Now()
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Minute: "1h", 47 * time.Hour: "47h", 49 * time.Hour: "2d"} {
		if got := formatAge(now.Add(-d), now); got != want {
			t.Errorf("formatAge(%v ago) = %q, want %q", d, got, want)
		}
	}
}

func TestParseEnv(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(file, []byte("# a comment\n\nA=from file\r\n  B=x=y\nHERE\nGONE\nLAST=no newline"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := Env{LookupEnv: variables(map[string]string{"HERE": "ours", "ALSO": "too", "SET": ""})}
	got, err := env.parseEnv([]string{file}, []string{"A=from flag", "EMPTY=", "ALSO", "SET"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"A": "from flag", "B": "x=y", "HERE": "ours", "LAST": "no newline", "EMPTY": "", "ALSO": "too", "SET": ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}

	for name, text := range map[string]string{"no_name": "=x", "space_in_name": "A B=c"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "env")
			if err := os.WriteFile(file, []byte("OK=1\n"+text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := env.parseEnv([]string{file}, nil); err == nil || !strings.Contains(err.Error(), "line 2") {
				t.Errorf("parseEnv(%q) = %v; want an error that names line 2", text, err)
			}
		})
	}
	if _, err := env.parseEnv(nil, []string{"=x"}); err == nil {
		t.Error("a variable without a name was taken")
	}
	if _, err := env.parseEnv([]string{"/no/such"}, nil); err == nil {
		t.Error("a missing file was taken")
	}
}

func TestParseTmpfs(t *testing.T) {
	for in, want := range map[string]string{"/x": "/x", "/x:size=64m": "/x:size=67108864", "/x:size=100": "/x:size=100"} {
		if got, err := parseTmpfs(in); err != nil || got != want {
			t.Errorf("parseTmpfs(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "x", "/", "/x:rw", "/x:size=-1", "/x:size=0", "/x:size=1m,exec"} {
		if got, err := parseTmpfs(in); err == nil {
			t.Errorf("parseTmpfs(%q) = %q; want an error", in, got)
		}
	}
}
