package oci

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// open takes the table over. Where no resolvers are found just now, those that
// an earlier process put there stay.
func (f *firewall) open() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, err := f.upstreams()
	if err == nil && len(found) == 0 {
		found, err = f.installedResolvers()
	}
	if err != nil {
		return err
	}
	return f.installLocked(found)
}

// run keeps the table as it is to be, and the instance's accept in other tables
// that drop forwarded packets, and follows the machine's resolvers. It looks
// whenever somebody has changed the machine's rules, and now and then.
func (f *firewall) run(ctx context.Context) {
	tick := time.NewTicker(f.tick)
	defer tick.Stop()
	var changed <-chan struct{}
	for {
		if changed == nil {
			var err error
			if changed, err = watchRules(ctx); err != nil {
				f.log.Warn("changes of the firewall are seen late", slog.Duration("dur", f.tick), slog.Any("err", err))
			}
		}
		f.look()
		select {
		case <-ctx.Done():
		case <-tick.C:
		case _, ok := <-changed:
			if !ok {
				changed = nil
			}
		}
		select {
		case <-ctx.Done():
			if changed != nil {
				for range changed { // until it is closed
				}
			}
			return
		case <-time.After(firewallRest):
		}
	}
}

// look sets right whatever is wrong.
func (f *firewall) look() {
	if err := f.ensure(); err != nil {
		f.log.Error("firewall of boxes is not in place", slog.Any("err", err))
	}
	if err := f.follow(); err != nil {
		f.log.Warn("boxes' DNS questions go to the resolvers that the machine had", slog.Any("err", err))
	}
	if err := f.openOthers(); err != nil {
		f.log.Warn("boxes may have no network: another table drops forwarded packets", slog.Any("err", err))
	}
}

// ensure installs the table again if it is not as it was installed: somebody
// has flushed the machine's rules, say.
func (f *firewall) ensure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	generation, generr := rulesGeneration()
	if generr == nil && generation == f.generation {
		return nil
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	for range layoutTries {
		// What cannot be read, or differs, may be changing at this moment.
		if now, err := f.layoutNow(c); err == nil && slices.Equal(now, f.layout) {
			if generr == nil {
				f.generation = generation
			}
			return nil
		}
	}
	if err := f.installLocked(f.resolvers); err != nil {
		return err
	}
	f.log.Error("firewall of boxes was changed by somebody else, and is in place again", slog.String("table", f.tableName()))
	return nil
}

const layoutTries = 3

// rulesGeneration is what the kernel counts up with each change of the
// machine's rules; it is never 0.
func rulesGeneration() (uint32, error) {
	const genID = 1 // NFTA_GEN_ID of linux/netfilter/nf_tables.h
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for the generation of nftables: %w", err)
	}
	for _, data := range answers {
		attrs, err := nl.ParseRouteAttr(data[min(nl.SizeofNfgenmsg, len(data)):])
		if err != nil {
			return 0, fmt.Errorf("generation of nftables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == genID && len(a.Value) == 4 {
				return binary.BigEndian.Uint32(a.Value), nil
			}
		}
	}
	return 0, errors.New("the kernel tells no generation of nftables")
}

// follow makes the table know the machine's resolvers as they are now. A moment
// without any is passed over.
func (f *firewall) follow() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	found, err := f.upstreams()
	if err != nil || len(found) == 0 || slices.Equal(found, f.resolvers) {
		return err
	}
	if err := f.installLocked(found); err != nil {
		return err
	}
	f.log.Info("boxes' DNS questions go to other resolvers", slog.Any("resolvers", found))
	return nil
}

// layoutNow names each part of the table by what nobody can change and keep:
// the kernel gives no handle twice. Without the table it is empty.
func (f *firewall) layoutNow(c *nftables.Conn) ([]string, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == f.tableName() })
	if i < 0 {
		return nil, nil
	}
	table := tables[i]
	layout := []string{fmt.Sprintf("table flags %x", table.Flags)}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, ch := range chains {
		if ch.Table.Name != table.Name {
			continue
		}
		layout = append(layout, fmt.Sprintf("chain %s %s %v %v %v", ch.Name, ch.Type, value(ch.Hooknum), value(ch.Priority), value(ch.Policy)))
		rules, err := c.GetRules(table, ch)
		if err != nil {
			return nil, fmt.Errorf("list rules of %s %s: %w", table.Name, ch.Name, err)
		}
		for _, r := range rules {
			layout = append(layout, fmt.Sprintf("rule %s %d", ch.Name, r.Handle))
		}
	}
	elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: closedSet})
	if err != nil {
		return nil, fmt.Errorf("list set %s of %s: %w", closedSet, table.Name, err)
	}
	for _, e := range elements {
		layout = append(layout, fmt.Sprintf("element %x %t", e.Key, e.IntervalEnd))
	}
	return layout, nil
}

// value is what p points at, for people; nil if it points nowhere.
func value[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// installedResolvers reads from the table where it sends questions to.
func (f *firewall) installedResolvers() ([]netip.Addr, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: f.tableName()}
	rules, err := c.GetRules(table, &nftables.Chain{Table: table, Name: dnsChain})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("list rules of %s %s: %w", table.Name, dnsChain, err)
	}
	var found []netip.Addr
	for _, r := range rules {
		for _, e := range r.Exprs {
			target, ok := e.(*expr.Immediate)
			if !ok {
				continue
			}
			if a, ok := netip.AddrFromSlice(target.Data); ok && !slices.Contains(found, a) {
				found = append(found, a)
			}
		}
	}
	return found, nil
}

// watchRules tells of changes of the machine's nftables, whoever makes them.
// Several may be told of at once. The channel is closed when nobody listens any
// more, at the latest when ctx ends.
func watchRules(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		file.Close()
		return nil, fmt.Errorf("listen for changes of nftables: %w", err)
	}
	changed := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { file.Close() })
	go func() {
		defer close(changed)
		defer file.Close()
		defer stop()
		buf := make([]byte, 1) // what has changed is looked up
		for {
			// ENOBUFS says that there were more changes than the kernel keeps.
			if _, err := file.Read(buf); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, nil
}
