package fake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// Program is what runs as a command. Its result is the exit code. ctx ends
// when the process is killed: the program must return then, and its result no
// longer matters. Reads of Stdin and writes to Stdout and Stderr fail with ctx.
type Program func(ctx context.Context, p *Proc) int

// Proc is one process of a box.
type Proc struct {
	PID    int
	Args   []string
	Env    map[string]string
	Dir    string
	UID    int
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	e           *exec
	ctx         context.Context //nolint:containedctx // it is the life of the process
	cancel      context.CancelCauseFunc
	inGroup     bool // of the exec's leader
	holdsOutput bool
	ended       chan struct{}

	mu       sync.Mutex
	handlers map[syscall.Signal]chan syscall.Signal
	over     bool
	killed   syscall.Signal
	oom      bool
}

// Child says how [Proc.Spawn] starts a child.
type Child struct {
	Program      Program
	Args         []string
	NewSession   bool // it leaves the process group
	ClosesOutput bool // it does not hold the exec's output
}

// newProcLocked makes a process of an exec. The box's lock is held.
func (b *box) newProcLocked(e *exec, args []string, newSession bool) *Proc {
	uid, _ := lookUser(e.spec.User) // checked when the exec was made
	b.lastPID++
	p := &Proc{
		PID: b.lastPID, Args: args, Env: maps.Clone(e.spec.Env), Dir: e.spec.WorkDir, UID: uid,
		e: e, inGroup: !newSession, holdsOutput: true,
		ended:    make(chan struct{}),
		handlers: map[syscall.Signal]chan syscall.Signal{},
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.Stdin = reader(func(buf []byte) (int, error) { return e.in.read(p.ctx, buf) })
	p.Stdout = p.output(sandbox.Stdout)
	p.Stderr = p.output(sandbox.Stderr)
	b.procs[p.PID] = p
	e.tree[p] = struct{}{}
	return p
}

type (
	reader func([]byte) (int, error)
	writer func([]byte) (int, error)
)

func (r reader) Read(p []byte) (int, error)  { return r(p) }
func (w writer) Write(p []byte) (int, error) { return w(p) }

// output writes to the exec's log; through a terminal there is one source, and
// a newline returns the carriage.
func (p *Proc) output(src sandbox.Source) io.Writer {
	if p.e.spec.MergeOutput {
		src = sandbox.Stdout
	}
	return writer(func(data []byte) (int, error) {
		if !p.e.spec.TTY {
			return p.e.log.write(p.ctx, src, data)
		}
		_, err := p.e.log.write(p.ctx, sandbox.Stdout, bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n")))
		if err != nil {
			return 0, err
		}
		return len(data), nil
	})
}

// finish is the end of the process. It returns how it was killed, if it was.
func (p *Proc) finish() (sig syscall.Signal, oom bool) {
	p.mu.Lock()
	p.over = true
	sig, oom = p.killed, p.oom
	p.mu.Unlock()
	p.cancel(errors.New("process ended"))

	b := p.e.b
	b.mu.Lock()
	delete(b.procs, p.PID)
	delete(p.e.tree, p)
	for port, l := range b.ports {
		if l.p == p {
			delete(b.ports, port)
			l.shut()
		}
	}
	b.mu.Unlock()
	close(p.ended)
	return sig, oom
}

// killedError is the cause of a killed process's context.
type killedError struct{ sig syscall.Signal }

func (k killedError) Error() string { return "killed by " + k.sig.String() }

// Signal delivers a signal: to the handler, if there is one, else it does what
// that signal does by default.
func (p *Proc) Signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if h := p.handlers[sig]; h != nil && sig != syscall.SIGKILL {
		select {
		case h <- sig:
		default: // as with real signals, a pending one is enough
		}
		return
	}
	switch sig {
	case 0, syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGSTOP, syscall.SIGTSTP:
		return
	}
	if p.killed == 0 || sig == syscall.SIGKILL {
		p.killed = sig
	}
	p.cancel(killedError{sig})
}

// Notify takes signals away from their default action. The channel has room
// for one of each.
func (p *Proc) Notify(sigs ...syscall.Signal) <-chan syscall.Signal {
	ch := make(chan syscall.Signal, len(sigs))
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range sigs {
		p.handlers[s] = ch
	}
	return ch
}

// Spawn starts a child. It fails with EAGAIN beyond the box's limit.
func (p *Proc) Spawn(c Child) (*Proc, error) {
	b := p.e.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fullLocked() {
		return nil, syscall.EAGAIN
	}
	if p.ctx.Err() != nil {
		return nil, context.Cause(p.ctx)
	}
	child := b.newProcLocked(p.e, c.Args, c.NewSession)
	child.inGroup = child.inGroup && p.inGroup
	child.holdsOutput = !c.ClosesOutput
	b.m.work.run(func() {
		c.Program(child.ctx, child)
		child.finish()
	})
	return child, nil
}

// fullLocked reports whether the limit of processes is reached.
func (b *box) fullLocked() bool { return b.info.Pids > 0 && int64(len(b.procs)) >= b.info.Pids }

// Wait waits for the end of a child and returns the signal that killed it.
func (p *Proc) Wait(ctx context.Context) syscall.Signal {
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

// Size is the size of the terminal.
func (p *Proc) Size() sandbox.Size {
	p.e.b.mu.Lock()
	defer p.e.b.mu.Unlock()
	return p.e.size
}

// OOM is the kernel killing the process for memory.
func (p *Proc) OOM() {
	p.mu.Lock()
	p.oom = true
	p.mu.Unlock()
	b := p.e.b
	b.mu.Lock()
	b.info.OOMKills++
	for _, e := range b.order {
		if !e.info.Done() {
			e.info.OOMKills++
		}
	}
	b.m.events.publish(sandbox.Event{Time: time.Now(), Type: sandbox.EventOOM, Box: b.id, Labels: maps.Clone(b.info.Labels)})
	b.mu.Unlock()
	p.Signal(syscall.SIGKILL)
}

// Box is the box that the process runs in, as its driver reports it.
func (p *Proc) Box() sandbox.Info { return p.e.b.snapshot() }

// ReadFile and WriteFile reach the box's files.
func (p *Proc) ReadFile(name string) ([]byte, error) { return p.e.b.readFile(name) }

// WriteFile replaces a file, or adds to it.
func (p *Proc) WriteFile(name string, data []byte, add bool) error {
	return p.e.b.writeFile(name, data, add)
}

// Listen opens a port of the box. It closes with the process.
func (p *Proc) Listen(port int) (net.Listener, error) {
	b := p.e.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ports[port] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := newListener(p, port)
	b.ports[port] = l
	return l, nil
}

// listeners returns what listens in the box, by port.
func (b *box) listeners() []*listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.ports), func(x, y *listener) int { return x.port - y.port })
}
