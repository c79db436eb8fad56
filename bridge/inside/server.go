package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// Config says how to serve.
type Config struct {
	// Listener brings the node's connections. Only those of a Unix socket can
	// carry descriptors; what needs them falls back or is refused.
	Listener net.Listener
	// TrustPeer decides whether a connection is the node's. Default:
	// [PeerOutside].
	TrustPeer func(net.Conn) error
	// Version of the program, for Hello.
	Version string
}

// Server is PID 1 of a box.
type Server struct {
	cfg      Config
	reaper   *reaper
	null     *os.File
	started  time.Time
	quit     chan struct{} // closed when the process is about to end
	conns    sync.WaitGroup
	blocking chan struct{} // has a token for each request that may keep a thread
	alone    alone
	oom      oomCounter

	mu       sync.Mutex
	arriving map[chan struct{}]struct{} // of each connection that may yet start an exec, closed then
	parting  bool                       // the process is about to end
	box      string
	end      *os.File // for why the box ended itself; nil if not known
	execs    map[string]*exec
	order    []*exec // oldest first
	watchers map[*watcher]struct{}
	stopping bool
	stopped  chan struct{} // closed when nothing runs any more
	idle     *time.Timer   // runs when nothing has happened for idleDelay
}

// idleDelay is after how much quiet the memory of busier times is given back.
const idleDelay = 2 * time.Second

// PeerOutside trusts processes outside the pid namespace only: in a box those
// have no number.
func PeerOutside(c net.Conn) error {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("a peer without credentials")
	}
	rc, err := uc.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := rc.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if cerr != nil {
		return cerr
	}
	if cred.Pid != 0 {
		return fmt.Errorf("process %d of the box", cred.Pid)
	}
	return nil
}

// Run serves until the box is stopped, by the node or by a SIGTERM from
// outside. When it returns nil nothing else runs in the box.
func Run(cfg Config) error {
	if cfg.TrustPeer == nil {
		cfg.TrustPeer = PeerOutside
	}
	// Whatever else was left open for this process is not the box's.
	unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) //nolint:errcheck // our own are marked one by one
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	s := &Server{
		cfg: cfg, reaper: newReaper(), null: null, started: time.Now(), quit: make(chan struct{}),
		arriving: map[chan struct{}]struct{}{}, execs: map[string]*exec{}, watchers: map[*watcher]struct{}{}, stopped: make(chan struct{}), blocking: make(chan struct{}, maxBlocking),
	}
	s.alone.end = s.endAlone
	defer s.alone.close()
	s.idle = time.AfterFunc(idleDelay, debug.FreeOSMemory)
	defer s.idle.Stop()
	outside, stopSignals := catchSignals()
	defer stopSignals()
	var own sync.WaitGroup
	own.Go(func() { s.reaper.run(s.quit) })
	own.Go(s.accept)
	own.Go(func() {
		select {
		case <-outside:
			s.stop(sandbox.DefaultKillGrace)
		case <-s.quit:
		}
	})
	<-s.stopped
	s.say(farewell)
	close(s.quit)
	cfg.Listener.Close() //nolint:errcheck // the process ends
	own.Wait()
	return nil
}

// endAlone stops a box that its node has left, and leaves a note of why.
func (s *Server) endAlone(why string) {
	s.mu.Lock()
	f := s.end
	s.mu.Unlock()
	noteEnd(f, why)
	s.stop(sandbox.DefaultKillGrace)
}

// farewell bounds how long readers may take for the last they are told.
const farewell = time.Second

// say waits until the connections have said what they had to, or for limit.
func (s *Server) say(limit time.Duration) {
	s.mu.Lock()
	s.parting = true
	s.mu.Unlock()
	said := make(chan struct{})
	go func() {
		s.conns.Wait()
		close(said)
	}()
	select {
	case <-said:
	case <-time.After(limit):
	}
}

