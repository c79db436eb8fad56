package oci

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// apart runs f in a network namespace of its own.
func apart(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is needed")
	}
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

// The resolvers of the machine change while boxes run.
func TestFirewallFollowsResolvers(t *testing.T) {
	s := &slot{subnet: slotSubnet(0)}
	var now []netip.Addr
	var failure error
	f := &firewall{
		net: &network{instance: "abcdefab", slot: s}, log: slog.New(slog.DiscardHandler),
		lookup: func() ([]netip.Addr, error) { return now, failure },
	}
	// sent lists where the questions to each nameserver go.
	sent := func() (string, error) {
		out, err := exec.Command("nft", "--numeric", "list", "table", f.tableName()).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("nft: %w: %s", err, out)
		}
		var to []string
		for line := range strings.Lines(string(out)) {
			if _, addr, ok := strings.Cut(line, "dnat to "); ok && strings.Contains(line, "udp") {
				to = append(to, strings.TrimSpace(addr))
			}
		}
		return strings.Join(to, " "), nil
	}
	apart(t, func() error {
		if err := f.install(); err != nil {
			return err
		}
		for _, c := range []struct {
			found   []netip.Addr
			failure error
			want    string
			names   int
		}{
			{nil, nil, "", 1},
			{addrs("9.9.9.9"), nil, "9.9.9.9 9.9.9.9 9.9.9.9", 1},
			{addrs("9.9.9.9", "10.0.0.2"), nil, "9.9.9.9 10.0.0.2 9.9.9.9", 2},
			{addrs("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"), nil, "10.0.0.1 10.0.0.2 10.0.0.3", 3},
			{nil, nil, "10.0.0.1 10.0.0.2 10.0.0.3", 3}, // while the file is written, say
			{nil, errors.New("test"), "10.0.0.1 10.0.0.2 10.0.0.3", 3},
		} {
			now, failure = c.found, c.failure
			if err := f.follow(); !errors.Is(err, c.failure) {
				return err
			}
			got, err := sent()
			if err != nil {
				return err
			}
			if n := len(f.nameservers()); got != c.want || n != c.names {
				t.Errorf("%v, %v: questions go to %q, boxes know %d nameservers; want %q and %d", c.found, c.failure, got, n, c.want, c.names)
			}
		}
		return nil
	})
	for i, a := range f.nameservers() {
		if !s.subnet.Contains(a) {
			t.Errorf("nameserver %d is %v", i, a)
		}
		for box := range boxesPerSlot {
			if s.addr(box) == a {
				t.Errorf("nameserver %d is box %d", i, box)
			}
		}
	}
}
