package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Bounds of what is received and not read yet, for each of the two outputs.
const (
	// pipeBuffer holds the command's log back once it is full.
	pipeBuffer = 1 << 20
	// pipeLimit bounds it when the other output's reader would starve
	// otherwise. What is more is lost, and the reader told.
	pipeLimit = 64 << 20
	// ackEvery is how much is read between acknowledgements.
	ackEvery = 64 << 10
)

// Stream runs a command with its input and outputs as streams. When ctx ends,
// the client counts as gone: [WithOnDisconnect], kill by default. A [OneShot]
// box is removed once the command has ended and its outputs were received.
//
// The outputs can be read one after the other: while one is not read, up to 64
// MiB of it wait. Wait does not need them to be read, as far as that goes.
func (b *Box) Stream(ctx context.Context, cmd []string, opts ...ExecOption) (*ExecStream, error) {
	o := newExecOptions(cmd, opts)
	o.spec.Stdin = !o.stdinSet || o.stdin != nil
	s, err := b.OpenExec(ctx, o.spec)
	if err != nil {
		return nil, err
	}
	d := newDemux(b, s)
	if !b.m.run(ctx, d) {
		s.Close() //nolint:errcheck // the manager's end is what the caller gets
		return nil, b.failed("exec in", ErrClosed)
	}
	stdin := io.WriteCloser(&input{s})
	switch {
	case o.stdin != nil:
		go feed(s, o.stdin)
		stdin = closedInput{}
	case o.stdinSet:
		stdin = closedInput{}
	}
	return &ExecStream{
		Stdout: &pipeReader{d, &d.out}, Stderr: &pipeReader{d, &d.err}, Stdin: stdin,
		Wait: d.wait, Cancel: func() { d.cancel(ctx) },
		ExecID: s.ID(), Resize: s.Resize,
	}, nil
}

// run starts the goroutines of a demux. They end when the output was received,
// or when ctx or the manager ends.
func (m *Manager) run(ctx context.Context, d *demux) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(m.life, func() { cancel(ErrClosed) })
	stopCut := context.AfterFunc(ctx, func() { d.cut(context.Cause(ctx)) })
	m.wg.Go(func() {
		d.info, d.infoErr = d.s.Wait(ctx)
		d.infoErr = cause(ctx, d.infoErr)
		close(d.ended)
	})
	m.wg.Go(func() {
		d.receive()
		<-d.ended
		stop()
		stopCut()
		cancel(nil)
		d.finish()
	})
	return true
}

// input is the writing end of a command's input.
type input struct{ s taisandbox.Stream }

func (i *input) Write(p []byte) (int, error) { return i.s.Write(p) }
func (i *input) Close() error                { return i.s.CloseWrite() }

// closedInput is the input of a command that is fed otherwise.
type closedInput struct{}

func (closedInput) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
func (closedInput) Close() error              { return nil }

// demux takes a command's log apart for two readers, and acknowledges what
// both have read.
type demux struct {
	b *Box
	s taisandbox.Stream

	ended   chan struct{} // closed once info or infoErr is set
	info    taisandbox.ExecInfo
	infoErr error

	mu       sync.Mutex
	cond     *sync.Cond
	out, err pipe
	end      int64 // offset behind what was received
	acked    int64
	eof      error // how the log ended, once it has
	free     bool  // canceled: nothing holds the log back any more
	stuck    bool  // waits for a reader
	finished bool  // the stream is closed
}

// pipe is one of the outputs.
type pipe struct {
	segments []segment
	size     int // bytes in segments
	waiting  int // readers that wait for more
	closed   bool
}

// segment is received output, or with lost > 0 the place of what is missing.
type segment struct {
	offset int64
	data   []byte
	lost   int64
}

func newDemux(b *Box, s taisandbox.Stream) *demux {
	d := &demux{b: b, s: s, ended: make(chan struct{})}
	d.cond = sync.NewCond(&d.mu)
	return d
}

// receive takes in the log to its end.
func (d *demux) receive() {
	for {
		c, err := d.s.Recv()
		if err != nil {
			d.mu.Lock()
			if d.eof == nil {
				d.eof = err
			}
			d.cond.Broadcast()
			d.mu.Unlock()
			return
		}
		if ack, ok := d.put(&c); ok {
			d.ack(ack)
		}
	}
}

// put hands a chunk to its reader, waiting for room.
func (d *demux) put(c *taisandbox.Chunk) (ack int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch c.Source {
	case taisandbox.Stdout:
		d.putLocked(&d.out, &d.err, c)
	case taisandbox.Stderr:
		d.putLocked(&d.err, &d.out, c)
	case taisandbox.Gap:
		d.out.lose(c.Offset, c.Lost)
		d.err.lose(c.Offset, c.Lost)
	}
	d.end = c.End()
	d.cond.Broadcast()
	return d.ackLocked()
}

