package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
)

// Verb is what a caller wants to do.
type Verb string

// The verbs.
const (
	VerbList   Verb = "list"
	VerbGet    Verb = "get" // also to wait, measure and read execs and their output
	VerbCreate Verb = "create"
	VerbStart  Verb = "start"
	VerbStop   Verb = "stop"
	VerbRemove Verb = "remove"
	VerbExec   Verb = "exec" // also to feed, hold and signal execs
)

// Kind is a kind of object.
type Kind string

// The kinds of objects.
const (
	KindServer Kind = "server"
	KindBox    Kind = "box"
	KindImage  Kind = "image"
	KindNode   Kind = "node"
)

// Object is what a verb is about. A list has no ID.
type Object struct {
	Kind  Kind
	ID    string
	Owner string // of a box that exists, or is to be created
	Node  string
}

// Caller is who sent a request.
type Caller struct {
	Name  string // for the log
	Admin bool   // may do everything
}

// Authorizer decides what a caller may do. The one of a server is asked by
// each of its handlers before anything is done.
type Authorizer interface {
	// Authorize returns nil if the caller may. The class of its error decides
	// the answer: NotFound where the caller has no right to know of the object.
	Authorize(ctx context.Context, caller Caller, verb Verb, object Object) error
}

// AdminOnly lets admins do everything and others nothing.
type AdminOnly struct{}

// Authorize implements [Authorizer].
func (AdminOnly) Authorize(_ context.Context, caller Caller, verb Verb, object Object) error {
	if caller.Admin {
		return nil
	}
	return fmt.Errorf("%s %s: %w", verb, object.Kind, rest.ErrForbidden)
}

type contextKey int

const (
	peerKey contextKey = iota
	callerKey
	requestIDKey
)

// allow asks the authoriser.
func (s *Server) allow(ctx context.Context, verb Verb, object Object) error {
	caller, ok := ctx.Value(callerKey).(Caller)
	if !ok {
		return rest.ErrUnauthenticated
	}
	return s.cfg.Authorizer.Authorize(ctx, caller, verb, object)
}

// box asks the authoriser about a box and returns it.
func (s *Server) box(ctx context.Context, verb Verb, id string) (*sandbox.Box, error) {
	b, err := s.cfg.Manager.Get(ctx, id)
	object := Object{Kind: KindBox, ID: id}
	if err == nil {
		object.Owner, object.Node = b.Owner(), b.NodeID()
	}
	if denied := s.allow(ctx, verb, object); denied != nil {
		return nil, denied
	}
	return b, err
}

// peer is who is at the other end of a connection.
type peer struct {
	local bool // a Unix socket
	known bool // one that may be let in
}

// ConnContext notes who is at the other end of c. [Server.Run] uses it; who
// serves [Server.Handler] by other means sets it as http.Server.ConnContext,
// else no caller is known.
func (s *Server) ConnContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return context.WithValue(ctx, peerKey, peer{})
	}
	return context.WithValue(ctx, peerKey, peer{local: true, known: s.cfg.SocketGroup || trusted(u)})
}

// trusted reports whether root or our own user opened the connection.
func trusted(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return false
	}
	return cred.Uid == 0 || int(cred.Uid) == os.Geteuid()
}

// identify says who sent a request, or why that is nobody.
func (s *Server) identify(r *http.Request) (Caller, error) {
	p, _ := r.Context().Value(peerKey).(peer)
	if err := checkOrigin(r, p); err != nil {
		return Caller{}, err
	}
	// No keys exist: one that is sent is wrong, and must not seem to count.
	if len(r.Header.Values("Authorization")) > 0 || len(r.Header.Values(rest.HeaderAPIKey)) > 0 {
		return Caller{}, reason.WithHint(fmt.Errorf("%w: unknown key", rest.ErrUnauthenticated),
			"this server has no keys yet; without one, root is let in on the Unix socket")
	}
	switch {
	case p.known:
		return Caller{Name: "socket", Admin: true}, nil
	case p.local:
		return Caller{}, reason.WithHint(fmt.Errorf("%w: the socket is root's", rest.ErrForbidden),
			"run it as root, or as a member of the group that the server was given with --group")
	}
	return Caller{}, rest.ErrUnauthenticated
}

// checkOrigin keeps web pages out: of another origin, and of one that a name
// made to resolve to us seems to be of.
func checkOrigin(r *http.Request, p peer) error {
	if !p.local && !ownHost(r) {
		return fmt.Errorf("host %.64q: %w", r.Host, rest.ErrOrigin)
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return fmt.Errorf("origin %.64q: %w", origin, rest.ErrOrigin)
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return fmt.Errorf("a page of another site: %w", rest.ErrOrigin)
	}
	return nil
}

// ownHost reports whether the Host header names the address that the request
// came in by.
func ownHost(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil || port != fmt.Sprint(local.Port) {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return local.IP.IsLoopback()
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap() == local.AddrPort().Addr().Unmap()
}
