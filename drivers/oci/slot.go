package oci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/durable"
	"github.com/taibox/taibox/tai/sandbox"
)

// idsPerBox is the size of a box's user namespace: what images may use.
const idsPerBox = 1 << 16

// Each instance on a machine owns one slot: a range of host ids and a subnet.
const (
	slots         = 32
	boxesPerSlot  = 1 << 10
	firstHostID   = 1 << 28 // above what useradd and systemd give to people and services
	slotPrefixLen = 20
)

// slotRanges are the private subnets that slots are cut from. They are
// unusual on purpose; one that the machine has a route into is passed over.
var slotRanges = []netip.Prefix{netip.MustParsePrefix("10.213.0.0/16"), netip.MustParsePrefix("10.187.0.0/16")}

// slot is an instance's share of the machine's numbers.
type slot struct {
	number int
	subnet netip.Prefix
	lock   *os.File
}

// claimSlot takes the slot that the instance had, or the first that is free.
// A slot is held by a lock on its file; the name of the instance inside keeps
// it reserved while the instance's server is down and its boxes run.
func claimSlot(dir, instance, dataDir string) (*slot, error) {
	if err := mkdirs(0o711, dir); err != nil {
		return nil, fmt.Errorf("slot directory: %w", err)
	}
	taken := map[int]slotOwner{}
	for n := range slots {
		var o slotOwner
		if err := durable.ReadJSON(slotFile(dir, n), &o); err == nil {
			taken[n] = o
		}
	}
	bootID, err := bootID()
	if err != nil {
		return nil, err
	}
	mine := slotOwner{Instance: instance, DataDir: dataDir, BootID: bootID}
	for n, o := range taken {
		if o == mine {
			if s, err := tryClaim(dir, n, mine); err == nil {
				return s, nil
			}
		}
	}
	for n := range slots {
		if o, ok := taken[n]; ok && o.alive(bootID) {
			continue
		}
		s, err := tryClaim(dir, n, mine)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errSlotTaken) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("all %d slots of ids and addresses on this machine are taken by other instances (see %s): %w", slots, dir, sandbox.ErrUnsupported)
}

// slotOwner is what a slot's file says.
type slotOwner struct {
	Instance string `json:"instance"`
	DataDir  string `json:"data_dir"`
	BootID   string `json:"boot_id"`
}

// alive reports whether the owner may still have boxes.
func (o slotOwner) alive(bootID string) bool {
	if o.BootID != bootID {
		return false
	}
	_, err := os.Stat(o.DataDir)
	return err == nil
}

var errSlotTaken = errors.New("slot is taken")

func slotFile(dir string, n int) string { return filepath.Join(dir, strconv.Itoa(n)) }

func slotSubnet(n int) netip.Prefix {
	r := slotRanges[n*len(slotRanges)/slots]
	perRange := slots / len(slotRanges)
	b := r.Addr().As4()
	v := binary.BigEndian.Uint32(b[:]) + uint32(n%perRange)<<(32-slotPrefixLen)
	binary.BigEndian.PutUint32(b[:], v)
	return netip.PrefixFrom(netip.AddrFrom4(b), slotPrefixLen)
}

func tryClaim(dir string, n int, owner slotOwner) (_ *slot, err error) {
	f, err := os.OpenFile(slotFile(dir, n)+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("slot %d: %w", n, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errSlotTaken
	}
	var now slotOwner
	if err := durable.ReadJSON(slotFile(dir, n), &now); err == nil && now != owner && now.alive(owner.BootID) {
		return nil, errSlotTaken
	}
	subnet := slotSubnet(n)
	if now != owner {
		if used, err := subnetInUse(subnet); err != nil || used {
			return nil, errors.Join(err, errSlotTaken)
		}
		if err := durable.WriteJSON(slotFile(dir, n), owner); err != nil {
			return nil, fmt.Errorf("slot %d: %w", n, err)
		}
	}
	return &slot{number: n, subnet: subnet, lock: f}, nil
}

// subnetInUse reports whether the machine has an own route into a subnet.
func subnetInUse(subnet netip.Prefix) (bool, error) {
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ones, _ := r.Dst.Mask.Size()
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if ok && ones > 0 && netip.PrefixFrom(ip, ones).Overlaps(subnet) {
			return true, nil
		}
	}
	return false, nil
}

// hostID returns the first host id of the box with an index.
func (s *slot) hostID(index int) uint32 {
	return firstHostID + uint32(s.number*boxesPerSlot+index)*idsPerBox
}

// index is the opposite of hostID; -1 for an id that is not the first of a box.
func (s *slot) index(hostID uint32) int {
	i := (int(hostID)-firstHostID)/idsPerBox - s.number*boxesPerSlot
	if i < 0 || i >= boxesPerSlot || s.hostID(i) != hostID {
		return -1
	}
	return i
}

// addr returns the address of the box with an index.
func (s *slot) addr(index int) netip.Addr {
	b := s.subnet.Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(index)+2)
	return netip.AddrFrom4(b)
}

// gateway returns the address that boxes know the machine by.
func (s *slot) gateway() netip.Addr { return s.subnet.Addr().Next() }

func (s *slot) close() error { return s.lock.Close() }

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return string(b[:len(b)-1]), nil
}
