package server

import (
	"errors"
	"fmt"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/workspace"
)

// Limits bounds what a request for a box or a workspace may ask for. A zero
// field bounds nothing; where one bounds, a box without that limit is refused
// too.
type Limits struct {
	Memory int64 // bytes
	CPUs   float64
	Pids   int64
	// Disk is the bytes of a workspace. One that says nothing of it gets this.
	Disk int64
}

// bound keeps defaults within the limits.
func (l *Limits) bound(d *Defaults) {
	d.Memory = clamp(d.Memory, l.Memory)
	d.CPUs = clamp(d.CPUs, l.CPUs)
	d.Pids = clamp(d.Pids, l.Pids)
}

// clamp is v, or the limit where that is less; 0 is no limit.
func clamp[T int64 | float64](v, limit T) T {
	if beyond(v, limit) {
		return limit
	}
	return v
}

func beyond[T int64 | float64](v, limit T) bool { return limit > 0 && (v == 0 || v > limit) }

// check refuses what is beyond the limits, naming each.
func (l *Limits) check(o *sandbox.CreateOptions) error {
	var errs []error
	refuse := func(what string, v, limit any) {
		errs = append(errs, fmt.Errorf("%w: %s of %v: at most %v here, and 0 is no limit", sandbox.ErrInvalidSpec, what, v, limit))
	}
	if beyond(o.Memory, l.Memory) {
		refuse("memory_bytes", o.Memory, l.Memory)
	}
	if beyond(o.CPUs, l.CPUs) {
		refuse("cpus", o.CPUs, l.CPUs)
	}
	if beyond(o.Pids, l.Pids) {
		refuse("pids", o.Pids, l.Pids)
	}
	return errors.Join(errs...)
}

// quota refuses a workspace that may take more than the limit.
func (l *Limits) quota(q volume.Quota) error {
	if !beyond(q.Bytes, l.Disk) {
		return nil
	}
	return fmt.Errorf("%w: quota_bytes of %d: at most %d here, and 0 is no limit", workspace.ErrInvalid, q.Bytes, l.Disk)
}

// timeouts takes a request's times over.
func timeouts(o *sandbox.CreateOptions, r *rest.CreateBox) error {
	var errs [3]error
	if r.IdleTimeoutMs != nil {
		o.IdleTimeout, errs[0] = duration("idle_timeout_ms", *r.IdleTimeoutMs)
	}
	o.MaxLifetime, errs[1] = duration("max_lifetime_ms", r.MaxLifetimeMs)
	o.StopTimeout, errs[2] = duration("stop_timeout_ms", r.StopTimeoutMs)
	return errors.Join(errs[:]...)
}
