package inside

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// handle carries out one request. An error is told to the node. It calls
// arrived when the request can start no exec any more.
func (s *Server) handle(conn *wire.Conn, req *wire.Request, files *passed, arrived func()) error {
	if req.Op != wire.OpExec && req.Op != wire.OpMerged {
		arrived()
	}
	switch req.Op {
	case wire.OpSetup:
		return reply(conn, req, func(b *wire.Setup) (any, error) { return s.setup(b, files) })
	case wire.OpExec, wire.OpMerged:
		return s.exec(conn, req, files, arrived)
	case wire.OpAttach:
		return s.attach(conn, req)
	case wire.OpExecs:
		return s.listEach(conn)
	case wire.OpSettle:
		return reply(conn, req, func(*struct{}) (any, error) { return struct{}{}, s.settle(conn) })
	case wire.OpList:
		return reply(conn, req, func(*struct{}) (any, error) { return s.list(), nil })
	case wire.OpInspect:
		return reply(conn, req, func(b *wire.ID) (any, error) {
			e, err := s.find(b.ID)
			if err != nil {
				return nil, err
			}
			return e.record(), nil
		})
	case wire.OpWait:
		return reply(conn, req, func(b *wire.ID) (any, error) { return s.wait(conn, b) })
	case wire.OpKill:
		return reply(conn, req, func(b *wire.Kill) (any, error) { return struct{}{}, s.kill(b) })
	case wire.OpForget:
		return reply(conn, req, func(b *wire.ID) (any, error) { return struct{}{}, s.forget(b) })
	case wire.OpWatch:
		return s.watch(conn)
	case wire.OpStop:
		return reply(conn, req, func(b *wire.Stop) (any, error) {
			s.stop(b.Grace)
			return struct{}{}, nil
		})
	case wire.OpPorts:
		return reply(conn, req, func(*struct{}) (any, error) { return listening(), nil })
	case wire.OpStats:
		return reply(conn, req, func(*struct{}) (any, error) { return s.stats() })
	case wire.OpDial:
		return s.dial(conn, req)
	case wire.OpFile:
		return s.file(conn, req)
	}
	return fmt.Errorf("%w: the box's bridge knows no operation %.32q", sandbox.ErrUnsupported, req.Op)
}

// decode reads a request's body.
func decode[T any](req *wire.Request) (*T, error) {
	body := new(T)
	if len(req.Body) == 0 {
		return body, nil
	}
	if err := json.Unmarshal(req.Body, body); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	return body, nil
}

// reply answers a request with what do returns.
func reply[T any](conn *wire.Conn, req *wire.Request, do func(*T) (any, error)) error {
	body, err := decode[T](req)
	if err != nil {
		return err
	}
	res, err := do(body)
	if err != nil {
		return err
	}
	return conn.WriteJSON(wire.TypeReply, res)
}

func (s *Server) setup(b *wire.Setup, files *passed) (any, error) {
	if err := files.name(b.Files); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.box = b.Box
	s.oom.follow(files.take(wire.FileOOM))
	if f := files.take(wire.FileEnd); f != nil {
		if s.end != nil {
			s.end.Close() //nolint:errcheck // nothing was written
		}
		s.end = f
	}
	s.alone.setup(b.OrphanAfter, b.Lifetime)
	return wire.Hello{Protocol: wire.Major, Version: s.cfg.Version, PID: os.Getpid(), Started: s.started}, nil
}

func (s *Server) exec(conn *wire.Conn, req *wire.Request, files *passed, arrived func()) error {
	body, err := decode[wire.Exec](req)
	if err != nil {
		return err
	}
	if err := files.name(body.Files); err != nil {
		return err
	}
	body.Merged = req.Op == wire.OpMerged
	e, err := s.startExec(body, files)
	arrived()
	if err != nil {
		return err
	}
	st, err := newStream(e, conn, wire.Attach{ID: body.ID, Hold: true})
	if err != nil {
		return err
	}
	st.run()
	return nil
}

func (s *Server) attach(conn *wire.Conn, req *wire.Request) error {
	body, err := decode[wire.Attach](req)
	if err != nil {
		return err
	}
	e, err := s.find(body.ID)
	if err != nil {
		return err
	}
	st, err := newStream(e, conn, *body)
	if err != nil {
		return err
	}
	st.run()
	return nil
}

// settle waits for the requests that came before: each connection is read in
// its own time, so that one may start an exec after a later one was answered.
func (s *Server) settle(conn *wire.Conn) error {
	s.mu.Lock()
	before := slices.Collect(maps.Keys(s.arriving))
	s.mu.Unlock()
	left := linkEnd(conn)
	for _, arrived := range before {
		select {
		case <-arrived:
		case <-left:
			return fmt.Errorf("%w: the node left", wire.ErrProtocol)
		}
	}
	return nil
}

// listEach tells of each exec in a frame of its own: all of them may be more
// than one can hold.
func (s *Server) listEach(conn *wire.Conn) error {
	for _, e := range s.all() {
		if err := conn.WriteJSON(wire.TypeReply, e.record()); err != nil {
			return err
		}
	}
	return conn.WriteFrame(wire.TypeEnd, nil)
}

func (s *Server) list() []sandbox.ExecInfo {
	infos := []sandbox.ExecInfo{}
	for _, e := range s.all() {
		infos = append(infos, e.record())
	}
	return infos
}

func (s *Server) wait(conn *wire.Conn, b *wire.ID) (any, error) {
	e, err := s.find(b.ID)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.done:
	case <-linkEnd(conn):
	}
	return e.record(), nil
}

func (s *Server) kill(b *wire.Kill) error {
	if b.Signal < 0 || b.Signal > 64 {
		return fmt.Errorf("%w: signal %d", sandbox.ErrInvalidSpec, b.Signal)
	}
	e, err := s.find(b.ID)
	if err != nil {
		return err
	}
	return e.kill(b)
}

// forget drops a finished exec.
func (s *Server) forget(b *wire.ID) error {
	e, err := s.find(b.ID)
	if err != nil {
		return err
	}
	if !e.finished() {
		return fmt.Errorf("forget exec %s: %w: it still runs", b.ID, sandbox.ErrExecBusy)
	}
	s.drop(e)
	e.forget()
	return nil
}

// dialLimit bounds a connection inside the box.
const dialLimit = 10 * time.Second

// dial connects to the box's loopback and hands the connected socket out.
func (s *Server) dial(conn *wire.Conn, req *wire.Request) error {
	b, err := decode[wire.Dial](req)
	if err != nil {
		return err
	}
	if b.Port < 1 || b.Port > 65535 {
		return fmt.Errorf("%w: port %d", sandbox.ErrInvalidSpec, b.Port)
	}
	d := net.Dialer{Timeout: dialLimit}
	c, err := d.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(b.Port)))
	if err != nil {
		return fmt.Errorf("%w: %d: %w", sandbox.ErrPortRefused, b.Port, err)
	}
	defer c.Close()
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer f.Close()
	return conn.WriteJSONWithFiles(wire.TypeReply, struct{}{}, []*os.File{f})
}

func (s *Server) stats() (any, error) {
	pids, err := processIDs()
	if err != nil {
		return nil, err
	}
	st := wire.Stats{Processes: len(pids)}
	statm, err := readSmall("/proc/self/statm")
	if err != nil {
		return nil, err
	}
	if f := strings.Fields(string(statm)); len(f) > 1 {
		if pages, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			st.RSSBytes = pages * int64(unix.Getpagesize())
		}
	}
	for _, e := range s.all() {
		if !e.finished() {
			st.Execs++
		}
	}
	return st, nil
}