// acceptPause keeps a lack of descriptors from becoming a busy loop.
const acceptPause = 20 * time.Millisecond

func (s *Server) accept() {
	for {
		c, err := s.cfg.Listener.Accept()
		if err == nil {
			s.take(c)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case <-s.quit:
			return
		case <-time.After(acceptPause):
		}
	}
}

// take serves a connection. One that comes when the process is about to end is
// not waited for.
func (s *Server) take(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	here := make(chan struct{})
	s.arriving[here] = struct{}{}
	arrived := sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.arriving, here)
		close(here)
	})
	if s.parting {
		go s.serve(c, arrived)
		return
	}
	s.conns.Go(func() { s.serve(c, arrived) })
}

// serve answers one connection. Nothing that goes wrong in it ends the process.
// It calls arrived when the connection can start no exec any more.
func (s *Server) serve(c net.Conn, arrived func()) {
	defer arrived()
	defer c.Close()
	if err := s.cfg.TrustPeer(c); err != nil {
		return
	}
	s.alone.link()
	defer s.alone.unlink()
	conn := wire.NewConn(c)
	defer func() {
		if r := recover(); r != nil {
			conn.WriteJSON(wire.TypeError, wire.Error{Message: fmt.Sprintf("the bridge made a mistake: %v", r)}) //nolint:errcheck // nobody else to tell
		}
	}()
	conn.WantFiles()
	t, payload, err := conn.ReadFrame()
	files := &passed{files: conn.TakeFiles()}
	defer files.close()
	if err == nil && t != wire.TypeRequest {
		err = fmt.Errorf("%w: a frame of type %d instead of a request", wire.ErrProtocol, t)
	}
	var req wire.Request
	if err == nil {
		err = decodeRequest(payload, &req)
	}
	if err == nil {
		err = s.handle(conn, &req, files, arrived)
	}
	if err != nil {
		conn.WriteJSON(wire.TypeError, wire.NewError(err)) //nolint:errcheck // the link is gone, then
	}
}

func decodeRequest(payload []byte, req *wire.Request) error {
	if err := json.Unmarshal(payload, req); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	if req.Version != wire.Major {
		return fmt.Errorf("%w: the box's bridge speaks version %d of the protocol, not %d", sandbox.ErrUnsupported, wire.Major, req.Version)
	}
	return nil
}

// passed are the descriptors of a request, by name.
type passed struct {
	files []*os.File
	names []string
}

// name says what the files are, in order.
func (p *passed) name(names []string) error {
	if len(names) != len(p.files) {
		return fmt.Errorf("%w: %d descriptors for %d names", wire.ErrProtocol, len(p.files), len(names))
	}
	p.names = names
	return nil
}

// take gives a file away, or nil.
func (p *passed) take(name string) *os.File {
	i := slices.Index(p.names, name)
	if i < 0 {
		return nil
	}
	f := p.files[i]
	p.files[i] = nil
	return f
}

func (p *passed) close() {
	for _, f := range p.files {
		if f != nil {
			f.Close() //nolint:errcheck // nobody wanted it
		}
	}
}

func (s *Server) boxName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.box
}

// add takes the exec's ID.
func (s *Server) add(e *exec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := e.info.ID
	switch {
	case s.stopping:
		return fmt.Errorf("start exec %s: %w", id, sandbox.ErrNotRunning)
	case s.execs[id] != nil:
		return fmt.Errorf("start exec %s: %w", id, sandbox.ErrExecExists)
	}
	s.execs[id] = e
	s.order = append(s.order, e)
	return nil
}

// drop gives the exec's ID back.
func (s *Server) drop(e *exec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.execs, e.info.ID)
	s.order = slices.DeleteFunc(s.order, func(o *exec) bool { return o == e })
}

func (s *Server) find(id string) (*exec, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.execs[id]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("exec %.64q: %w", id, sandbox.ErrExecNotFound)
}

func (s *Server) all() []*exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}
