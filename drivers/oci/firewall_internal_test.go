package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/probe"
)

// apart runs f in a network namespace of its own.
func apart(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("root is needed")
	}
	err := probe.OnOwnThread(func() error {
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

// testFirewall is a firewall with given resolvers.
func testFirewall(log slog.Handler, lookup func() ([]netip.Addr, error)) *firewall {
	return &firewall{
		net: &network{instance: "abcdefab", slot: &slot{subnet: slotSubnet(0)}}, log: slog.New(log), tick: time.Hour, lookup: lookup,
	}
}

// nft runs the tool of that name.
func nft(args ...string) (string, error) {
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// sent lists where the questions to each nameserver go.
func (f *firewall) sent() (string, error) {
	out, err := nft("--numeric", "list", "table", f.tableName())
	if err != nil {
		return "", err
	}
	var to []string
	for line := range strings.Lines(out) {
		if _, addr, ok := strings.Cut(line, "dnat to "); ok && strings.Contains(line, "udp") {
			to = append(to, strings.TrimSpace(addr))
		}
	}
	return strings.Join(to, " "), nil
}

// The resolvers of the machine change while boxes run.
func TestFirewallFollowsResolvers(t *testing.T) {
	var now []netip.Addr
	var failure error
	f := testFirewall(slog.DiscardHandler, func() ([]netip.Addr, error) { return now, failure })
	s := f.net.slot
	apart(t, func() error {
		if err := f.open(); err != nil {
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
			got, err := f.sent()
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

// A moment without any resolver, as when resolv.conf is being written, leaves
// running boxes those that there were, whichever process looks.
func TestFirewallKeepsResolvers(t *testing.T) {
	const want = "9.9.9.9 10.0.0.2 9.9.9.9"
	known := func() ([]netip.Addr, error) { return addrs("9.9.9.9", "10.0.0.2"), nil }
	none := func() ([]netip.Addr, error) { return nil, nil }
	apart(t, func() error {
		asked := 0
		f := testFirewall(slog.DiscardHandler, func() ([]netip.Addr, error) {
			if asked++; asked == 1 {
				return known()
			}
			return none()
		})
		if err := f.follow(); err != nil {
			return err
		}
		if got, err := f.sent(); err != nil || got != want {
			t.Errorf("after a change: %q, %v", got, err)
		}
		f = testFirewall(slog.DiscardHandler, none)
		if err := f.open(); err != nil {
			return err
		}
		if got, err := f.sent(); err != nil || got != want || len(f.nameservers()) != 2 {
			t.Errorf("after opening: %q, nameservers %v, %v", got, f.nameservers(), err)
		}
		return nil
	})
}

// S05: whatever somebody does to the table, it is put back.
func TestS05FirewallIsPutBack(t *testing.T) {
	var log bytes.Buffer
	f := testFirewall(slog.NewTextHandler(&log, nil), func() ([]netip.Addr, error) { return addrs("9.9.9.9"), nil })
	apart(t, func() error {
		if err := f.open(); err != nil {
			return err
		}
		f.look()
		if log.Len() > 0 {
			t.Errorf("a table that nobody touched: %s", &log)
		}
		whole, err := nft("list", "table", f.tableName())
		if err != nil {
			return err
		}
		for _, harm := range []string{
			"flush ruleset",
			"delete table " + f.tableName(),
			"flush table " + f.tableName(),
			"flush chain " + f.tableName() + " input",
			"insert rule " + f.tableName() + " forward accept",
			"delete element " + f.tableName() + " closed { 10.0.0.0/8 }",
			"add table " + f.tableName() + " { flags dormant; }",
			"add chain " + f.tableName() + " other { type filter hook forward priority -5; policy accept; }",
		} {
			log.Reset()
			if _, err := nft(strings.Fields(harm)...); err != nil {
				return err
			}
			f.look()
			if got, err := nft("list", "table", f.tableName()); err != nil || got != whole {
				t.Errorf("%s: %v, the table is\n%s\nnot\n%s", harm, err, got, whole)
			}
			if !strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), f.tableName()) {
				t.Errorf("%s: logged %q", harm, &log)
			}
		}
		return nil
	})
}

// S05: the kernel says when the table is gone; nobody waits for the next look.
func TestS05FirewallHearsOfChanges(t *testing.T) {
	looks := make(chan struct{}, 100)
	f := testFirewall(slog.DiscardHandler, func() ([]netip.Addr, error) {
		select {
		case looks <- struct{}{}: // our table has been looked at
		default:
		}
		return addrs("9.9.9.9"), nil
	})
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the table is not put back"))
	defer cancel()
	apart(t, func() error {
		if err := f.open(); err != nil {
			return err
		}
		<-looks
		ns, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		harmed := make(chan error, 1)
		go func() {
			defer cancel()
			harmed <- probe.OnOwnThread(func() error {
				if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
					return err
				}
				<-looks
				if _, err := nft("flush", "ruleset"); err != nil {
					return err
				}
				for ctx.Err() == nil {
					if _, err := nft("list", "table", f.tableName()); err == nil {
						return nil
					}
				}
				return context.Cause(ctx)
			})
		}()
		f.run(ctx)
		return <-harmed
	})
}
