package treesync

// asked is what a stream may have. Nil is anything.
type asked struct {
	metas   wanted // in the first of its segments
	entries wanted
}

func (a *asked) has(k byte, name string) bool {
	switch {
	case a == nil, k == recordTold:
		return true
	case k == recordMeta:
		return a.metas.has(name)
	}
	return a.entries.has(name)
}

// wanted is a list of names, in order.
type wanted struct {
	names []string
	next  int
}

// has reports whether a name is the next that was asked for, or, of those that
// come later, any. The same name may come again, if its file was dropped.
func (w *wanted) has(name string) bool {
	for i := w.next; i < len(w.names); i++ {
		if w.names[i] == name {
			w.next = i
			return true
		}
	}
	return false
}
