package server

import (
	"slices"
	"testing"
)

func TestPage(t *testing.T) {
	at := func(n *int) cursor { return cursor{int64(*n), "x"} }
	odd := func(n *int) (int, bool) { return *n, *n%2 == 1 }
	list := []int{1, 2, 3, 4, 5, 6}
	after := func(n int) string { return at(&n).String() }
	for _, c := range []struct {
		p    Paging
		want []int
		next string
	}{
		{Paging{}, []int{1, 3, 5}, ""},
		{Paging{Limit: 3}, []int{1, 3, 5}, ""}, // what is hidden makes no further page
		{Paging{Limit: 2}, []int{1, 3}, after(3)},
		{Paging{Limit: 2, NextToken: after(3)}, []int{5}, ""},
		{Paging{Limit: 1, NextToken: after(2)}, []int{3}, after(3)}, // of one that is gone
		{Paging{NextToken: after(6)}, []int{}, ""},
	} {
		got, next, err := page(c.p, inOrder(slices.Clone(list), at), at, odd)
		if err != nil || !slices.Equal(got, c.want) || got == nil || next != c.next {
			t.Errorf("%+v: %v %q %v, want %v %q", c.p, got, next, err, c.want, c.next)
		}
	}
	got, _, err := page(Paging{}, inOrder([]int{3, 1, 5}, at), at, odd)
	if err != nil || !slices.Equal(got, []int{1, 3, 5}) {
		t.Errorf("not in order: %v %v", got, err)
	}
}
