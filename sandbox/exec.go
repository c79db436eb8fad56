package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/taibox/taibox/internal/tracing"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// Exec runs a command and waits for its end. That the command fails, or is not
// found, is no error: see [ExecResult]. When ctx ends first, the command is
// killed with its whole tree. A command whose end nobody saw is [ErrExecLost],
// with what is known of it as the result. A [OneShot] box is removed
// afterwards, also when the command could not be started.
func (b *Box) Exec(ctx context.Context, cmd []string, opts ...ExecOption) (*ExecResult, error) {
	o := newExecOptions(cmd, opts)
	if o.spec.ID == "" {
		o.spec.ID = taisandbox.NewID("e-")
	}
	if b.claim(o.spec.ID) {
		defer b.spent(ctx)
	}
	res, err := b.collect(ctx, o)
	if err != nil {
		return nil, err
	}
	r := &ExecResult{
		Stdout: string(res.Stdout), Stderr: string(res.Stderr),
		ExecID: res.ID, Signal: res.Signal, Reason: res.Reason, Error: res.Error,
		DurationMs: res.Ended.Sub(res.Started).Milliseconds(), Truncated: res.OutputTruncated,
		StdoutOmitted: res.StdoutOmitted, StderrOmitted: res.StderrOmitted,
	}
	if r.ExitCode, err = exitCode(&res.ExecInfo); err != nil {
		return r, b.failed("exec in", err)
	}
	return r, nil
}

func exitCode(info *taisandbox.ExecInfo) (int, error) {
	if info.ExitCode == nil {
		return 0, fmt.Errorf("%w: exec %s (%s)", ErrExecLost, info.ID, info.Reason)
	}
	return *info.ExitCode, nil
}

func (b *Box) collect(ctx context.Context, o *execOptions) (res taisandbox.ExecResult, err error) {
	ctx, span := tracing.Start(ctx, "box.exec")
	span.Set(tracing.Box, b.id).Set(tracing.Exec, o.spec.ID)
	defer func() { endExecSpan(span, &res.ExecInfo, err) }()
	if err := o.spec.Validate(); err != nil {
		return res, b.failed("exec in", err)
	}
	sb, done, err := b.use(useExec(o.spec.ID))
	if err != nil {
		return res, b.failed("exec in", err)
	}
	defer done()
	if o.stdin == nil {
		if res, err = sb.Exec(ctx, b.id, o.spec); err != nil {
			err = b.explain(ctx, "exec in", err)
		}
		return res, err
	}

	o.spec.Stdin = true
	s, err := sb.ExecStream(ctx, b.id, o.spec)
	if err != nil {
		return res, b.explain(ctx, "exec in", err)
	}
	defer s.Close() //nolint:errcheck // what counts was read
	go feed(s, o.stdin)
	res, err = taisandbox.Collect(ctx, s, nil, false, o.spec.MaxOutput)
	if ctx.Err() != nil {
		b.kill(ctx, sb, o.spec.ID)
	}
	if err != nil {
		err = b.failed("exec in", err)
	}
	return res, err
}

// endExecSpan ends the span of a command with what is known of it.
func endExecSpan(span *tracing.Span, info *taisandbox.ExecInfo, err error) {
	if info.Done() {
		span.Set(tracing.Why, string(info.Reason))
	}
	if info.ExitCode != nil {
		span.SetInt(tracing.Code, int64(*info.ExitCode))
	}
	span.End(err)
}

// feed writes r to a command's input. It may outlive the command by one read
// of r, as [WithStdin] says.
func feed(s taisandbox.Stream, r io.Reader) {
	io.Copy(s, r)  //nolint:errcheck // a command that does not want its input is its own affair
	s.CloseWrite() //nolint:errcheck // as above
}

// kill ends a command with its whole tree, also after ctx.
func (b *Box) kill(ctx context.Context, sb taisandbox.Sandbox, execID string) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), killTimeout, errKillTimeout)
	defer cancel()
	err := sb.KillExec(ctx, b.id, execID, taisandbox.KillOptions{Signal: sigkill, Tree: true})
	if err != nil && !errors.Is(err, ErrExecEnded) {
		b.log().DebugContext(ctx, "exec not killed", slog.String("exec", execID), slog.Any("err", err))
	}
}

// sigkill is the same on every system that boxes run on.
const sigkill = 9

