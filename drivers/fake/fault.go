package fake

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/tai/sandbox"
)

// ErrKilled is for faults: it ends the driver as kill -9 would at that step.
// Nothing is cleaned up, all its streams break, later calls fail. The next
// [Open] of the directory recovers.
var ErrKilled = errors.New("driver was killed")

// ErrFault is what a scripted error of [Failpoints] wraps when its text is not
// the name of a reason.
var ErrFault = fmt.Errorf("scripted failure: %w", errdefs.ErrInternal)

// Steps lists the steps of each call, in order. A call's last step, "done",
// comes after its work and before its answer.
func Steps() []string {
	return []string{
		"create.image", "create.rootfs", "create.network", "create.record", "create.done",
		"start.runtime", "start.bridge", "start.entrypoint", "start.done",
		"stop.term", "stop.runtime", "stop.record", "stop.done",
		"remove.kill", "remove.runtime", "remove.network", "remove.rootfs", "remove.record", "remove.done",
		"exec.start", "exec.done", "exec.attach", "exec.inspect", "exec.wait", "exec.kill",
		"inspect", "list", "stats", "ports", "dial",
		"image.load", "image.pull", "image.inspect", "image.list", "image.remove", "image.prune",
	}
}

// Failpoints returns a fault for [WithFault] from rules of the form
//
//	step:action->action…	each action being [N*]off, [N*]error(text) or [N*]kill
//
// The actions of a step happen one after the other: the first N calls of the
// step have the first action, and so on; the last one, without a number, goes
// on for ever. A text that names a reason ("NO_SPACE") gives that sentinel.
func Failpoints(rules ...string) (func(op, id string) error, error) {
	points := map[string]*failpoint{}
	for _, rule := range rules {
		op, terms, ok := strings.Cut(rule, ":")
		if !ok || !slices.Contains(Steps(), op) {
			return nil, fmt.Errorf("failpoint %q: step:action is expected", rule)
		}
		p := &failpoint{}
		for term := range strings.SplitSeq(terms, "->") {
			a, err := parseAction(term)
			if err != nil {
				return nil, fmt.Errorf("failpoint %q: %w", rule, err)
			}
			p.actions = append(p.actions, a)
		}
		points[op] = p
	}
	return func(op, _ string) error {
		if p := points[op]; p != nil {
			return p.next()
		}
		return nil
	}, nil
}

type action struct {
	left int // -1 for ever
	err  error
}

type failpoint struct {
	mu      sync.Mutex
	actions []action
}

func (p *failpoint) next() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.actions {
		switch a := &p.actions[i]; {
		case a.left < 0:
			return a.err
		case a.left > 0:
			a.left--
			return a.err
		}
	}
	return nil
}

func parseAction(term string) (action, error) {
	a := action{left: -1}
	if n, rest, ok := strings.Cut(term, "*"); ok {
		left, err := strconv.Atoi(n)
		if err != nil || left < 0 {
			return a, fmt.Errorf("%q is not a number of times", n)
		}
		a.left, term = left, rest
	}
	switch text, isError := strings.CutPrefix(term, "error("); {
	case term == "off":
	case term == "kill":
		a.err = ErrKilled
	case isError && strings.HasSuffix(text, ")"):
		text = strings.TrimSuffix(text, ")")
		if e := reason.NewTable(sandbox.Reasons())[text]; e != nil {
			a.err = e
		} else {
			a.err = fmt.Errorf("%s: %w", text, ErrFault)
		}
	default:
		return a, fmt.Errorf("unknown action %q", term)
	}
	return a, nil
}
