package server

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/taibox/taibox/internal/audit"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// note gathers what the audit log says of a request.
type note struct {
	mu      sync.Mutex
	caller  *Caller // nil: nobody was let in
	verb    Verb
	object  Object
	exec    string // of the object, a box
	denied  bool
	code    string // of the failure
	open    bool   // that it becomes a WebSocket is not its result
	written bool
}

func noteOf(ctx context.Context) *note {
	n, _ := ctx.Value(noteKey).(*note)
	if n == nil {
		n = &note{} // a request that did not come by the edge
	}
	return n
}

// asked notes what the authoriser was asked first, and whether it ever
// refused.
func (n *note) asked(verb Verb, object Object, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.verb == "" {
		n.verb, n.object, n.denied = verb, object, err != nil
	}
}

func (n *note) admitted(c *Caller) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.caller = c
}

func (n *note) failed(code string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.code = code
}

// noteExec notes which exec of a box it is about.
func noteExec(ctx context.Context, id string) {
	n := noteOf(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.exec = id
}

// auditLater keeps a request that becomes a WebSocket from being written down
// as done for that alone: what is returned writes it down once its result is
// known, and the edge does so at the latest.
func (s *Server) auditLater(r *http.Request) (settle func()) {
	n := noteOf(r.Context())
	n.leaveOpen(true)
	return func() {
		n.leaveOpen(false)
		s.audit(r, n, http.StatusSwitchingProtocols)
	}
}

func (n *note) leaveOpen(open bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open = open
}

// noteID notes the id of what was made.
func (*Server) noteID(ctx context.Context, id string) {
	n := noteOf(ctx)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.object.ID = id
}

// auditor writes the audit log.
type auditor struct {
	log *audit.Log // nil: none is kept

	// Who is nobody could fill the log; of them only so many are noted.
	strangers *rate.Limiter
	mu        sync.Mutex
	skipped   int
}

func newAuditor(log *audit.Log) *auditor {
	return &auditor{log: log, strangers: rate.NewLimiter(1, 20)}
}

// audit writes a request down, once, as soon as its result is known: what
// changes something, and what was refused.
func (s *Server) audit(r *http.Request, n *note, status int) {
	a := s.auditor
	if a.log == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	reads := n.verb == VerbGet || n.verb == VerbList || n.verb == ""
	refused := n.denied || n.verb == "" && (status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusTooManyRequests)
	unknown := n.open && status == http.StatusSwitchingProtocols
	if n.written || unknown || reads && !refused {
		return
	}
	n.written = true
	id, _ := r.Context().Value(requestIDKey).(string)
	e := audit.Entry{
		Time: time.Now().UTC(), RequestID: id, Verb: string(n.verb), Status: status, Result: "ok",
		Object: audit.Object{Kind: string(n.object.Kind), ID: n.object.ID, Owner: n.object.Owner, Node: n.object.Node, Exec: n.exec},
	}
	p, _ := r.Context().Value(peerKey).(peer)
	if p.cred != nil {
		uid := int(p.cred.Uid)
		e.Caller.UID, e.Caller.PID = &uid, int(p.cred.Pid)
	}
	if !p.local {
		e.Caller.Remote = r.RemoteAddr
	}
	if n.caller != nil {
		e.Caller.Key, e.Caller.Owner, e.Caller.Admin = n.caller.Name, n.caller.Owner, n.caller.Admin
	} else if !a.admit(&e) {
		return
	}
	switch {
	case n.code != "":
		e.Result = n.code
	case status >= http.StatusBadRequest:
		e.Result = codeOf(status)
	}
	if err := a.log.Write(&e); err != nil {
		s.log.LogAttrs(r.Context(), slog.LevelError, "audit log is not complete", slog.String("request_id", id), slog.Any("err", err))
	}
}

// auditEnd writes down what nobody asked for: that a box failed, or was stopped
// or removed, and that an exec was lost or killed for memory. The reason is
// known for as long as the log is kept, and not just as long as the box.
func (s *Server) auditEnd(ctx context.Context, e *sandbox.Event) {
	if s.auditor.log == nil {
		return
	}
	end := audit.Entry{
		Time: e.Time.UTC(), Caller: audit.Caller{Key: "system"}, Verb: verbEnd,
		Object: audit.Object{Kind: string(KindBox), ID: e.Box, Owner: e.Owner, Node: e.NodeID}, Result: string(e.State), Reason: e.Reason,
	}
	switch asked := slices.Contains(askedReasons, e.Reason); {
	case e.Type == sandbox.EventState && (e.State == taisandbox.StateFailed || e.State == taisandbox.StateStopped && !asked):
	case e.Type == sandbox.EventRemoved && !asked:
		end.Result = statusRemoved
	case e.Type == sandbox.EventExec && (e.Exec.Reason == taisandbox.ReasonOOM || e.Exec.Reason == taisandbox.ReasonLost):
		end.Object.Exec, end.Result, end.Reason = e.Exec.ID, string(e.Exec.State), string(e.Exec.Reason)
	default:
		return
	}
	if err := s.auditor.log.Write(&end); err != nil {
		s.log.LogAttrs(ctx, slog.LevelError, "audit log is not complete", slog.String("box", e.Box), slog.Any("err", err))
	}
}

// auditFailed writes down what failed while nobody looked. It is so again at
// each start, with the same time, for as long as the box is there.
func (s *Server) auditFailed(ctx context.Context) {
	boxes, err := s.cfg.Manager.List(ctx, sandbox.ListOptions{})
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "boxes that failed meanwhile are not in the audit log", slog.Any("err", err))
		return
	}
	for _, b := range boxes {
		if i := b.Snapshot(); i.Status == string(taisandbox.StateFailed) {
			s.auditEnd(ctx, &sandbox.Event{
				Time: i.StoppedAt, Type: sandbox.EventState, Box: i.ID, Owner: i.Owner, NodeID: i.NodeID, State: taisandbox.StateFailed, Reason: i.StopReason,
			})
		}
	}
}

// verbEnd is the verb of what nobody asked for.
const verbEnd = "end"

// askedReasons are those of ends that are a request's, which is written down.
var askedReasons = []string{"user", "create-failed"}

// admit notes a stranger, or counts it for the next one that is noted.
func (a *auditor) admit(e *audit.Entry) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.strangers.Allow() {
		a.skipped++
		return false
	}
	e.Skipped, a.skipped = a.skipped, 0
	return true
}