func (d *demux) putLocked(p, other *pipe, c *taisandbox.Chunk) {
	starving := func() bool { return other.waiting > 0 && len(other.segments) == 0 }
	for p.size >= pipeBuffer && !p.closed && !d.free && !starving() {
		d.stuck = true
		d.cond.Broadcast()
		d.cond.Wait()
	}
	d.stuck = false
	switch {
	case p.closed:
	case p.size >= pipeBuffer && d.free, p.size >= pipeLimit:
		p.lose(c.Offset, int64(len(c.Data)))
	default:
		p.segments = append(p.segments, segment{offset: c.Offset, data: slices.Clone(c.Data)})
		p.size += len(c.Data)
	}
}

// lose notes that output is missing. It may have been the other's.
func (p *pipe) lose(offset, n int64) {
	if p.closed || n == 0 {
		return
	}
	if i := len(p.segments) - 1; i >= 0 && p.segments[i].lost > 0 {
		p.segments[i].lost += n
		return
	}
	p.segments = append(p.segments, segment{offset: offset, lost: n})
}

// read returns the next output of p, or what is to be said in its place.
func (d *demux) read(p *pipe, b []byte) (n int, err error) {
	d.mu.Lock()
	for len(p.segments) == 0 && d.eof == nil && !p.closed {
		p.waiting++
		d.cond.Broadcast()
		d.cond.Wait()
		p.waiting--
	}
	switch {
	case p.closed:
		err = io.ErrClosedPipe
	case len(p.segments) == 0:
		err = d.eof
	case p.segments[0].lost > 0:
		err = fmt.Errorf("%w: %d bytes", ErrOutputLost, p.segments[0].lost)
		p.segments = p.segments[1:]
	default:
		s := &p.segments[0]
		n = copy(b, s.data)
		s.data, s.offset = s.data[n:], s.offset+int64(n)
		p.size -= n
		if len(s.data) == 0 {
			p.segments = p.segments[1:]
		}
	}
	d.cond.Broadcast()
	ack, ok := d.ackLocked()
	d.mu.Unlock()
	if ok {
		d.ack(ack)
	}
	return n, err
}

// close drops an output: what has come, and what will.
func (d *demux) close(p *pipe) {
	d.mu.Lock()
	p.closed, p.segments, p.size = true, nil, 0
	d.cond.Broadcast()
	ack, ok := d.ackLocked()
	d.mu.Unlock()
	if ok {
		d.ack(ack)
	}
}

// ackLocked returns the offset up to which everything was read, when it is
// worth a message.
func (d *demux) ackLocked() (offset int64, ok bool) {
	offset = d.end
	for _, p := range []*pipe{&d.out, &d.err} {
		if len(p.segments) > 0 {
			offset = min(offset, p.segments[0].offset)
		}
	}
	if d.finished || offset <= d.acked || offset < d.end && offset-d.acked < ackEvery {
		return 0, false
	}
	d.acked = offset
	return offset, true
}

// ack acknowledges. That it fails shows in what is received next.
func (d *demux) ack(offset int64) {
	d.s.Ack(offset) //nolint:errcheck // see above
}

// finish closes the stream. What was received is as good as taken.
func (d *demux) finish() {
	d.mu.Lock()
	taken := errors.Is(d.eof, io.EOF)
	end := d.end
	d.mu.Unlock()
	if taken {
		d.ack(end)
	}
	d.s.Close() //nolint:errcheck // all is said
	d.mu.Lock()
	d.finished = true
	d.cond.Broadcast()
	d.mu.Unlock()
}

// cut ends the stream before its end: with the manager it is detached, else its
// client is gone.
func (d *demux) cut(why error) {
	d.mu.Lock()
	if d.eof == nil {
		d.eof = why
	}
	d.free = true
	d.cond.Broadcast()
	d.mu.Unlock()
	if errors.Is(why, ErrClosed) {
		d.s.Close() //nolint:errcheck // nobody is left to be told
	} else {
		d.s.Hangup() //nolint:errcheck // as above
	}
}

// wait returns the exit code once the command has ended. For a oneshot box it
// then waits for the removal, unless output has to be read first.
func (d *demux) wait() (int, error) {
	<-d.ended
	if d.infoErr != nil {
		return 0, d.b.failed("wait for exec in", d.infoErr)
	}
	if d.b.policy == OneShot {
		d.mu.Lock()
		for !d.finished && !d.stuck {
			d.cond.Wait()
		}
		d.mu.Unlock()
	}
	code, err := exitCode(&d.info)
	if err != nil {
		return 0, d.b.failed("exec in", err)
	}
	return code, nil
}

// cancel kills the command. What is received afterwards holds nothing back.
func (d *demux) cancel(ctx context.Context) {
	d.mu.Lock()
	d.free = true
	d.cond.Broadcast()
	d.mu.Unlock()
	if sb, err := d.b.driver(); err == nil {
		d.b.kill(ctx, sb, d.s.ID())
	}
}

// pipeReader is the reading end of one output.
type pipeReader struct {
	d *demux
	p *pipe
}

func (r *pipeReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return r.d.read(r.p, b)
}

// Close drops the output that was not read, and what will come.
func (r *pipeReader) Close() error {
	r.d.close(r.p)
	return nil
}
