package oci

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/reason"
)

const (
	dnsPort = 53
	// maxResolvers is how many of them programs ask that read resolv.conf.
	maxResolvers = 3

	closedSet = "closed"     // names the closedRanges
	dnsChain  = "prerouting" // sends questions to the resolvers
)

// closedRanges are the IPv4 networks that no box reaches: private, shared,
// link-local, loopback, multicast and reserved ones. Metadata services are in
// them, but for Azure's platform address.
var closedRanges = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3",
}

// firewall is the instance's own nftables table. It outlives the server.
//
// What comes from a box may leave for public addresses, and reach the
// machine's resolvers through port 53 of the nameservers; all else is dropped.
type firewall struct {
	net    *network
	lookup func() ([]netip.Addr, error) // finds the resolvers, the preferred one first
	log    *slog.Logger
	tick   time.Duration // between looks that nothing gives a reason for

	mu         sync.Mutex   // held while the table is looked at or replaced
	resolvers  []netip.Addr // that the table knows
	layout     []string     // of the table as it was installed
	generation uint32       // of all rules when the table was as it was installed; 0 = unknown
}

func (f *firewall) tableName() string { return "taibox-" + f.net.instance }

// nameserver returns one of the addresses that stand for the machine's
// resolvers in boxes: the gateway, then what follows the boxes' addresses. Each
// stands for one, so that programs do what they always do when one is silent.
func (f *firewall) nameserver(i int) netip.Addr {
	if i == 0 {
		return f.net.slot.gateway()
	}
	return f.net.slot.addr(boxesPerSlot - 1 + i)
}

// nameservers returns what a box's resolv.conf is to name.
func (f *firewall) nameservers() []netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []netip.Addr
	for i := range max(len(f.resolvers), 1) {
		out = append(out, f.nameserver(i))
	}
	return out
}

// upstreams returns the resolvers that boxes' questions go to.
func (f *firewall) upstreams() ([]netip.Addr, error) {
	found, err := f.lookup()
	return found[:min(len(found), maxResolvers)], err
}

// installLocked replaces the table in one transaction, and turns forwarding on.
func (f *firewall) installLocked(resolvers []netip.Addr) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("turn IPv4 forwarding on: %w", err)
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	c := &transaction{Conn: conn}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: f.tableName()}
	c.AddTable(table) // so that the deletion finds one
	c.DelTable(table)
	table = c.AddTable(table)
	closed := &nftables.Set{Table: table, Name: closedSet, Interval: true, KeyType: nftables.TypeIPAddr}
	if err := c.AddSet(closed, closedElements()); err != nil {
		return fmt.Errorf("nftables set of closed ranges: %w", err)
	}
	f.addSource(c, table)
	f.addNAT(c, table, resolvers)
	f.addFilter(c, table, closed, resolvers)
	if err := c.Flush(); err != nil {
		err = fmt.Errorf("install nftables table %s: %w", f.tableName(), err)
		return reason.WithHint(err, "`taibox doctor` tells which part of nftables is missing")
	}
	layout, err := f.layoutNow(conn)
	if err != nil {
		return err
	}
	// How a kernel lists the elements of a set is its own affair.
	parts := 0
	for _, part := range layout {
		if !strings.HasPrefix(part, "element ") {
			parts++
		}
	}
	if want := c.made + 1; parts != want { // 1 for the table
		return fmt.Errorf("nftables table %s has %d parts just after it was installed with %d: somebody else changes it", f.tableName(), parts, want)
	}
	f.resolvers, f.layout = resolvers, layout
	return nil
}

// transaction counts the chains and rules that are added by it.
type transaction struct {
	*nftables.Conn
	made int
}

func (t *transaction) AddChain(c *nftables.Chain) *nftables.Chain {
	t.made++
	return t.Conn.AddChain(c)
}

func (t *transaction) AddRule(r *nftables.Rule) *nftables.Rule {
	t.made++
	return t.Conn.AddRule(r)
}

func closedElements() []nftables.SetElement {
	var out []nftables.SetElement
	for _, r := range closedRanges {
		p := netip.MustParsePrefix(r)
		first := p.Masked().Addr().As4()
		out = append(out, nftables.SetElement{Key: first[:]})
		end := binaryutil.BigEndian.Uint32(first[:]) + 1<<(32-p.Bits())
		if end != 0 { // the range that ends the address space has no end
			out = append(out, nftables.SetElement{Key: binaryutil.BigEndian.PutUint32(end), IntervalEnd: true})
		}
	}
	return out
}

// addSource binds boxes to their addresses: no packet passes that comes from
// where its answer would not go. The interfaces' own filter of reverse paths
// would do the same, did not the machine's setting overrule it.
func (f *firewall) addSource(c *transaction, table *nftables.Table) {
	pre := c.AddChain(&nftables.Chain{
		Name: "source", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: rule(f.fromBox(), noWayBack(), verdict(expr.VerdictDrop))})
}

// addNAT sends port 53 of the nameservers to the machine's resolvers, and gives
// what leaves the machine its address. Boxes may know more nameservers than
// there are resolvers by now.
func (f *firewall) addNAT(c *transaction, table *nftables.Table, resolvers []netip.Addr) {
	pre := c.AddChain(&nftables.Chain{
		Name: dnsChain, Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	for i := 0; i < maxResolvers && len(resolvers) > 0; i++ {
		for _, dns := range dnsQuestions() {
			exprs := rule(f.fromBox(), daddr(f.nameserver(i)), dns)
			exprs = append(exprs,
				&expr.Immediate{Register: 1, Data: resolvers[i%len(resolvers)].AsSlice()},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1})
			c.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: exprs})
		}
	}
	post := c.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: rule(
		saddrIn(f.net.slot.subnet), f.oif(expr.CmpOpNeq), []expr.Any{&expr.Masq{}})})
}

