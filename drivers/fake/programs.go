package fake

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// builtin returns the programs that every driver has.
func builtin() map[string]Program {
	return map[string]Program{
		"true":          func(context.Context, *Proc) int { return 0 },
		"false":         func(context.Context, *Proc) int { return 1 },
		"exit":          func(_ context.Context, p *Proc) int { return p.num(1) },
		"echo":          echo,
		"printf":        printf,
		"cat":           cat,
		"sleep":         sleep,
		"env":           env,
		"pwd":           func(_ context.Context, p *Proc) int { return p.print(p.Dir + "\n") },
		"id":            func(_ context.Context, p *Proc) int { return p.print(strconv.Itoa(p.UID) + "\n") },
		"tty":           tty,
		"size":          size,
		"seq":           seq,
		"yes":           yes,
		"both":          both,
		"write":         write,
		"drain":         drain,
		"kill-self":     killSelf,
		"trap":          trap,
		"trap-exit":     trapExit,
		"spawn":         spawn,
		"fork":          fork,
		"busy-tree":     busyTree,
		"oom":           func(_ context.Context, p *Proc) int { p.OOM(); return 0 },
		"alloc":         alloc,
		"alloc-child":   allocChild,
		"listen":        listen,
		"interfaces":    interfaces,
		"ulimit":        func(_ context.Context, p *Proc) int { return p.print(fmt.Sprintln(p.Box().OpenFiles)) },
		"taibox-bridge": hold,
		"entry":         entry,
	}
}

// Programs returns the names of the programs that every driver has, sorted.
//
//	true, false, exit N       end with 0, 1, N
//	echo, printf, seq A B     print, as everywhere; printf knows %s and backslashes
//	cat [FILE…]               copies its input, or files
//	sleep D                   D in seconds, a Go duration, or "infinity"
//	env, pwd, id, tty         print environment, directory, user id, whether there is a terminal
//	size                      prints rows and columns, again after each line of input
//	yes N                     prints N bytes
//	both N                    prints N lines on stdout and stderr by turns
//	write FILE TEXT           writes a file
//	drain N                   reads its input to the end, then is "seq 1 N"
//	kill-self SIG             dies of that signal
//	trap                      prints "ready", ignores INT and TERM
//	trap-exit N               prints "ready", ends with N at TERM
//	spawn D N [session]       "seq 1 N", starts a "sleep D" that holds its output, prints "ok" and ends
//	entry CMD…                prints "started", then is CMD
//	fork N                    starts N children that sleep for a second, fails if it cannot
//	busy-tree FILE            has children, deaf to TERM and in sessions of their own, that write to FILE
//	oom, alloc N              is killed for memory: always, or beyond the box's limit
//	alloc-child N             the same for a child; prints "survived"
//	listen PORT               serves echo on a port until killed
//	interfaces, ulimit        print network interfaces and the limit of open files
//	taibox-bridge hold        waits for TERM
func Programs() []string { return slices.Sorted(maps.Keys(builtin())) }

func (d *Driver) lookup(b *box, name string) (Program, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return d.lookupLocked(b, name)
}

// lookupLocked finds the program of a command. Where there is none, it returns
// one that says so, and why.
func (d *Driver) lookupLocked(b *box, name string) (Program, string) {
	if p := d.programs[path.Base(name)]; p != nil && !b.dirs[path.Clean(name)] {
		return p, ""
	}
	code, why := 127, "not found"
	if b.dirs[path.Clean(name)] {
		code, why = 126, "is a directory"
	}
	return refusal(code, name, why)
}

// refusal is a command that could not be started, and why.
func refusal(code int, name, why string) (Program, string) {
	why = fmt.Sprintf("%s: %s", name, why)
	return func(_ context.Context, p *Proc) int {
		fmt.Fprintf(p.Stderr, "taibox: %s\n", why) //nolint:errcheck // nobody may be left to read it
		return code
	}, why
}

// maxArgsBytes is what Linux takes of arguments and environment in all, with
// the usual limit of the stack.
const maxArgsBytes = 2 << 20

