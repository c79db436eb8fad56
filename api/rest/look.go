package rest

import "time"

// BoxStats is a measurement with the box that it is of.
type BoxStats struct {
	ID    string `json:"id"`
	Owner string `json:"owner"`
	Error string `json:"error,omitempty" doc:"Why the box could not be measured now; it runs, and of the rest only time and memory_limit_bytes are known"`
	Stats
}

// StatsList is one page of a measurement of all boxes that run.
type StatsList struct {
	Items     []BoxStats `json:"items"`
	NextToken string     `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}

// Process is one process of a box.
type Process struct {
	PID        int       `json:"pid" doc:"Inside the box"`
	PPID       int       `json:"ppid" doc:"Inside the box; 0 if its parent is outside"`
	UID        int       `json:"uid" doc:"Inside the box"`
	State      string    `json:"state" doc:"running, sleeping, waiting, stopped, zombie or dead"`
	CPUMs      float64   `json:"cpu_ms" doc:"Processor time used so far"`
	RSSBytes   int64     `json:"rss_bytes"`
	StartedAt  time.Time `json:"started_at,omitzero"`
	Command    string    `json:"command" doc:"As the process calls itself"`
	CommandB64 []byte    `json:"command_b64,omitempty" doc:"Its bytes, if they are not UTF-8"`
}

// ProcessList is all processes of a box.
type ProcessList struct {
	Items []Process `json:"items"`
}
