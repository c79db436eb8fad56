package oci

import "time"

const (
	poolRetry      = 5 * time.Second        // before namespaces are made ahead again after a failure
	bridgeTimeout  = 10 * time.Second       // for a bridge to answer what it can answer at once
	startTimeout   = 30 * time.Second       // for a box's bridge to answer
	killTimeout    = 10 * time.Second       // for a killed box to be gone
	execSettle     = 20 * time.Millisecond  // before a bridge is asked again
	execSettleMost = 5 * time.Second        // the same, if that goes on
	drainTimeout   = 2 * time.Second        // for the last words of a dead bridge
	stopMargin     = 2 * time.Second        // beyond the grace, for the bridge to carry a stop out
	firewallTick   = 10 * time.Second       // between looks at our table, other tables' forward policies and the machine's resolvers
	firewallRest   = 100 * time.Millisecond // after a look, however many changes there are
	removeRetry    = 5 * time.Millisecond   // between tries to remove a cgroup whose processes are just going
	removeTries    = 400                    // of them
	removalLeast   = 100 * time.Millisecond // before a half-removed box is tried again, at first
	removalMost    = time.Minute            // and in the end
)
