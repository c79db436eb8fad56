package fake

import (
	"cmp"
	"context"
	"fmt"
	"syscall"

	"github.com/taibox/taibox/tai/sandbox"
)

var errNoCommand = fmt.Errorf("%w: the box has neither an entrypoint nor a command", sandbox.ErrInvalidSpec)

// Exec runs a command to its end.
func (d *Driver) Exec(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.ExecResult, error) {
	hasInput := spec.Stdin || spec.StdinData != nil
	spec.Stdin, spec.OnDisconnect = hasInput, sandbox.OnDisconnectKill
	s, err := d.ExecStream(ctx, id, spec)
	if err != nil {
		return sandbox.ExecResult{}, err
	}
	res, err := sandbox.Collect(ctx, s, spec.StdinData, hasInput, spec.MaxOutput)
	if err != nil {
		return res, fmt.Errorf("exec %s in box %.64q: %w", s.ID(), id, err)
	}
	return res, nil
}

// ExecStream starts a command and returns the attached stream.
func (d *Driver) ExecStream(ctx context.Context, id string, spec sandbox.ExecSpec) (sandbox.Stream, error) {
	s, err := d.execStream(ctx, id, spec)
	if err != nil {
		return nil, fmt.Errorf("exec in box %.64q: %w", id, err)
	}
	return s, nil
}

func (d *Driver) execStream(ctx context.Context, id string, spec sandbox.ExecSpec) (*stream, error) {
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.TTY {
		if err := d.need(sandbox.FeatureTTY); err != nil {
			return nil, err
		}
	}
	b, err := d.box(id)
	if err != nil {
		return nil, err
	}
	e, err := d.startExec(ctx, b, spec)
	if err != nil {
		return nil, err
	}
	s, err := d.open(e, sandbox.AttachOptions{Hold: true})
	if err != nil {
		return nil, err
	}
	if err := d.step(ctx, "exec.done", id); err != nil {
		s.detach(err, false)
		return nil, err
	}
	return s, nil
}

// AttachExec opens another reader.
func (d *Driver) AttachExec(ctx context.Context, id, execID string, opts sandbox.AttachOptions) (sandbox.Stream, error) {
	e, err := d.exec(ctx, "exec.attach", id, execID)
	if err != nil {
		return nil, fmt.Errorf("attach to exec %.64q of box %.64q: %w", execID, id, err)
	}
	s, err := d.open(e, opts)
	if err != nil {
		return nil, fmt.Errorf("attach to exec %.64q of box %.64q: %w", execID, id, err)
	}
	return s, nil
}

// exec finds an exec of a box.
func (d *Driver) exec(ctx context.Context, op, id, execID string) (*exec, error) {
	if err := d.step(ctx, op, id); err != nil {
		return nil, err
	}
	b, err := d.box(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.execs[execID]; e != nil {
		return e, nil
	}
	return nil, sandbox.ErrExecNotFound
}

// ListExecs returns the execs that are kept, oldest first.
func (d *Driver) ListExecs(ctx context.Context, id string) ([]sandbox.ExecInfo, error) {
	if err := d.step(ctx, "exec.inspect", id); err != nil {
		return nil, fmt.Errorf("list execs of box %.64q: %w", id, err)
	}
	b, err := d.box(id)
	if err != nil {
		return nil, fmt.Errorf("list execs of box %.64q: %w", id, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var infos []sandbox.ExecInfo
	for _, e := range b.order {
		infos = append(infos, e.recordLocked())
	}
	return infos, nil
}

// InspectExec returns the record of one exec.
func (d *Driver) InspectExec(ctx context.Context, id, execID string) (sandbox.ExecInfo, error) {
	e, err := d.exec(ctx, "exec.inspect", id, execID)
	if err != nil {
		return sandbox.ExecInfo{}, fmt.Errorf("inspect exec %.64q of box %.64q: %w", execID, id, err)
	}
	return e.record(), nil
}

func (e *exec) record() sandbox.ExecInfo {
	e.b.mu.Lock()
	defer e.b.mu.Unlock()
	return e.recordLocked()
}

// WaitExec blocks until the record is final.
func (d *Driver) WaitExec(ctx context.Context, id, execID string) (sandbox.ExecInfo, error) {
	e, err := d.exec(ctx, "exec.wait", id, execID)
	if err == nil {
		select {
		case <-e.done:
			return e.record(), nil
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-d.closed:
			err = errClosed
		}
	}
	return sandbox.ExecInfo{}, fmt.Errorf("wait for exec %.64q of box %.64q: %w", execID, id, err)
}

// KillExec sends a signal.
func (d *Driver) KillExec(ctx context.Context, id, execID string, opts sandbox.KillOptions) error {
	e, err := d.exec(ctx, "exec.kill", id, execID)
	if err == nil {
		err = e.killBy(opts)
	}
	if err != nil {
		return fmt.Errorf("kill exec %.64q of box %.64q: %w", execID, id, err)
	}
	return nil
}

func (e *exec) killBy(opts sandbox.KillOptions) error {
	if opts.Signal < 0 || opts.Signal > 64 {
		return fmt.Errorf("%w: signal %d: from 1 to 64 are possible", sandbox.ErrInvalidSpec, opts.Signal)
	}
	sig := syscall.Signal(cmp.Or(opts.Signal, int(syscall.SIGTERM)))
	e.b.mu.Lock()
	e.sent[sig] = true
	e.b.mu.Unlock()
	n := e.signal(sig, func(p *Proc) bool {
		return opts.Tree || p == e.leader || opts.Group && p.inGroup
	})
	if n == 0 {
		return sandbox.ErrExecEnded
	}
	return nil
}