// programLocked finds the program of an exec, which the kernel would not run
// if its words are too long.
func (d *Driver) programLocked(b *box, spec *sandbox.ExecSpec) (Program, string) {
	run, problem := d.lookupLocked(b, spec.Args[0])
	if problem != "" {
		return run, problem
	}
	env := make([]string, 0, len(spec.Env))
	for _, k := range slices.Sorted(maps.Keys(spec.Env)) {
		env = append(env, k+"="+spec.Env[k])
	}
	all := 0
	long := func(s string) bool {
		all += len(s) + 1 + 8 // and where it is
		return len(s) > sandbox.MaxArgBytes
	}
	if slices.ContainsFunc(slices.Concat(spec.Args, env), long) || all > maxArgsBytes {
		return refusal(126, spec.Args[0], sandbox.ExplainTooLong(spec.Args, env))
	}
	return run, ""
}

// num returns an argument as a number, or 0.
func (p *Proc) num(i int) int {
	n, _ := strconv.Atoi(p.arg(i))
	return n
}

func (p *Proc) arg(i int) string {
	if i < len(p.Args) {
		return p.Args[i]
	}
	return ""
}

// print writes to stdout; the result is an exit code.
func (p *Proc) print(s string) int { return check(io.WriteString(p.Stdout, s)) }

func check[T any](_ T, err error) int {
	if err != nil {
		return 1
	}
	return 0
}

func (p *Proc) fail(err error) int {
	fmt.Fprintf(p.Stderr, "%s: %v\n", path.Base(p.Args[0]), err) //nolint:errcheck // nobody may be left to read it
	return 1
}

func echo(_ context.Context, p *Proc) int { return p.print(strings.Join(p.Args[1:], " ") + "\n") }

func printf(_ context.Context, p *Proc) int {
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(p.arg(1), `"`, `\"`) + `"`)
	if err != nil {
		text = p.arg(1)
	}
	for _, a := range p.Args[min(2, len(p.Args)):] {
		text = strings.Replace(text, "%s", a, 1)
	}
	return p.print(text)
}

func cat(_ context.Context, p *Proc) int {
	if len(p.Args) == 1 {
		return check(io.Copy(p.Stdout, p.Stdin))
	}
	for _, name := range p.Args[1:] {
		data, err := p.ReadFile(path.Join("/", name))
		if err != nil {
			return p.fail(fmt.Errorf("%s: %w", name, err))
		}
		if code := p.print(string(data)); code != 0 {
			return code
		}
	}
	return 0
}

// duration reads "1.5" as seconds, "20ms" as Go does, and "infinity".
func duration(s string) (time.Duration, error) {
	if s == "infinity" {
		return 1 << 62, nil
	}
	if secs, err := strconv.ParseFloat(s, 64); err == nil {
		return time.Duration(secs * float64(time.Second)), nil
	}
	return time.ParseDuration(s)
}

func sleepFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func sleep(ctx context.Context, p *Proc) int {
	d, err := duration(p.arg(1))
	if err != nil {
		return p.fail(err)
	}
	sleepFor(ctx, d)
	return 0
}

func env(_ context.Context, p *Proc) int {
	for _, k := range slices.Sorted(maps.Keys(p.Env)) {
		p.print(k + "=" + p.Env[k] + "\n")
	}
	return 0
}

func tty(_ context.Context, p *Proc) int {
	if p.e.spec.TTY {
		return p.print("/dev/pts/0\n")
	}
	p.print("not a tty\n")
	return 1
}

func size(_ context.Context, p *Proc) int {
	lines := bufio.NewScanner(p.Stdin)
	for {
		s := p.Size()
		if p.print(fmt.Sprintln(s.Rows, s.Cols)) != 0 || !lines.Scan() {
			return 0
		}
	}
}

func seq(ctx context.Context, p *Proc) int { return count(ctx, p, p.num(1), p.num(2)) }

func count(ctx context.Context, p *Proc, from, to int) int {
	var buf []byte
	for i := from; i <= to && ctx.Err() == nil; i++ {
		buf = append(strconv.AppendInt(buf, int64(i), 10), '\n')
		if len(buf) >= segmentSize || i == to {
			if p.print(string(buf)) != 0 {
				return 1
			}
			buf = buf[:0]
		}
	}
	return 0
}

func yes(_ context.Context, p *Proc) int {
	line := []byte(strings.Repeat("y\n", segmentSize/2))
	for left := p.num(1); left > 0; {
		n, err := p.Stdout.Write(line[:min(left, len(line))])
		if err != nil {
			return 1
		}
		left -= n
	}
	return 0
}

