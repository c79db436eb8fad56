package rest

import "time"

// Event is something that happened to a box: the data of a server-sent event.
type Event struct {
	ID     string            `json:"id,omitempty" doc:"Its place: sent as Last-Event-ID it continues after this one"`
	Time   time.Time         `json:"time"`
	Type   string            `json:"type" doc:"state, removed, exec, oom, or gap: events were missed, list again"`
	Box    string            `json:"box,omitempty"`
	Owner  string            `json:"owner,omitempty"`
	NodeID string            `json:"node_id,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	State  string            `json:"state,omitempty" doc:"Of a box, for state"`
	Reason string            `json:"reason,omitempty" doc:"Why: user, oneshot, oom, …"`
	Exec   *Exec             `json:"exec,omitempty" doc:"The record of a command, for exec and oom"`
}

// The types of events.
const (
	EventState   = "state"
	EventRemoved = "removed"
	EventExec    = "exec"
	EventOOM     = "oom"
	EventGap     = "gap"
)

// HeaderLastEventID says after which event a stream of events begins.
const HeaderLastEventID = "Last-Event-Id"

// WatchEvents selects events. Empty fields do not filter.
type WatchEvents struct {
	Boxes  []string
	Owners []string
	Types  []string
	Labels map[string]string
	// Since is the ID of the last event that is known; with "" only what
	// happens from now on is told.
	Since string
}
