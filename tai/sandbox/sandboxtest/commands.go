package sandboxtest

import (
	"strconv"
	"time"
)

// Commands says how things are done in a box: each field returns the arguments
// of a command. [ShellCommands] is for images with a shell.
type Commands struct {
	Echo func(text string) []string     // prints the text and a newline
	Exit func(code int) []string        // ends with the code
	Cat  func(files ...string) []string // copies its input, or files
	// Sleep does nothing for a while.
	Sleep func(d time.Duration) []string
	Write func(file, text string) []string // puts the text and a newline into a file
	// Count prints the numbers from 1 to n, one a line.
	Count func(n int) []string
	// Drain reads its input to the end, then counts.
	Drain func(n int) []string
	// Both prints the numbers from 1 to n, odd ones on stdout, even ones on stderr.
	Both func(n int) []string
	Env  func() []string // prints the environment, K=V
	Pwd  func() []string // prints the working directory
	UID  func() []string // prints the user's number

	KillSelf func(sig int) []string // dies of the signal
	// Trap prints "ready", ignores INT and TERM, and does not end.
	Trap func() []string
	// TrapExit prints "ready" and ends with the code at TERM.
	TrapExit func(code int) []string
	// Spawn counts to n, leaves a child that holds its output for d, in a
	// session of its own if asked, prints "ok" and ends with 0.
	Spawn func(n int, d time.Duration, session bool) []string
	// BusyTree prints "ready" and does not end. It has children that ignore
	// TERM, some in sessions of their own, and add to the file all the time.
	BusyTree func(file string) []string
	// Fork starts n children at once, and fails if it cannot.
	Fork func(n int) []string
	// Alloc uses more memory than there is; at least bytes.
	Alloc func(bytes int64) []string
	// AllocChild does so in a child, then prints "survived" and ends with 0.
	AllocChild func(bytes int64) []string
	OpenFiles  func() []string // prints the limit of open files
	Interfaces func() []string // prints the names of network interfaces, one a line
	// Listen prints "ready" and serves echo on a TCP port until killed.
	Listen func(port int) []string

	// IsTTY ends with 0 if its output is a terminal.
	IsTTY func() []string
	// TTYSize prints rows and columns of its terminal, again after each line
	// of input, until its input ends.
	TTYSize func() []string

	// Entrypoint prints "started", then runs its arguments.
	Entrypoint func() []string
	// Shell runs a script of a POSIX shell. Nil where there is none.
	Shell func(script string) []string
	// Dir is a directory, and Missing a program that does not exist.
	Dir, Missing string
}

// ShellCommands needs sh and the usual tools, as hostfs and busybox have them.
func ShellCommands() Commands {
	sh := func(script string, args ...string) []string {
		return append([]string{"sh", "-c", script, "sh"}, args...)
	}
	secs := func(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
	return Commands{
		Echo:  func(text string) []string { return []string{"echo", text} },
		Exit:  func(code int) []string { return sh(`exit $1`, strconv.Itoa(code)) },
		Cat:   func(files ...string) []string { return append([]string{"cat"}, files...) },
		Sleep: func(d time.Duration) []string { return []string{"sleep", secs(d)} },
		Write: func(file, text string) []string { return sh(`echo "$2" >"$1"`, file, text) },
		Count: func(n int) []string { return []string{"seq", "1", strconv.Itoa(n)} },
		Drain: func(n int) []string { return sh(`cat >/dev/null; seq 1 $1`, strconv.Itoa(n)) },
		Both: func(n int) []string {
			return sh(`i=1; while [ $i -le $1 ]; do if [ $((i%2)) = 1 ]; then echo $i; else echo $i >&2; fi; i=$((i+1)); done`, strconv.Itoa(n))
		},
		Env: func() []string { return []string{"env"} },
		Pwd: func() []string { return sh("pwd") },
		UID: func() []string { return []string{"id", "-u"} },

		KillSelf: func(sig int) []string { return sh(`kill -$1 $$; sleep 60`, strconv.Itoa(sig)) },
		Trap:     func() []string { return sh(`trap '' TERM INT; echo ready; while :; do sleep 0.1; done`) },
		TrapExit: func(code int) []string {
			return sh(`trap "exit $1" TERM; echo ready; while :; do sleep 0.05; done`, strconv.Itoa(code))
		},
		Spawn: func(n int, d time.Duration, session bool) []string {
			if session {
				return sh(`seq 1 $1; (setsid sleep $2 &); echo ok`, strconv.Itoa(n), secs(d))
			}
			return sh(`seq 1 $1; sleep $2 & echo ok`, strconv.Itoa(n), secs(d))
		},
		BusyTree: func(file string) []string {
			return sh(`w='trap "" TERM HUP; while :; do echo x >>"$1"; sleep 0.05; done'
				(setsid sh -c "$w" sh "$1" >/dev/null 2>&1 &)
				(setsid sh -c "(sh -c '$w' sh $1 &)" >/dev/null 2>&1 &)
				sh -c "$w" sh "$1" & echo ready; wait; sleep 600`, file)
		},
		Fork: func(n int) []string {
			return sh(`i=0; while [ $i -lt $1 ]; do sleep 2 & i=$((i+1)); done; wait`, strconv.Itoa(n))
		},
		Alloc:      func(int64) []string { return []string{"tail", "/dev/zero"} },
		AllocChild: func(int64) []string { return sh(`tail /dev/zero; echo survived`) },
		OpenFiles:  func() []string { return sh(`ulimit -n`) },
		Interfaces: func() []string { return []string{"ls", "/sys/class/net"} },
		Listen: func(port int) []string {
			return sh(`if command -v python3 >/dev/null; then exec python3 -c 'import socketserver, sys
class H(socketserver.StreamRequestHandler):
    def handle(self):
        while d := self.request.recv(65536): self.request.sendall(d)
class S(socketserver.ThreadingTCPServer): allow_reuse_address = True
s = S(("0.0.0.0", int(sys.argv[1])), H); print("ready", flush=True); s.serve_forever()' $1; else echo ready; exec nc -ll -p $1 -e cat; fi`, strconv.Itoa(port))
		},
		IsTTY:      func() []string { return []string{"test", "-t", "1"} },
		TTYSize:    func() []string { return sh(`stty -echo; stty size; while read x; do stty size; done`) },
		Entrypoint: func() []string { return sh(`echo started; exec "$@"`) },
		Shell:      func(script string) []string { return []string{"sh", "-c", script} },
		Dir:        "/etc", Missing: "/no/such/program",
	}
}
