package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/workspace"
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
	VerbExec   Verb = "exec" // also to feed, hold and signal execs, and to change files
)

// Verbs lists what a key can be restricted to.
func Verbs() []Verb {
	return []Verb{VerbList, VerbGet, VerbCreate, VerbStart, VerbStop, VerbRemove, VerbExec}
}

// Kind is a kind of object.
type Kind string

// The kinds of objects.
const (
	KindServer Kind = "server"
	KindBox    Kind = "box"
	KindImage  Kind = "image"
	KindNode   Kind = "node"
	KindKey    Kind = "key"
	// KindWorkspace is a workspace with its files and snapshots.
	KindWorkspace Kind = "workspace"
	// KindHost is the machine of a node: what a box is given of its directories
	// and devices. To use it takes [VerbExec], and is for admins.
	KindHost Kind = "host"
	// KindMetrics is what the server counts over all owners: for admins.
	KindMetrics Kind = "metrics"
)

// Object is what a verb is about. A list has no ID.
type Object struct {
	Kind  Kind
	ID    string
	Owner string // of a box or workspace that exists, or is to be created
	Node  string
}

// Caller is who sent a request.
type Caller struct {
	Name  string // id of the key, or "socket"
	Key   bool   // it has shown a key
	Admin bool   // may do everything
	Owner string // else: whose boxes and workspaces it may know of
	Verbs []Verb // what it may do of that; none: all

	Expires time.Time       // when its key ends; zero: never
	ended   <-chan struct{} // closed when its key no longer counts
}

// Authorizer decides what a caller may do. The one of a server is asked by
// each of its handlers before anything is done.
type Authorizer interface {
	// Authorize returns nil if the caller may. The class of its error decides
	// the answer: NotFound where the caller has no right to know of the object.
	Authorize(ctx context.Context, caller Caller, verb Verb, object Object) error
}

type contextKey int

const (
	peerKey contextKey = iota
	callerKey
	requestIDKey
	noteKey
)

// allow asks the authoriser.
func (s *Server) allow(ctx context.Context, verb Verb, object Object) error {
	caller, ok := ctx.Value(callerKey).(Caller)
	if !ok {
		return rest.ErrUnauthenticated
	}
	err := s.cfg.Authorizer.Authorize(ctx, caller, verb, object)
	noteOf(ctx).asked(verb, object, err)
	return err
}

// owner is whose box a caller makes that does not say so.
func owner(ctx context.Context) string {
	caller, _ := ctx.Value(callerKey).(Caller)
	return caller.Owner
}

// box asks the authoriser about a box and returns it.
func (s *Server) box(ctx context.Context, verb Verb, id string) (*sandbox.Box, error) {
	b, err := s.cfg.Manager.Get(ctx, id)
	object := Object{Kind: KindBox, ID: id}
	if err == nil {
		object.Owner, object.Node = b.Owner(), b.NodeID()
	}
	switch denied := s.allow(ctx, verb, object); {
	case errors.Is(denied, sandbox.ErrNotFound):
		// To the letter what is said of a box that does not exist.
		return nil, s.cfg.Manager.Absent(id)
	case denied != nil:
		return nil, denied
	}
	return b, err
}

// workspace asks the authoriser about a workspace and returns it.
func (s *Server) workspace(ctx context.Context, verb Verb, id string) (*workspace.Workspace, error) {
	ws, err := s.cfg.Workspaces.Get(ctx, id)
	object := Object{Kind: KindWorkspace, ID: id}
	if err == nil {
		object.Owner, object.Node = ws.Owner, ws.Node
	}
	switch denied := s.allow(ctx, verb, object); {
	case errors.Is(denied, workspace.ErrNotFound):
		// To the letter what is said of one that does not exist.
		return nil, s.cfg.Workspaces.Absent(id)
	case denied != nil:
		return nil, denied
	}
	return ws, err
}

// peer is who is at the other end of a connection.
type peer struct {
	local bool // a Unix socket
	known bool // one that may be let in without a key
	cred  *unix.Ucred
}

// ConnContext notes who is at the other end of c. [Server.Run] uses it; who
// serves [Server.Handler] by other means sets it as http.Server.ConnContext,
// else no caller is known.
func (s *Server) ConnContext(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return context.WithValue(ctx, peerKey, peer{})
	}
	cred := credentials(u)
	trusted := cred != nil && (cred.Uid == 0 || int(cred.Uid) == os.Geteuid())
	return context.WithValue(ctx, peerKey, peer{local: true, known: s.cfg.SocketGroup || trusted, cred: cred})
}

// credentials returns who opened the connection, if that can be known.
func credentials(c *net.UnixConn) *unix.Ucred {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil || credErr != nil {
		return nil
	}
	return cred
}

// identify says who sent a request, or why that is nobody.
func (s *Server) identify(r *http.Request) (Caller, error) {
	p, _ := r.Context().Value(peerKey).(peer)
	if err := s.checkOrigin(r, p); err != nil {
		return Caller{}, err
	}
	if key, given := token(r); given { // a wrong one does not count less on the socket
		return s.keyCaller(key)
	}
	switch {
	case p.known:
		return Caller{Name: "socket", Admin: true}, nil
	case p.local:
		return Caller{}, reason.WithHint(fmt.Errorf("%w: the socket is root's", rest.ErrForbidden),
			"run it as root, or as a member of the group that the server was given with --group")
	}
	return Caller{}, reason.WithHint(rest.ErrUnauthenticated, "send a key as Authorization: Bearer or X-API-Key; the command line takes it from TAIBOX_API_KEY")
}

// checkOrigin keeps web pages out: of another origin, and of one that a name
// made to resolve to us seems to be of.
func (s *Server) checkOrigin(r *http.Request, p peer) error {
	if !p.local && !s.ownHost(r) {
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
// came in by, or is a name that we were told is ours.
func (s *Server) ownHost(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if !ok {
		return false
	}
	at := r.Host
	if r.TLS != nil && local.Port == 443 || r.TLS == nil && local.Port == 80 {
		if u := (&url.URL{Host: at}); u.Port() == "" {
			at = net.JoinHostPort(u.Hostname(), fmt.Sprint(local.Port)) // which is not sent
		}
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil || port != fmt.Sprint(local.Port) {
		return false
	}
	if s.cfg.OwnName != nil && s.cfg.OwnName(host) {
		return true
	}
	if strings.EqualFold(host, "localhost") {
		return local.IP.IsLoopback()
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap() == local.AddrPort().Addr().Unmap()
}
