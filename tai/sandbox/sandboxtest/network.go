package sandboxtest

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func network(e *env) {
	e.cases([]testCase{
		{"none", networkNone},
		{"internet", networkInternet},
	})
}

func (e *env) interfaces(id string) []string {
	e.Helper()
	return strings.Fields(string(e.run(id, e.commands.Interfaces()).Stdout))
}

func networkNone(e *env) {
	e.need(sandbox.FeatureNetworkNone)
	id := e.started(func(s *sandbox.Spec) { s.Network = sandbox.NetworkNone })
	if ifs := e.interfaces(id); !slices.Equal(ifs, []string{"lo"}) {
		e.Errorf("the interfaces are %v", ifs)
	}
	if info := e.inspect(id); info.IP != "" || info.Network != sandbox.NetworkNone {
		e.Errorf("it has the network %s with %q", info.Network, info.IP)
	}
}

func networkInternet(e *env) {
	e.need(sandbox.FeatureNetwork)
	a, b := e.started(), e.started()
	if ifs := e.interfaces(a); len(ifs) != 2 {
		e.Errorf("the interfaces are %v", ifs)
	}
	ia, ib := e.inspect(a), e.inspect(b)
	if _, err := netip.ParseAddr(ia.IP); err != nil || ia.IP == ib.IP || ia.Network != sandbox.NetworkInternet {
		e.Errorf("two boxes have the addresses %q and %q in %s", ia.IP, ib.IP, ia.Network)
	}
}

func ports(e *env) {
	e.need(sandbox.FeaturePorts)
	e.cases([]testCase{
		{"listed-and-dialled", listedAndDialled},
		{"refused", portRefused},
		{"boxes-apart", portsApart},
	})
}

// listening starts a server and waits until it is one.
func (e *env) listening(id string, port int) sandbox.Stream {
	e.Helper()
	s := e.stream(id, e.commands.Listen(port))
	e.waitFor(s, "ready")
	e.eventually("the port is listed", func() bool {
		list, err := e.d.Ports(e.ctx, id)
		e.ok(err)
		return slices.ContainsFunc(list, func(p sandbox.Port) bool { return p.Port == port && strings.HasPrefix(p.Network, "tcp") })
	})
	return s
}

func listedAndDialled(e *env) {
	const port = 8123
	id := e.started()
	if list, err := e.d.Ports(e.ctx, id); err != nil || slices.ContainsFunc(list, func(p sandbox.Port) bool { return p.Port == port }) {
		e.Errorf("before anything listens there are %v, %v", list, err)
	}
	s := e.listening(id, port)
	for _, err := range concurrently(5, func(i int) error {
		c, err := e.d.Dial(e.ctx, id, port)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(e.patience)); err != nil {
			return err
		}
		in := pattern(100_000 + i)
		go c.Write(in)
		out := make([]byte, len(in))
		if _, err := io.ReadFull(c, out); err != nil {
			return err
		}
		if string(out) != string(in) {
			return fmt.Errorf("connection %d got something else back", i)
		}
		return nil
	}) {
		e.ok(err)
	}
	e.ok(e.d.KillExec(e.ctx, id, s.ID(), sandbox.KillOptions{Signal: 9, Tree: true}))
	e.wait(id, s.ID())
	e.eventually("the port is free", func() bool {
		list, err := e.d.Ports(e.ctx, id)
		e.ok(err)
		return !slices.ContainsFunc(list, func(p sandbox.Port) bool { return p.Port == port })
	})
	_, err := e.d.Dial(e.ctx, id, port)
	e.wantErr(err, sandbox.ErrPortRefused)
}

func portRefused(e *env) {
	id := e.box()
	_, err := e.d.Dial(e.ctx, id, 9)
	e.wantErr(err, sandbox.ErrPortRefused)
	for _, port := range []int{-1, 0, 65536} {
		_, err := e.d.Dial(e.ctx, id, port)
		e.wantErr(err, sandbox.ErrInvalidSpec)
	}
}

func portsApart(e *env) {
	a, b := e.started(), e.started()
	e.listening(a, 8124)
	if _, err := e.d.Dial(e.ctx, b, 8124); err == nil {
		e.Error("a box answers on a port of another one")
	}
	e.listening(b, 8124)
}