func both(ctx context.Context, p *Proc) int {
	for i := 1; i <= p.num(1) && ctx.Err() == nil; i++ {
		w := p.Stdout
		if i%2 == 0 {
			w = p.Stderr
		}
		fmt.Fprintln(w, i) //nolint:errcheck // ctx tells
	}
	return 0
}

func write(_ context.Context, p *Proc) int {
	if err := p.WriteFile(path.Join("/", p.arg(1)), []byte(p.arg(2)+"\n"), false); err != nil {
		return p.fail(err)
	}
	return 0
}

func drain(ctx context.Context, p *Proc) int {
	if _, err := io.Copy(io.Discard, p.Stdin); err != nil {
		return 1
	}
	return count(ctx, p, 1, p.num(1))
}

func killSelf(_ context.Context, p *Proc) int {
	p.Signal(syscall.Signal(p.num(1)))
	return 0
}

func trap(ctx context.Context, p *Proc) int {
	p.Notify(syscall.SIGTERM, syscall.SIGINT)
	p.print("ready\n")
	<-ctx.Done()
	return 0
}

func trapExit(ctx context.Context, p *Proc) int {
	term := p.Notify(syscall.SIGTERM)
	p.print("ready\n")
	select {
	case <-term:
	case <-ctx.Done():
	}
	return p.num(1)
}

func hold(ctx context.Context, _ *Proc) int {
	<-ctx.Done()
	return 0
}

func spawn(ctx context.Context, p *Proc) int {
	count(ctx, p, 1, p.num(2))
	_, err := p.Spawn(Child{Program: sleep, Args: []string{"sleep", p.arg(1)}, NewSession: p.arg(3) == "session"})
	if err != nil {
		return p.fail(err)
	}
	return p.print("ok\n")
}

func entry(ctx context.Context, p *Proc) int {
	p.print("started\n")
	p.Args = p.Args[1:]
	run, _ := p.e.d.lookup(p.e.b, p.arg(0))
	return run(ctx, p)
}

func fork(ctx context.Context, p *Proc) int {
	for range p.num(1) {
		if _, err := p.Spawn(Child{Program: sleep, Args: []string{"sleep", "1"}, ClosesOutput: true}); err != nil {
			return p.fail(err)
		}
	}
	sleepFor(ctx, time.Second)
	return 0
}

func busyTree(ctx context.Context, p *Proc) int {
	scribble := func(ctx context.Context, c *Proc) int {
		c.Notify(syscall.SIGTERM, syscall.SIGHUP)
		for ctx.Err() == nil {
			c.WriteFile(p.arg(1), []byte("x\n"), true) //nolint:errcheck // a test looks at the file
			sleepFor(ctx, 20*time.Millisecond)
		}
		return 0
	}
	for _, session := range []bool{true, true, false} {
		if _, err := p.Spawn(Child{Program: scribble, Args: []string{"scribble"}, NewSession: session}); err != nil {
			return p.fail(err)
		}
	}
	p.print("ready\n")
	<-ctx.Done()
	return 0
}

func alloc(_ context.Context, p *Proc) int {
	if limit := p.Box().MemoryBytes; limit > 0 && int64(p.num(len(p.Args)-1)) > limit {
		p.OOM()
	}
	return 0
}

func allocChild(ctx context.Context, p *Proc) int {
	c, err := p.Spawn(Child{Program: alloc, Args: p.Args})
	if err != nil {
		return p.fail(err)
	}
	c.Wait(ctx)
	return p.print("survived\n")
}

func listen(ctx context.Context, p *Proc) int {
	l, err := p.Listen(p.num(1))
	if err != nil {
		return p.fail(err)
	}
	p.print("ready\n")
	for {
		c, err := l.Accept()
		if err != nil {
			return 0
		}
		p.e.b.m.work.run(func() {
			stop := context.AfterFunc(ctx, func() { c.Close() }) //nolint:errcheck // in memory
			defer stop()
			defer c.Close() //nolint:errcheck // in memory
			echoTo(c)
		})
	}
}

func echoTo(c net.Conn) {
	if _, err := io.Copy(c, c); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return
	}
}

func interfaces(_ context.Context, p *Proc) int {
	p.print("lo\n")
	if p.Box().IP != "" {
		p.print("eth0\n")
	}
	return 0
}