// OpenExec starts a command and returns the attached stream; ctx bounds the
// start only. A [OneShot] box is removed once the command has ended and the
// stream was closed after all output was acknowledged, in which case Close
// waits for that, or was hung up. A Close before that leaves the output for
// another reader, for a minute after the command's end.
func (b *Box) OpenExec(ctx context.Context, spec taisandbox.ExecSpec) (taisandbox.Stream, error) {
	if spec.ID == "" {
		spec.ID = taisandbox.NewID("e-")
	}
	first := b.claim(spec.ID)
	s, err := b.openExec(ctx, spec)
	if err != nil && first {
		b.spent(ctx)
	}
	return s, err
}

func (b *Box) openExec(ctx context.Context, spec taisandbox.ExecSpec) (_ taisandbox.Stream, err error) {
	ctx, span := tracing.Start(ctx, "box.exec")
	span.Set(tracing.Box, b.id).Set(tracing.Exec, spec.ID)
	defer func() {
		if err != nil {
			span.End(err)
		}
	}()
	if err := spec.Validate(); err != nil {
		return nil, b.failed("exec in", err)
	}
	sb, done, err := b.use(useExec(spec.ID))
	if err != nil {
		return nil, b.failed("exec in", err)
	}
	defer done()
	s, err := sb.ExecStream(ctx, b.id, spec)
	if err != nil {
		return nil, b.explain(ctx, "exec in", err)
	}
	t := b.track(s, spec.ID, true, false)
	t.span = span // which lasts as long as the stream
	return t, nil
}

// AttachExec opens another reader of a command, also of one that has ended. One
// that holds counts for a [OneShot] box as the stream of OpenExec does.
func (b *Box) AttachExec(ctx context.Context, execID string, opts taisandbox.AttachOptions) (taisandbox.Stream, error) {
	sb, done, err := b.attaching(execID, opts.NoFollow)
	if err != nil {
		return nil, b.failed("attach to exec of", err)
	}
	defer done()
	s, err := sb.AttachExec(ctx, b.id, execID, opts)
	if err != nil {
		return nil, b.explain(ctx, "attach to exec of", err)
	}
	return b.track(s, execID, opts.Hold, opts.NoFollow), nil
}

// attaching admits a reader. One that reads what is there only looks.
func (b *Box) attaching(execID string, noFollow bool) (taisandbox.Sandbox, func(), error) {
	if noFollow {
		sb, err := b.driver()
		return sb, func() {}, err
	}
	return b.use(useStream(execID))
}

// Execs returns the commands that are kept, oldest first.
func (b *Box) Execs(ctx context.Context) ([]taisandbox.ExecInfo, error) {
	return ask(ctx, b, "list execs of", func(sb taisandbox.Sandbox) ([]taisandbox.ExecInfo, error) {
		return sb.ListExecs(ctx, b.id)
	})
}

// InspectExec returns the record of a command, or [ErrExecNotFound].
func (b *Box) InspectExec(ctx context.Context, execID string) (taisandbox.ExecInfo, error) {
	return ask(ctx, b, "inspect exec of", func(sb taisandbox.Sandbox) (taisandbox.ExecInfo, error) {
		return sb.InspectExec(ctx, b.id, execID)
	})
}

// WaitExec blocks until the command's record is final and returns it.
func (b *Box) WaitExec(ctx context.Context, execID string) (taisandbox.ExecInfo, error) {
	return ask(ctx, b, "wait for exec of", func(sb taisandbox.Sandbox) (taisandbox.ExecInfo, error) {
		return sb.WaitExec(ctx, b.id, execID)
	})
}

// KillExec sends a signal to a command. [ErrExecEnded] if nothing of it runs.
func (b *Box) KillExec(ctx context.Context, execID string, opts taisandbox.KillOptions) error {
	_, err := ask(ctx, b, "kill exec of", func(sb taisandbox.Sandbox) (struct{}, error) {
		return struct{}{}, sb.KillExec(ctx, b.id, execID, opts)
	})
	return err
}

// Ports lists what listens in the box.
func (b *Box) Ports(ctx context.Context) ([]taisandbox.Port, error) {
	return ask(ctx, b, "list ports of", func(sb taisandbox.Sandbox) ([]taisandbox.Port, error) {
		return sb.Ports(ctx, b.id)
	})
}

// Stats measures the box.
func (b *Box) Stats(ctx context.Context) (taisandbox.Stats, error) {
	return ask(ctx, b, "measure", func(sb taisandbox.Sandbox) (taisandbox.Stats, error) {
		return sb.Stats(ctx, b.id)
	})
}

// ask asks the node something about a box.
func ask[T any](ctx context.Context, b *Box, verb string, call func(taisandbox.Sandbox) (T, error)) (T, error) {
	sb, err := b.driver()
	if err != nil {
		var none T
		return none, b.failed(verb, err)
	}
	answer, err := call(sb)
	if err != nil {
		err = b.explain(ctx, verb, err)
	}
	return answer, err
}
