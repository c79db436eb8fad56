package probe

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// ForwardDrop is a base chain of somebody else that drops forwarded packets
// unless they are accepted in it: accepting them elsewhere is not enough.
type ForwardDrop struct {
	Family nftables.TableFamily
	Table  string
	Chain  string
	Owner  string // "docker", "ufw", "firewalld"; empty if not known
}

// String names the chain as nft does, with its owner.
func (d ForwardDrop) String() string {
	s := fmt.Sprintf("%s %s %s", familyName(d.Family), d.Table, d.Chain)
	if d.Owner != "" {
		s += " (" + d.Owner + ")"
	}
	return s
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	default:
		return fmt.Sprintf("family %d", f)
	}
}

// ForwardDrops asks the kernel who drops forwarded packets. Chains of our own
// tables, whose names begin with "taibox", are left out.
func ForwardDrops() ([]ForwardDrop, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	return forwardDrops(chains), nil
}

func forwardDrops(chains []*nftables.Chain) []ForwardDrop {
	var drops []ForwardDrop
	for _, c := range chains {
		if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || strings.HasPrefix(c.Table.Name, "taibox") {
			continue
		}
		owner := chainOwner(c, chains)
		// firewalld's chain accepts by policy and rejects by its last rule.
		if owner == "firewalld" || c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
			drops = append(drops, ForwardDrop{c.Table.Family, c.Table.Name, c.Name, owner})
		}
	}
	return drops
}

// chainOwner guesses who made a chain by the names in its table.
func chainOwner(c *nftables.Chain, chains []*nftables.Chain) string {
	if c.Table.Name == "firewalld" {
		return "firewalld"
	}
	if strings.HasPrefix(c.Table.Name, "docker-") {
		return "docker"
	}
	for _, other := range chains {
		if other.Table.Name != c.Table.Name || other.Table.Family != c.Table.Family {
			continue
		}
		switch {
		case strings.HasPrefix(other.Name, "ufw-"), strings.HasPrefix(other.Name, "ufw6-"):
			return "ufw"
		case other.Name == "DOCKER-USER":
			return "docker"
		}
	}
	return ""
}

func checkNftables(machine fs.FS) Check {
	const name = "nftables"
	drops, err := ForwardDrops()
	if err == nil {
		err = OnOwnThread(tryRules)
	}
	if c, ok := needsRoot(name, err); ok {
		return c
	}
	if err != nil {
		return Check{name, Fail, err.Error(), "load the modules " + firewallModules + "; boxes with --network none run without them"}
	}
	// The older interface is not asked: it has no listing without its tool.
	tables, err := fs.ReadFile(machine, "proc/net/ip_tables_names")
	legacy := err == nil && slices.Contains(strings.Fields(string(tables)), "filter")
	return nftablesCheck(drops, legacy)
}

// firewallModules are the kernel's modules for what the driver's rules say.
const firewallModules = "nf_tables, nft_chain_nat, nft_masq, nft_ct and nft_fib_ipv4"

// tryRules adds rules of each kind that the driver's have, in a network
// namespace that goes with its thread.
func tryRules() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make network namespace: %w", err)
	}
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "taibox-probe"})
	add := func(kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority, exprs ...expr.Any) {
		chain := c.AddChain(&nftables.Chain{Name: string(kind), Table: table, Type: kind, Hooknum: hook, Priority: priority})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	}
	add(nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw,
		&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}, &expr.Ct{Register: 1, Key: expr.CtKeySTATUS})
	add(nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, &expr.Masq{})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add nftables rules: %w", err)
	}
	return nil
}

func nftablesCheck(drops []ForwardDrop, legacy bool) Check {
	const name = "nftables"
	if legacy {
		return Check{
			name, Warn, "works; rules of iptables-legacy are loaded too, and may drop what boxes send",
			"see `iptables-legacy -S FORWARD`; move them to iptables-nft",
		}
	}
	if len(drops) == 0 {
		return Check{name, OK, "works; nobody else drops forwarded packets", ""}
	}
	names := make([]string, len(drops))
	rejects := false
	for i, d := range drops {
		names[i] = d.String()
		rejects = rejects || d.Owner == "firewalld"
	}
	detail := "works; forwarded packets are dropped by " + strings.Join(names, ", ")
	if rejects {
		return Check{name, Warn, detail, "firewalld rejects what its zones do not accept: put the boxes' interfaces into the zone trusted"}
	}
	return Check{name, OK, detail + "; the server adds an accept for boxes there", ""}
}

func checkForwarding(machine fs.FS) Check {
	const name = "ip_forward"
	data, err := fs.ReadFile(machine, "proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return Check{name, Warn, err.Error(), ""}
	}
	if strings.TrimSpace(string(data)) == "0" {
		return Check{name, OK, "off; the server turns it on", ""}
	}
	return Check{name, OK, "on", ""}
}

// Upstreams returns the resolvers that this machine asks, local stubs seen
// through, in the order of preference. Those on a loopback address are left
// out: nobody but the machine itself can ask them.
func Upstreams() []netip.Addr { return upstreams(os.DirFS("/")) }

func upstreams(machine fs.FS) []netip.Addr {
	found, stub := nameservers(machine, "etc/resolv.conf")
	if !stub {
		return found
	}
	// What the usual local stubs forward to.
	for _, file := range []string{"run/systemd/resolve/resolv.conf", "run/NetworkManager/no-stub-resolv.conf"} {
		behind, _ := nameservers(machine, file)
		if len(behind) != 0 {
			return behind
		}
	}
	return found
}

// nameservers reads the resolvers of a resolv.conf, and reports whether there
// are any on a loopback address.
func nameservers(machine fs.FS, file string) (found []netip.Addr, loopback bool) {
	data, err := fs.ReadFile(machine, file)
	if err != nil {
		return nil, false
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(fields[1])
		if err != nil {
			continue
		}
		switch addr = addr.Unmap(); {
		case addr.IsLoopback():
			loopback = true
		case !slices.Contains(found, addr):
			found = append(found, addr)
		}
	}
	return found, loopback
}

func checkDNS(machine fs.FS) Check {
	const name = "dns"
	found := upstreams(machine)
	names := make([]string, len(found))
	usable := false
	for i, a := range found {
		names[i] = a.String()
		usable = usable || a.Is4()
	}
	switch {
	case len(found) == 0:
		return Check{name, Warn, "no resolver found; boxes cannot look up names", "name one that is not on a loopback address in /etc/resolv.conf"}
	case !usable:
		return Check{
			name, Warn, "resolvers have IPv6 addresses only (" + strings.Join(names, ", ") + "); boxes have IPv4 and cannot ask them",
			"name a resolver with an IPv4 address in /etc/resolv.conf",
		}
	}
	return Check{name, OK, "resolvers " + strings.Join(names, ", "), ""}
}
