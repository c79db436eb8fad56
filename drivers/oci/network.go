package oci

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// boxInterface is the name of a box's interface inside it.
const boxInterface = "eth0"

// network connects boxes to the world. There is no bridge between them: each
// has a veth of its own, to which the machine routes its one address.
type network struct {
	instance string
	slot     *slot
}

// interfacePrefix begins the names of all interfaces of the instance.
func (n *network) interfacePrefix() string { return "tb" + n.instance }

func (n *network) interfaceName(index int) string {
	return fmt.Sprintf("%s%04x", n.interfacePrefix(), index)
}

// attach makes the veth of a pair, with the box's end inside.
func (n *network) attach(p pair, addr netip.Addr) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("network of %s: %w", p.dir, err)
		}
	}()
	ns, err := netns.GetFromPath(p.netNS())
	if err != nil {
		return err
	}
	defer ns.Close()
	name := n.interfaceName(p.index)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = boxInterface, netlink.NsFd(int(ns))
	err = netlink.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		// Of a box that is gone; the kernel has not got round to it.
		if err = n.detach(p.index); err == nil {
			err = netlink.LinkAdd(veth)
		}
	}
	if err != nil {
		return fmt.Errorf("make interface %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.detach(p.index))
		}
	}()
	if err := n.setUpInside(ns, addr); err != nil {
		return err
	}
	return n.setUpOutside(name, addr)
}

// setUpOutside makes the machine's end of a veth.
func (n *network) setUpOutside(name string, addr netip.Addr) error {
	for _, key := range []string{"ipv4/conf/%s/forwarding", "ipv6/conf/%s/disable_ipv6"} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", fmt.Sprintf(key, name)), []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("set "+key+": %w", name, err)
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: hostNet(n.slot.gateway()), Scope: unix.RT_SCOPE_LINK}); err != nil {
		return fmt.Errorf("address of %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(addr), Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("route to %s: %w", addr, err)
	}
	return nil
}

// setUpInside makes the box's end of a veth, and its loopback.
func (n *network) setUpInside(ns netns.NsHandle, addr netip.Addr) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer h.Close()
	if err := linkUp(h, "lo"); err != nil {
		return err
	}
	link, err := h.LinkByName(boxInterface)
	if err != nil {
		return fmt.Errorf("find the box's %s: %w", boxInterface, err)
	}
	if err := h.AddrAdd(link, &netlink.Addr{IPNet: hostNet(addr)}); err != nil {
		return fmt.Errorf("address of the box's %s: %w", boxInterface, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring the box's %s up: %w", boxInterface, err)
	}
	gateway := n.slot.gateway()
	if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: hostNet(gateway), Scope: netlink.SCOPE_LINK}); err != nil {
		return fmt.Errorf("route to the gateway: %w", err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

func linkUp(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("bring the box's %s up: %w", name, err)
	}
	return nil
}

// detach removes a box's interface. An absent one is fine.
func (n *network) detach(index int) error {
	link, err := netlink.LinkByName(n.interfaceName(index))
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", n.interfaceName(index), err)
	}
	return nil
}

// dump asks the kernel for a list, again when it changed under the answer.
func dump[T any](ask func() ([]T, error)) ([]T, error) {
	for range dumpTries {
		list, err := ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return nil, netlink.ErrDumpInterrupted
}

const dumpTries = 100

// hostNet is the network that holds one address.
func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
