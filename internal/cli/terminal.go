package cli

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// terminalOf returns f as a terminal, if it is one.
func terminalOf(f any) (*os.File, bool) {
	file, ok := f.(*os.File)
	return file, ok && term.IsTerminal(int(file.Fd()))
}

// terminalSize returns the size of the terminal that the user looks at, or
// zero where there is none.
func (e *Env) terminalSize() taisandbox.Size {
	for _, f := range []any{e.Out, e.In, e.Err} {
		if file, ok := terminalOf(f); ok {
			cols, rows, err := term.GetSize(int(file.Fd()))
			if size := (taisandbox.Size{Cols: uint16(cols), Rows: uint16(rows)}); err == nil && size.Validate() == nil {
				return size
			}
		}
	}
	return taisandbox.Size{}
}

// followSize hands on each new size of the user's terminal until the returned
// function is called.
func (e *Env) followSize(sent taisandbox.Size, stream taisandbox.Stream) (stop func()) {
	winch := make(chan os.Signal, 1)
	signal.Notify(winch, unix.SIGWINCH)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if size := e.terminalSize(); size != sent && size != (taisandbox.Size{}) {
				if stream.Resize(size) != nil {
					return // it has ended
				}
				sent = size
			}
			select {
			case <-winch:
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(winch)
		close(done)
		<-ended
	}
}

// rawMode makes the user's terminal hand on every key as it is, until the
// returned function is called. Where the input is no terminal it does nothing.
func (e *Env) rawMode() (restore func(), err error) {
	file, ok := terminalOf(e.In)
	if !ok {
		return func() {}, nil
	}
	state, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	e.raw.Store(true)
	return func() {
		term.Restore(int(file.Fd()), state) //nolint:errcheck // there is nothing better to do
		e.raw.Store(false)
	}, nil
}
