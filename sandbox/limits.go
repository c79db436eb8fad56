package sandbox

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/taibox/taibox/internal/reason"
)

// census counts the boxes that are entered, those in the making too.
type census struct {
	owners, images, nodes map[string]int
}

func newCensus() census {
	return census{owners: map[string]int{}, images: map[string]int{}, nodes: map[string]int{}}
}

func (c *census) add(b *Box, n int) {
	for _, t := range []struct {
		counts map[string]int
		key    string
	}{{c.owners, b.owner}, {c.images, b.image}, {c.nodes, b.nodeID}} {
		if t.counts[t.key] += n; t.counts[t.key] == 0 {
			delete(t.counts, t.key)
		}
	}
}

// limitLocked refuses one box more than the limits allow, and says who holds
// the others.
func (m *Manager) limitLocked(p *blueprint) error {
	over := func(have, limit int) bool { return limit > 0 && have >= limit }
	var what string
	var have, limit int
	var held func(*Box) bool
	switch c := &m.cfg; {
	case over(m.count.owners[p.owner], c.MaxPerOwner):
		what, have, limit = fmt.Sprintf("owner %q has", p.owner), m.count.owners[p.owner], c.MaxPerOwner
		ids := m.idsLocked(func(b *Box) bool { return b.owner == p.owner })
		return tooMany(what, have, limit, some(ids))
	case over(m.count.images[p.spec.Image], c.MaxPerImage):
		what, have, limit = fmt.Sprintf("image %s has", p.spec.Image), m.count.images[p.spec.Image], c.MaxPerImage
		held = func(b *Box) bool { return b.image == p.spec.Image }
	case over(m.count.nodes[p.nodeID], c.MaxPerNode):
		what, have, limit = fmt.Sprintf("node %s has", p.nodeID), m.count.nodes[p.nodeID], c.MaxPerNode
		held = func(b *Box) bool { return b.nodeID == p.nodeID }
	case over(len(m.boxes), c.MaxTotal):
		what, have, limit = "there are", len(m.boxes), c.MaxTotal
		held = func(*Box) bool { return true }
	default:
		return nil
	}
	return tooMany(what, have, limit, "owner "+some(m.holdersLocked(held)))
}

func tooMany(what string, have, limit int, who string) error {
	err := fmt.Errorf("%w: %s %d of %d: %s", ErrTooManyContainers, what, have, limit, who)
	return reason.WithHint(err, "remove some, or raise the limit")
}

func (m *Manager) idsLocked(match func(*Box) bool) []string {
	var ids []string
	for _, b := range m.boxes {
		if match(b) {
			ids = append(ids, b.id)
		}
	}
	slices.Sort(ids)
	return ids
}

// holdersLocked names the owners of boxes, the one with the most first.
func (m *Manager) holdersLocked(match func(*Box) bool) []string {
	n := map[string]int{}
	for _, b := range m.boxes {
		if match(b) {
			n[b.owner]++
		}
	}
	owners := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(n[b]-n[a], strings.Compare(a, b))
	})
	for i, o := range owners {
		owners[i] = fmt.Sprintf("%q has %d", o, n[o])
	}
	return owners
}

// some names the first few.
func some(names []string) string {
	const named = 5
	if n := len(names); n > named {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), n-named)
	}
	return strings.Join(names, ", ")
}
