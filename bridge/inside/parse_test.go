package inside

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nodd:x:-5:7::\n# comment\nbroken\n1001:x:1002:5::/n:\n"
	testGroup  = "root:x:0:\nann:x:1000:\ndev:x:50:ann,root\naudio:x:60:ann\n"
)

func TestFindUser(t *testing.T) {
	for spec, want := range map[string]account{
		"":          {0, 0, []uint32{50}, "/root"},
		"root":      {0, 0, []uint32{50}, "/root"},
		"ann":       {1000, 1000, []uint32{50, 60}, "/home/ann"},
		"1000":      {1000, 1000, []uint32{50, 60}, "/home/ann"},
		"ann:dev":   {1000, 50, nil, "/home/ann"},
		"ann:77":    {1000, 77, nil, "/home/ann"},
		"4242":      {4242, 0, nil, "/"},
		"4242:4343": {4242, 4343, nil, "/"},
	} {
		got, err := findUser(spec, []byte(testPasswd), []byte(testGroup))
		slices.Sort(got.groups)
		if err != nil || got.uid != want.uid || got.gid != want.gid || got.home != want.home || !slices.Equal(got.groups, want.groups) {
			t.Errorf("%q is %+v, %v; want %+v", spec, got, err, want)
		}
	}
	if got, err := findUser("4242", nil, nil); err != nil || got.uid != 4242 || got.home != "/" {
		t.Errorf("a number without files: %+v, %v", got, err)
	}
	for _, spec := range []string{"bob", "ann:nogroup", "odd", "-1", "99999999999", "4294967296", "2147483648"} {
		if got, err := findUser(spec, []byte(testPasswd), []byte(testGroup)); err == nil {
			t.Errorf("%q is %+v", spec, got)
		}
	}
}

// TestReadSmall is not caught by what a box may put in place of a file.
func TestReadSmall(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 1<<40); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, name := range []string{fifo, big, dir, "/dev/zero", "/dev/tty", filepath.Join(dir, "absent")} {
			if b, err := readSmall(name); err == nil {
				t.Errorf("%s gives %d bytes", name, len(b))
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("a read hangs")
	}
}

func TestParseStat(t *testing.T) {
	p, ok := parseStat(7, []byte("7 (a) R (b)) S 1 6 5 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"))
	if want := (process{pid: 7, parent: 1, group: 6, session: 5, start: 4711}); !ok || p != want {
		t.Errorf("%+v, %v", p, ok)
	}
	for _, s := range []string{"", "7 (x", "7 (x) S 1", "7 (x) S"} {
		if _, ok := parseStat(7, []byte(s)); ok {
			t.Errorf("%q is a process", s)
		}
	}
}

func TestParseOOMKills(t *testing.T) {
	for text, want := range map[string]int64{
		"low 0\nhigh 0\noom 9\noom_kill 3\noom_group_kill 7\n": 3,
		"oom_kill_disable 0\nunder_oom 0\noom_kill 4\n":        4,
		"oom_kill x\n": 0, "": 0,
	} {
		if got := parseOOMKills([]byte(text)); got != want {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestParseSocket(t *testing.T) {
	for _, c := range []struct {
		network, state, line string
		want                 wire.Port
		inode                string
	}{
		{
			"tcp", "0A", "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4242 1 0 100 0 0 10 0",
			wire.Port{Network: "tcp", Address: "127.0.0.1", Port: 8080},
			"4242",
		},
		{
			"tcp6", "0A", "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 7 1",
			wire.Port{Network: "tcp6", Address: "::1", Port: 80},
			"7",
		},
	} {
		p, inode, ok := parseSocket(c.network, c.state, c.line)
		if !ok || p != c.want || inode != c.inode {
			t.Errorf("%+v, %s, %v", p, inode, ok)
		}
	}
	for _, line := range []string{"", "sl local_address", strings.Repeat("x ", 12), "0: zz:1 0:0 0A a b c d e f", "0: 0100007F:1F90 0:0 01 a b c d e f"} {
		if _, _, ok := parseSocket("tcp", "0A", line); ok {
			t.Errorf("%q is a port", line)
		}
	}
}

func FuzzFindUser(f *testing.F) {
	f.Add("ann:dev", []byte(testPasswd), []byte(testGroup))
	f.Add("0", []byte("root:x:99999999999999999999:0"), []byte(":::"))
	f.Fuzz(func(t *testing.T, spec string, passwd, group []byte) {
		a, err := findUser(spec, passwd, group)
		if err == nil && (a.uid > 1<<31-1 || a.gid > 1<<31-1 || a.home == "") {
			t.Fatalf("%+v", a)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"op":"exec","body":{"id":"x","args":["dHJ1ZQ=="],"size":{"cols":80,"rows":24}}}`))
	f.Add([]byte(`{"v":2}`))
	f.Add([]byte(`{"v":1,"op":"kill","body":{"id":"x","signal":99}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var req wire.Request
		if decodeRequest(raw, &req) != nil {
			return
		}
		if req.Version != wire.Major {
			t.Fatal("another version passes")
		}
		if e, err := decode[wire.Exec](&req); err == nil && checkExec(e) == nil {
			if len(e.Args) == 0 || len(e.Dir) == 0 || e.User == "" || e.Size.Validate() != nil {
				t.Fatalf("%+v", e)
			}
			if _, err := json.Marshal(e); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func FuzzProc(f *testing.F) {
	f.Add([]byte("7 (a) S 1 6 5 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"))
	f.Add([]byte("   0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 0 1000 0 4242 1"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		parseStat(1, raw)
		parseOOMKills(raw)
		if p, _, ok := parseSocket("tcp", "0A", string(raw)); ok && (p.Port < 1 || p.Port > 65535) {
			t.Fatalf("%+v", p)
		}
	})
}
