package sandbox

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// The labels by which a manager finds its boxes again.
const (
	labelManagedBy   = taisandbox.LabelManagedBy
	labelID          = "sandbox-id"
	labelOwner       = "sandbox-owner"
	labelNode        = "sandbox-node-id"
	labelPolicy      = "sandbox-policy"
	labelWorkspace   = "workspace-id"
	labelInstance    = taisandbox.LabelInstance
	labelAttempt     = reservedPrefix + "attempt" // names the one create that made the box
	labelStopTimeout = reservedPrefix + "stop-timeout"
	labelIdleTimeout = reservedPrefix + "idle-timeout" // absent: none
	labelMaxLifetime = reservedPrefix + "max-lifetime" // absent: none
	labelNoStart     = reservedPrefix + "no-start"
	labelKeepAlive   = reservedPrefix + "keep-alive"
	// labelWorkspaceMade says when the workspace was created: its ID may come to another one.
	labelWorkspaceMade = reservedPrefix + "workspace-created"
	labelKey           = reservedPrefix + "idempotency" // "<key's hash>:<options' hash>"

	reservedPrefix = "taibox-"
	managedBy      = taisandbox.ManagedBy
)

func reserved(label string) bool {
	switch label {
	case labelManagedBy, labelID, labelOwner, labelNode, labelPolicy, labelWorkspace:
		return true
	}
	return strings.HasPrefix(label, reservedPrefix)
}

// filter selects the boxes of an instance.
func filter(instance string) taisandbox.Filter {
	return taisandbox.Filter{Labels: map[string]string{labelManagedBy: managedBy, labelInstance: instance}}
}

// identity is what labels keep of a box.
type identity struct {
	id, owner, nodeID, attempt string
	policy                     LifecyclePolicy
	labels                     map[string]string // the caller's own
	idleTimeout, maxLifetime   time.Duration     // 0 = none
	stopTimeout                time.Duration
	noStart, keepAlive         bool
	workspaceID                string    // empty without one
	workspaceMade              time.Time // zero if that was not noted
	key, body                  string    // hashes; empty without an idempotency key
}

func (i *identity) encode(instance string) map[string]string {
	l := maps.Clone(i.labels)
	l[labelManagedBy] = managedBy
	l[labelInstance] = instance
	l[labelID] = i.id
	l[labelOwner] = i.owner
	l[labelNode] = i.nodeID
	l[labelAttempt] = i.attempt
	l[labelPolicy] = string(i.policy)
	l[labelStopTimeout] = i.stopTimeout.String()
	if i.idleTimeout > 0 {
		l[labelIdleTimeout] = i.idleTimeout.String()
	}
	if i.maxLifetime > 0 {
		l[labelMaxLifetime] = i.maxLifetime.String()
	}
	if i.noStart {
		l[labelNoStart] = "true"
	}
	if i.keepAlive {
		l[labelKeepAlive] = "true"
	}
	if i.workspaceID != "" {
		l[labelWorkspace] = i.workspaceID
		l[labelWorkspaceMade] = i.workspaceMade.Format(time.RFC3339Nano)
	}
	if i.key != "" {
		l[labelKey] = i.key + ":" + i.body
	}
	return l
}

// decode reads an identity back. What an older or a newer version wrote
// otherwise is taken with its default; the error names it.
func decode(id, nodeID string, labels map[string]string) (identity, error) {
	i := identity{
		id: id, nodeID: nodeID, owner: labels[labelOwner], attempt: labels[labelAttempt],
		policy: LifecyclePolicy(labels[labelPolicy]), noStart: labels[labelNoStart] == "true", keepAlive: labels[labelKeepAlive] == "true",
		workspaceID: labels[labelWorkspace],
		labels:      maps.Clone(labels),
	}
	maps.DeleteFunc(i.labels, func(k, _ string) bool { return reserved(k) })
	i.key, i.body, _ = strings.Cut(labels[labelKey], ":")

	errs := []error{i.policy.Validate()}
	if text, there := labels[labelWorkspaceMade]; there {
		var err error
		if i.workspaceMade, err = time.Parse(time.RFC3339Nano, text); err != nil {
			errs = append(errs, fmt.Errorf("label %s: %w", labelWorkspaceMade, err))
		}
	}
	for _, d := range []struct {
		label string
		value *time.Duration
		def   time.Duration
		max   time.Duration
	}{
		{labelIdleTimeout, &i.idleTimeout, 0, taisandbox.MaxTimeout},
		{labelMaxLifetime, &i.maxLifetime, 0, taisandbox.MaxTimeout},
		{labelStopTimeout, &i.stopTimeout, DefaultStopTimeout, MaxStopTimeout},
	} {
		text, there := labels[d.label]
		if *d.value = d.def; !there && d.def == 0 {
			continue
		}
		v, err := time.ParseDuration(text)
		if err == nil && (v < 0 || v > d.max) {
			err = fmt.Errorf("duration of %v", v)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("label %s: %w", d.label, err))
			continue
		}
		*d.value = v
	}
	return i, errors.Join(errs...)
}
