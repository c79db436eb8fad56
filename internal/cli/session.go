package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

const (
	patience     = 3               // signals, until we do not wait for the command any more
	forwardLimit = 5 * time.Second // for the delivery of one
)

// session is a command in a box whose output we print.
type session struct {
	c        *client.Client
	box      string
	stream   taisandbox.Stream
	in       io.Reader // nil: nothing is read
	out, err io.Writer
	viewer   bool // only looks on
	noEnd    bool // the output ends before the command does

	mu      sync.Mutex
	signals int
	gaveUp  *signalError
	quit    func() // ends run, whatever it waits for
	kills   sync.WaitGroup
	lost    int64 // bytes of output that the server no longer had
}

// run prints the output until the command has ended, and returns its record.
// Whatever arrives is written first and acknowledged then: a reader of ours
// that is slow slows the command, and nothing is lost when we end.
func (s *session) run(ctx context.Context, env *Env) (taisandbox.ExecInfo, error) {
	quit := ctx.Done() // a viewer goes with its context
	if !s.viewer {
		c := make(chan struct{})
		quit, s.quit = c, sync.OnceFunc(func() { close(c) })
		defer env.interrupts.to(s.forward)()
		if early, ok := context.Cause(ctx).(*signalError); ok { //nolint:errorlint // we are the only one to set it
			s.forward(early.sig) // it came when the command was just starting
			ctx = context.WithoutCancel(ctx)
		}
	}
	// Without this a write to a closed pipe ends us before we could hang up.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, unix.SIGPIPE)
	defer signal.Stop(pipe)

	if s.in != nil {
		go s.feed()
	}
	var rec taisandbox.ExecInfo
	done := make(chan error, 1)
	go func() {
		r, err := s.pump(ctx)
		rec = r
		done <- err
	}()
	select {
	case err := <-done:
		s.kills.Wait()
		if gave := s.given(); gave != nil {
			return rec, gave
		}
		if err != nil {
			s.hangup()
			return rec, err
		}
	case <-quit: // the output may be stuck in a pipe that nobody reads
		if gave := s.given(); gave != nil {
			return taisandbox.ExecInfo{}, gave
		}
		s.hangup()
		return taisandbox.ExecInfo{}, context.Cause(ctx)
	}
	if s.lost > 0 && !s.viewer {
		return rec, fmt.Errorf("exec %s in box %s ended (%s), but %d bytes of its output were lost: they were not read within 30 s", rec.ID, s.box, codeText(rec.ExitCode), s.lost)
	}
	return rec, nil
}

func (s *session) pump(ctx context.Context) (taisandbox.ExecInfo, error) {
	for {
		c, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return taisandbox.ExecInfo{}, err
		}
		switch c.Source {
		case taisandbox.Stdout:
			err = write(s.out, "stdout", c.Data)
		case taisandbox.Stderr:
			err = write(s.err, "stderr", c.Data)
		case taisandbox.Gap:
			s.lost += c.Lost
			err = write(s.err, "stderr", fmt.Appendf(nil, "taibox: %d bytes of output from offset %d on are no longer kept\n", c.Lost, c.Offset))
		}
		if err != nil {
			return taisandbox.ExecInfo{}, err
		}
		if err := s.stream.Ack(c.End()); err != nil {
			return taisandbox.ExecInfo{}, err
		}
	}
	var rec taisandbox.ExecInfo
	if !s.noEnd {
		var err error
		if rec, err = s.stream.Wait(ctx); err != nil {
			return rec, err
		}
	}
	return rec, s.stream.Close()
}

// write writes all of p. A reader that went away ends us as it ends any filter.
func write(w io.Writer, name string, p []byte) error {
	_, err := w.Write(p)
	switch {
	case errors.Is(err, unix.EPIPE):
		return &exitError{code: exitPipe}
	case err != nil:
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// feed hands our input on, and its end.
func (s *session) feed() {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.in.Read(buf)
		if n > 0 {
			if _, err := s.stream.Write(buf[:n]); err != nil {
				return // a command that does not want its input is its own affair
			}
		}
		if err != nil {
			s.stream.CloseWrite() //nolint:errcheck // as above
			return
		}
	}
}

// forward sends a signal that we got to the command's process group. The third
// one gives up on the command, and a fourth does not even say so to the server.
func (s *session) forward(sig unix.Signal) {
	s.mu.Lock()
	s.signals++
	n := s.signals
	if n == patience {
		s.gaveUp = &signalError{sig}
	}
	s.mu.Unlock()
	switch {
	case n > patience:
		s.quit()
	case n == patience:
		s.kills.Go(func() {
			s.hangup()
			s.quit()
		})
	default:
		s.kills.Go(func() { s.kill(sig) })
	}
}

func (s *session) kill(sig unix.Signal) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), forwardLimit, errForward)
	defer cancel()
	// Where the command has just ended there is nobody to tell.
	s.c.KillExec(ctx, s.box, s.stream.ID(), taisandbox.KillOptions{Signal: int(sig), Group: true}) //nolint:errcheck // the next press shows that it did not help
}

var errForward = errors.New("the signal was not delivered in time")

func (s *session) given() *signalError {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gaveUp
}

// hangup tells the server that we go. Of a viewer it need not know.
func (s *session) hangup() {
	if s.viewer {
		s.stream.Close() //nolint:errcheck // nothing depends on it
		return
	}
	s.stream.Hangup() //nolint:errcheck // a link that is broken says the same
}

// outcome is how a command ended.
type outcome struct {
	exec, box string
	code      *int
	reason    taisandbox.ExecReason
}

// err tells what is worth telling, and returns the error with the exit code.
func (o outcome) err(env *Env) error {
	switch {
	case o.reason == taisandbox.ReasonTimeout:
		return &exitError{exitTimeout, fmt.Errorf("exec %s in box %s ran past its timeout", o.exec, o.box)}
	case o.code == nil:
		return fmt.Errorf("nobody saw the end of exec %s in box %s: its code is not known", o.exec, o.box)
	case o.reason == taisandbox.ReasonOOM:
		env.note("exec %s in box %s ran out of memory", o.exec, o.box)
	}
	if *o.code != 0 {
		return &exitError{code: *o.code}
	}
	return nil
}

func codeText(code *int) string {
	if code == nil {
		return "code not known"
	}
	return fmt.Sprintf("code %d", *code)
}
