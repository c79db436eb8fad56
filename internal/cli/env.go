package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/taibox/taibox/internal/bench"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/internal/probe"
)

// Env is everything a command may touch outside its arguments.
type Env struct {
	In       io.Reader
	Out, Err io.Writer // data goes to Out; notes and errors to Err
	// LookupEnv returns a variable, and whether there is one.
	LookupEnv func(string) (string, bool)
	Home      string // of the user; "" if there is none
	TTY       bool   // Out is a terminal
	UID       int    // effective; only 0 may start a server

	// Executable is this program, for bench; Server is the program that serves,
	// and Libexec is where the programs are that it needs.
	Executable string
	Server     string
	Libexec    []string

	Version, Commit string

	// Signals delivers INT, TERM, HUP and QUIT. Nil means that none come.
	Signals <-chan os.Signal

	// Dial returns a client of the server at host.
	Dial func(host string, opts ...client.Option) (*client.Client, error)
	// Serve runs a server until ctx ends. Nil: this program has none linked, and
	// what needs it is handed over to Server.
	Serve func(ctx context.Context, opts ServeOptions) error
	// DockerAPI opens the peer of bench that speaks Docker's API. Nil as Serve.
	DockerAPI func(ctx context.Context) (bench.Peer, error)
	// Probe looks at what the machine offers.
	Probe func(ctx context.Context, cfg probe.Config) []probe.Check

	interrupts *interrupts
	settings   *settings
	raw        *atomic.Bool // the terminal is: a line's end does not return the carriage
	args       []string
}

// System returns the environment of this process, without a server.
func System(version, commit string) Env {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	exe, _ := os.Executable()   // where it is not known, what needs it says so
	home, _ := os.UserHomeDir() // as above
	dirs := libexecDirs(exe)
	return Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		LookupEnv: os.LookupEnv, Home: home, TTY: term.IsTerminal(int(os.Stdout.Fd())), UID: os.Geteuid(),
		Executable: exe, Server: FindProgram("taibox-server", dirs), Libexec: dirs,
		Version: version, Commit: commit,
		Signals: signals,
		Dial:    client.New, Probe: probe.Run,
	}
}

// Main runs one command line and returns the process exit code. ctx ends with
// the first signal, unless the command forwards signals to what it runs.
func Main(ctx context.Context, env Env, args []string) int {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	env.interrupts, env.args, env.raw = &interrupts{cancel: cancel}, args, new(atomic.Bool)
	stop := env.interrupts.listen(env.Signals)
	defer stop()

	root := newRoot(&env)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return report(&env, verbOf(cmd), causeOf(ctx, err))
}

// causeOf returns why ctx ended, where that is why the command failed.
func causeOf(ctx context.Context, err error) error {
	var done *exitError
	s, ok := context.Cause(ctx).(*signalError) //nolint:errorlint // we are the only one to set it
	if !ok || err == nil || errors.As(err, &done) {
		return err
	}
	return s
}

// signalError is the end of a command by a signal to this process.
type signalError struct{ sig unix.Signal }

func (e *signalError) Error() string { return "interrupted by " + unix.SignalName(e.sig) }

// interrupts hands the signals that this process gets to whoever wants them at
// the time: the command's context, or what the command runs in a box.
type interrupts struct {
	cancel context.CancelCauseFunc

	mu      sync.Mutex
	forward func(unix.Signal)
}

// listen handles signals until the returned function is called.
func (i *interrupts) listen(signals <-chan os.Signal) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				if sig, ok := s.(unix.Signal); ok {
					i.handle(sig)
				}
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}

func (i *interrupts) handle(sig unix.Signal) {
	i.mu.Lock()
	forward := i.forward
	i.mu.Unlock()
	if forward != nil {
		forward(sig)
		return
	}
	i.cancel(&signalError{sig})
}

// to hands all signals to f until the returned function is called.
func (i *interrupts) to(f func(unix.Signal)) (restore func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.forward = f
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.forward = nil
	}
}

// Getenv returns a variable; "" also where there is none.
func (e *Env) Getenv(name string) string {
	v, _ := e.LookupEnv(name)
	return v
}

// note prints a line for people that is no data.
func (e *Env) note(format string, args ...any) { e.say("taibox", fmt.Sprintf(format, args...)) }

// hint prints what to do about it.
func (e *Env) hint(text string) { e.say("hint", text) }

func (e *Env) say(who, text string) {
	end := "\n"
	if e.raw != nil && e.raw.Load() {
		end = "\r\n"
	}
	fmt.Fprintf(e.Err, "%s: %s%s", who, oneLine(text), end) //nolint:errcheck // nobody is left to tell
}
