package cli

import "testing"

// TestListenAddress: only the machine's own server has a port that is known
// beforehand.
func TestListenAddress(t *testing.T) {
	for _, c := range []struct{ listen, dataDir, want string }{
		{"", defaultDataDir, ""},
		{"localhost", defaultDataDir, "localhost:7600"},
		{"::1", defaultDataDir, "[::1]:7600"},
		{"[::1]", defaultDataDir, "[::1]:7600"},
		{"127.0.0.1:", defaultDataDir, "127.0.0.1:7600"},
		{":7700", defaultDataDir, ":7700"},
		{"127.0.0.1:0", defaultDataDir, "127.0.0.1:0"},
		{"localhost", "/tmp/x", "localhost:0"},
		{"::1", "/tmp/x", "[::1]:0"},
		{"localhost:7600", "/tmp/x", "localhost:7600"},
	} {
		s := settings{DataDir: c.dataDir}
		s.Listen = c.listen
		if got := s.listenAddress(); got != c.want {
			t.Errorf("%q with data in %s: %q, want %q", c.listen, c.dataDir, got, c.want)
		}
	}
}

// TestTwoServersListen: servers with data of their own are not in each other's
// way, and say where they are.
func TestTwoServersListen(t *testing.T) {
	at := map[string]bool{}
	for range 2 {
		m := newMachine(t)
		m.vars = append(m.vars, "TAIBOX_LISTEN=localhost")
		m.mustRun("ls")
		at[m.server().Listen] = true
	}
	if len(at) != 2 || at[""] {
		t.Errorf("two servers listen at %v", at)
	}
}