// addFilter closes the machine and everything that is not public.
func (f *firewall) addFilter(c *transaction, table *nftables.Table, closed *nftables.Set, resolvers []netip.Addr) {
	accept, drop := verdict(expr.VerdictAccept), verdict(expr.VerdictDrop)
	input := c.AddChain(&nftables.Chain{
		Name: "input", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter,
	})
	forward := c.AddChain(&nftables.Chain{
		Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	add := func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: rule(parts...)})
	}
	for _, r := range resolvers {
		for _, dns := range dnsQuestions() {
			// Others' tables send questions elsewhere too: those are not ours to let through.
			add(input, f.fromBox(), dnatted(), daddr(r), dns, accept)
			add(forward, f.fromBox(), dnatted(), daddr(r), dns, accept)
		}
	}
	add(input, f.fromBox(), drop)

	add(forward, f.fromBox(), f.oif(expr.CmpOpEq), refuse()) // other boxes
	add(forward, f.fromBox(), daddrIn(closed), refuse())
	add(forward, f.fromBox(), accept)
	add(forward, f.oif(expr.CmpOpEq), established(), accept)
	add(forward, f.oif(expr.CmpOpEq), drop)
}

// remove deletes the table, and what openOthers added elsewhere.
func (f *firewall) remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	for _, chain := range chains {
		ours, err := f.rulesIn(c, chain)
		if err != nil {
			return err
		}
		for _, r := range ours {
			if err := c.DelRule(r); err != nil {
				return fmt.Errorf("delete our rule in %s %s: %w", chain.Table.Name, chain.Name, err)
			}
		}
	}
	c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: f.tableName()})
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: f.tableName()})
	return c.Flush()
}

// openOthers adds an accept for the boxes' packets wherever another table's
// forward policy is drop: an accept in our own table does not overrule it.
// Our own table has decided by then what may pass.
func (f *firewall) openOthers() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	var errs []error
	for _, chain := range chains {
		if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward || chain.Policy == nil || *chain.Policy != nftables.ChainPolicyDrop {
			continue
		}
		if fam := chain.Table.Family; fam != nftables.TableFamilyIPv4 && fam != nftables.TableFamilyINet {
			continue
		}
		target := chain
		for _, other := range chains {
			if other.Table.Name == chain.Table.Name && other.Table.Family == chain.Table.Family && other.Name == "DOCKER-USER" {
				target = other
			}
		}
		errs = append(errs, f.openChain(c, target))
	}
	return errors.Join(errs...)
}

// openChain inserts our accepts at the head of a foreign chain, once.
func (f *firewall) openChain(c *nftables.Conn, chain *nftables.Chain) error {
	if ours, err := f.rulesIn(c, chain); err != nil || len(ours) > 0 {
		return err
	}
	accept := verdict(expr.VerdictAccept)
	for _, exprs := range [][]expr.Any{rule(f.fromBox(), accept), rule(f.oif(expr.CmpOpEq), established(), accept)} {
		c.InsertRule(&nftables.Rule{Table: chain.Table, Chain: chain, Exprs: exprs, UserData: userComment(f.tableName())})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("accept boxes in %s %s: %w", chain.Table.Name, chain.Name, err)
	}
	return nil
}

// rulesIn finds our rules in a foreign chain, by their comment.
func (f *firewall) rulesIn(c *nftables.Conn, chain *nftables.Chain) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return nil, fmt.Errorf("list rules of %s %s: %w", chain.Table.Name, chain.Name, err)
	}
	return slices.DeleteFunc(rules, func(r *nftables.Rule) bool {
		return !bytes.Equal(r.UserData, userComment(f.tableName()))
	}), nil
}

// userComment encodes a rule's comment as nft does, so that it is shown.
func userComment(text string) []byte {
	const comment = 0
	return append(append([]byte{comment, byte(len(text) + 1)}, text...), 0)
}

// The expressions that rules are put together from.

func rule(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func verdict(kind expr.VerdictKind) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: kind}}
}

// refuse drops a packet and says so at once: nobody waits for a time-out.
func refuse() []expr.Any {
	const adminProhibited = 13 // ICMP code of RFC 1812, 5.2.7.1
	return []expr.Any{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: adminProhibited}}
}

func (f *firewall) fromBox() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(f.net.interfacePrefix())}}
}

func (f *firewall) oif(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte(f.net.interfacePrefix())}}
}

func daddr(a netip.Addr) []expr.Any {
	return []expr.Any{loadIPv4(16), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: a.AsSlice()}}
}

func daddrIn(set *nftables.Set) []expr.Any {
	return []expr.Any{loadIPv4(16), &expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID}}
}

func saddrIn(p netip.Prefix) []expr.Any {
	mask := ^uint32(0) << (32 - p.Bits())
	return []expr.Any{
		loadIPv4(12),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.BigEndian.PutUint32(mask), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func loadIPv4(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

// noWayBack matches a packet whose source is not routed to where it comes from.
func noWayBack() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
	}
}

// dnsQuestions match what goes to a resolver's port, by UDP and by TCP.
func dnsQuestions() [][]expr.Any {
	return [][]expr.Any{dport(unix.IPPROTO_UDP, dnsPort), dport(unix.IPPROTO_TCP, dnsPort)}
}

func dport(proto byte, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

// established matches the replies to what boxes began.
func established() []expr.Any {
	return ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}

// dnatted matches what the prerouting chain has sent elsewhere.
func dnatted() []expr.Any {
	const ipsDstNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	return ctBits(expr.CtKeySTATUS, ipsDstNAT)
}

func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}
