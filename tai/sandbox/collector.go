package sandbox

import "unicode/utf8"

// Collector keeps an output within a cap, in memory that does not grow beyond
// it: the first half, and of what follows the end. Where both sources have too
// much, the end of each is kept, so that none drowns the last words of the
// other. The cut goes between characters.
type Collector struct {
	headLeft, tailMax int64
	out, err          kept
	gap               bool
}

// NewCollector returns a collector of up to max bytes over both sources; 0
// means [DefaultMaxOutput].
func NewCollector(max int64) *Collector {
	if max == 0 {
		max = DefaultMaxOutput
	}
	return &Collector{headLeft: max - max/2, tailMax: max / 2}
}

// Add takes the next chunk, and keeps no part of its memory.
func (c *Collector) Add(chunk Chunk) {
	var to *kept
	switch chunk.Source {
	case Stdout:
		to = &c.out
	case Stderr:
		to = &c.err
	default:
		c.gap = true
		return
	}
	n := min(c.headLeft, int64(len(chunk.Data)))
	c.headLeft -= n
	to.head = append(to.head, chunk.Data[:n]...)
	for data := chunk.Data[n:]; len(data) > 0; { // by blocks: a chunk may be longer than the cap
		n := min(len(data), tailBlock)
		to.tail.add(data[:n])
		data = data[n:]
		c.trim()
	}
}

// trim drops what is too much of the ends, of the longer one first.
func (c *Collector) trim() {
	longer, shorter := &c.out, &c.err
	if longer.tail.size < shorter.tail.size {
		longer, shorter = shorter, longer
	}
	over := max(0, longer.tail.size+shorter.tail.size-c.tailMax)
	n := over
	if diff := longer.tail.size - shorter.tail.size; over > diff {
		n = (over + diff + 1) / 2
	}
	longer.drop(n)
	shorter.drop(over - n)
}

// Fill puts what was kept into a result. Nothing is added afterwards.
func (c *Collector) Fill(res *ExecResult) {
	res.Stdout, res.StdoutOmitted = c.out.join()
	res.Stderr, res.StderrOmitted = c.err.join()
	res.OutputTruncated = c.gap || res.StdoutOmitted.Bytes > 0 || res.StderrOmitted.Bytes > 0
}

// kept is what there is of one source.
type kept struct {
	head    []byte
	tail    tail
	omitted int64
}

func (k *kept) drop(n int64) {
	k.tail.drop(n)
	k.omitted += n
}

// join returns all that was kept, and what is missing in it.
func (k *kept) join() ([]byte, Omission) {
	if k.omitted == 0 {
		return k.tail.appendTo(k.head), Omission{}
	}
	head := wholeEnd(k.head)
	k.omitted += int64(len(k.head) - len(head))
	k.drop(k.tail.partial())
	return k.tail.appendTo(head), Omission{At: int64(len(head)), Bytes: k.omitted}
}

// wholeEnd returns b without an incomplete character at its end.
func wholeEnd(b []byte) []byte {
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return b[:i]
			}
			break
		}
	}
	return b
}

const tailBlock = 32 << 10

// tail is bytes that are added at the end and dropped at the beginning.
type tail struct {
	blocks [][]byte
	size   int64
}

func (t *tail) add(p []byte) {
	t.size += int64(len(p))
	for len(p) > 0 {
		last := len(t.blocks) - 1
		if last < 0 || len(t.blocks[last]) == cap(t.blocks[last]) {
			t.blocks = append(t.blocks, make([]byte, 0, tailBlock))
			last++
		}
		b := t.blocks[last]
		n := min(len(p), cap(b)-len(b))
		t.blocks[last] = append(b, p[:n]...)
		p = p[n:]
	}
}

// drop takes away the first n bytes, of which there are so many.
func (t *tail) drop(n int64) {
	t.size -= n
	for n > 0 {
		b := t.blocks[0]
		k := min(n, int64(len(b)))
		if n -= k; k == int64(len(b)) {
			t.blocks[0] = nil // append may keep the array for long
			t.blocks = t.blocks[1:]
		} else {
			t.blocks[0] = b[k:]
		}
	}
}

// partial is how many bytes at the beginning are the rest of a character.
func (t *tail) partial() (n int64) {
	for _, b := range t.blocks {
		for _, c := range b {
			if utf8.RuneStart(c) || n == utf8.UTFMax-1 {
				return n
			}
			n++
		}
	}
	return n
}

func (t *tail) appendTo(b []byte) []byte {
	if t.size == 0 {
		return b
	}
	all := make([]byte, 0, int64(len(b))+t.size)
	all = append(all, b...)
	for i := range t.blocks {
		all = append(all, t.blocks[i]...)
	}
	return all
}
