package registry

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Local is the TaiID of the node that runs in, or beside, this program.
const Local = "local"

// The ways to reach a node, [NodeSnapshot.Mode].
const (
	ModeLocal  = "local"
	ModeDirect = "direct"
	ModeTunnel = "tunnel"
)

// Bounds of the hash in the TaiID of a tunnelled node.
const (
	tunnelPrefix = "tai-"
	minHashLen   = 6
	maxHashLen   = 52
)

// ValidateTaiID checks the form of a TaiID. The error wraps [ErrInvalidID].
func ValidateTaiID(id string) error {
	_, err := modeOf(id)
	return err
}

// modeOf returns how the node that id names is reached: its form says so.
func modeOf(id string) (string, error) {
	if id == Local {
		return ModeLocal, nil
	}
	if hash, ok := strings.CutPrefix(id, tunnelPrefix); ok {
		if len(hash) < minHashLen || len(hash) > maxHashLen || strings.ContainsFunc(hash, notHash) {
			return "", fmt.Errorf("%w: %.64q: after tai- from %d to %d of a-z and 0-9 are possible", ErrInvalidID, id, minHashLen, maxHashLen)
		}
		return ModeTunnel, nil
	}
	if i := strings.LastIndexByte(id, '-'); i > 0 && validPort(id[i+1:]) && validHost(id[:i]) {
		return ModeDirect, nil
	}
	return "", fmt.Errorf("%w: %.64q: local, <ip>-<port> and tai-<hash> are possible", ErrInvalidID, id)
}

func notHash(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == s
}

// validHost accepts an address in its one canonical spelling, so that a node
// has one name.
func validHost(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Is4() && a.String() == s
	}
	s = strings.ReplaceAll(s, "-", ":")
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is6() && a.Zone() == "" && a.String() == s
}
