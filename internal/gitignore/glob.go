package gitignore

import "strings"

// glob matches one name. A star stands for any bytes, a question mark for one,
// brackets for one of a class, and a backslash takes the next byte as it is. A
// pattern that is none matches nothing.
func glob(pattern, name string) bool {
	if !strings.ContainsAny(pattern, `*?[\`) {
		return pattern == name
	}
	pi, ni := 0, 0
	star, from := -1, 0
	for {
		if pi < len(pattern) && pattern[pi] == '*' {
			star, from = pi, ni
			pi++
			continue
		}
		if ni == len(name) {
			return pi == len(pattern)
		}
		if pi < len(pattern) {
			if width, ok := one(pattern[pi:], name[ni]); ok {
				pi += width
				ni++
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		pi, ni = star+1, from
	}
}

// one matches a byte with the beginning of a pattern, and tells how long that is.
func one(pattern string, b byte) (width int, ok bool) {
	switch pattern[0] {
	case '?':
		return 1, true
	case '[':
		return class(pattern, b)
	case '\\':
		if len(pattern) < 2 {
			return 1, false
		}
		return 2, pattern[1] == b
	}
	return 1, pattern[0] == b
}

// class matches a byte with a bracket expression.
func class(pattern string, b byte) (width int, ok bool) {
	i := 1
	negated := i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^')
	if negated {
		i++
	}
	found := false
	prev, hasPrev := byte(0), false
	for first := true; ; first = false {
		if i >= len(pattern) {
			return len(pattern), false // it never ends
		}
		c := pattern[i]
		switch {
		case c == ']' && !first:
			return i + 1, found != negated
		case c == '[' && i+1 < len(pattern) && pattern[i+1] == ':':
			end := strings.IndexByte(pattern[i+2:], ']')
			if end < 0 {
				return len(pattern), false
			}
			name, isName := strings.CutSuffix(pattern[i+2:i+2+end], ":")
			if !isName { // a bracket like any other
				found = found || b == '['
				prev, hasPrev = '[', true
				i++
				continue
			}
			in, known := posix(name, b)
			if !known {
				return len(pattern), false
			}
			found = found || in
			hasPrev = false
			i += 2 + end + 1
		case c == '-' && hasPrev && i+1 < len(pattern) && pattern[i+1] != ']':
			i++
			high := pattern[i]
			if high == '\\' {
				if i++; i >= len(pattern) {
					return len(pattern), false
				}
				high = pattern[i]
			}
			found = found || prev <= b && b <= high
			hasPrev = false
			i++
		default:
			if c == '\\' {
				if i++; i >= len(pattern) {
					return len(pattern), false
				}
				c = pattern[i]
			}
			found = found || c == b
			prev, hasPrev = c, true
			i++
		}
	}
}

// posix reports whether a byte is of a class with a name.
func posix(name string, b byte) (in, known bool) {
	lower, upper, digit := 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9'
	graph := '!' <= b && b <= '~'
	switch name {
	case "alnum":
		return lower || upper || digit, true
	case "alpha":
		return lower || upper, true
	case "blank":
		return b == ' ' || b == '\t', true
	case "cntrl":
		return b < ' ' || b == 0x7f, true
	case "digit":
		return digit, true
	case "graph":
		return graph, true
	case "lower":
		return lower, true
	case "print":
		return graph || b == ' ', true
	case "punct":
		return graph && !lower && !upper && !digit, true
	case "space":
		return b == ' ' || '\t' <= b && b <= '\r', true
	case "upper":
		return upper, true
	case "xdigit":
		return digit || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F', true
	}
	return false, false
}
