package server

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/taibox/taibox/api/rest"
)

const (
	// maxPage bounds a page of a list, and is the size of one that was not given.
	maxPage = 1000
	// maxFilePage does so for lists of which each page takes a look at all: a
	// client that wants all of a large one should not ask that often.
	maxFilePage = 10_000
)

// Paging is the part of a list's query that says which page is asked for. It is
// exported for huma, which looks into it.
type Paging struct {
	Limit     int    `query:"limit" doc:"Items on a page; default and most 1000, of files and changes 10,000"`
	NextToken string `query:"next_token" doc:"What the page before returned"`
}

// page returns the part of a list that is asked for, and the token that asks
// for the next one. The list is in the order of its places; show makes the
// answer of an item, or says that it is not for the caller.
func page[T, R any](p Paging, list iter.Seq[T], at func(*T) cursor, show func(*T) (R, bool)) (items []R, next string, err error) {
	return pageUpTo(maxPage, p, list, at, show)
}

// pageUpTo is page for lists whose pages may be of another size.
func pageUpTo[T, R any](most int, p Paging, list iter.Seq[T], at func(*T) cursor, show func(*T) (R, bool)) (items []R, next string, err error) {
	limit, err := pageSize(p.Limit, most)
	if err != nil {
		return nil, "", err
	}
	after, err := parseCursor(p.NextToken)
	if err != nil {
		return nil, "", err
	}
	items = []R{}
	var last cursor
	for item := range list {
		place := at(&item)
		if !place.after(after) {
			continue
		}
		r, shown := show(&item)
		switch {
		case !shown:
		case len(items) == limit:
			return items, last.String(), nil
		default:
			items, last = append(items, r), place
		}
	}
	return items, "", nil
}

// pageSize is how much of a list is asked for.
func pageSize(limit, most int) (int, error) {
	switch {
	case limit < 0 || limit > most:
		return 0, fmt.Errorf("%w: limit of %d: from 1 to %d are possible", rest.ErrRequest, limit, most)
	case limit == 0:
		return most, nil
	}
	return limit, nil
}

// inOrder returns a list in the order of its places.
func inOrder[T any](list []T, at func(*T) cursor) iter.Seq[T] {
	slices.SortFunc(list, func(a, b T) int { return at(&a).compare(at(&b)) })
	return slices.Values(list)
}

// always shows every item.
func always[T, R any](show func(*T) R) func(*T) (R, bool) {
	return func(item *T) (R, bool) { return show(item), true }
}

// cursor is a place in a list: what orders it, which for most is the time of
// creation, and what tells items alike in that apart.
type cursor struct {
	order int64
	id    string
}

func (c cursor) compare(o cursor) int {
	return cmp.Or(cmp.Compare(c.order, o.order), cmp.Compare(c.id, o.id))
}

// after reports whether c lies behind o; everything lies behind the zero one.
func (c cursor) after(o cursor) bool { return o.id == "" || c.compare(o) > 0 }

func (c cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.order, 36) + "." + c.id))
}

func parseCursor(token string) (cursor, error) {
	if token == "" {
		return cursor{}, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	order, id, _ := strings.Cut(string(raw), ".")
	n, nerr := strconv.ParseInt(order, 36, 64)
	if err != nil || nerr != nil || id == "" {
		return cursor{}, fmt.Errorf("%w: next_token is not one that a list returned", rest.ErrRequest)
	}
	return cursor{n, id}, nil
}
