package reason_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/reason"
)

var (
	errA = &reason.Error{Reason: "A", Msg: "a is wrong", Class: errdefs.ErrNotFound}
	errB = &reason.Error{Reason: "B", Msg: "b is wrong", Class: errdefs.ErrConflict}
)

func TestError(t *testing.T) {
	err := fmt.Errorf("get x: %w", errA)
	if !errors.Is(err, errA) || !errors.Is(err, errdefs.ErrNotFound) || errors.Is(err, errB) {
		t.Errorf("%v is not what it wraps", err)
	}
	if err.Error() != "get x: a is wrong" {
		t.Errorf("its text is %q", err)
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("x"), ""},
		{errA, "A"},
		{fmt.Errorf("outer %w: %w", errB, errA), "B"},
		{errors.Join(errors.New("x"), errA), "A"},
		{reason.WithHint(errA, "try"), "A"},
	} {
		if got := reason.Of(c.err); got != c.want {
			t.Errorf("the reason of %v is %q", c.err, got)
		}
	}
}

func TestTable(t *testing.T) {
	table := reason.NewTable([]*reason.Error{errA}, []*reason.Error{errB})
	if table["A"] != errA || table["B"] != errB || table["C"] != nil {
		t.Errorf("the table is %v", table)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name declared twice was accepted")
		}
	}()
	reason.NewTable([]*reason.Error{errA}, []*reason.Error{errB, errA})
}

func TestHint(t *testing.T) {
	if reason.WithHint(nil, "x") != nil {
		t.Error("advice made an error of nothing")
	}
	inner := reason.WithHint(errA, "inner")
	outer := reason.WithHint(fmt.Errorf("more: %w", inner), "outer")
	if reason.Hint(outer) != "outer" || reason.Hint(inner) != "inner" || reason.Hint(errA) != "" {
		t.Error("the advice is not the outermost one")
	}
	if outer.Error() != "more: a is wrong" || !errors.Is(outer, errA) {
		t.Errorf("advice changed the error to %v", outer)
	}
}
