package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/taibox/taibox/internal/lifecycle"
	"github.com/taibox/taibox/internal/tracing"
	"github.com/taibox/taibox/tai/sandbox"
)

// Create prepares a box.
func (d *Driver) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Info, error) {
	info, err := d.create(ctx, cloneSpec(spec))
	if err != nil {
		return sandbox.Info{}, fmt.Errorf("create box %.64q: %w", spec.ID, err)
	}
	return info, nil
}

func (d *Driver) create(ctx context.Context, spec sandbox.Spec) (sandbox.Info, error) {
	if err := d.begin(ctx); err != nil {
		return sandbox.Info{}, err
	}
	if err := d.checkSpec(&spec); err != nil {
		return sandbox.Info{}, err
	}
	b := newBox(d.m, spec)
	if err := d.m.add(b); err != nil {
		return sandbox.Info{}, err
	}
	defer b.release()
	var undo lifecycle.Stack
	defer func() {
		// A killed driver cleans up nothing: that is for the next Open.
		if !d.dead() {
			undo.Close(ctx) //nolint:errcheck // the step cannot fail
		}
	}()
	undo.Push(func(context.Context) error { d.m.forget(b); return nil })
	for _, s := range []struct {
		name string
		run  func() error
	}{
		{"image", func() error { return d.useImage(b) }},
		{"rootfs", func() error { return b.checkUser() }},
		{"network", func() error { d.m.giveAddress(b); return nil }},
		{"record", func() error { b.setState(sandbox.StateCreated, ReasonUser); return nil }},
		{"done", func() error { return nil }},
	} {
		began := time.Now()
		if err := d.step(ctx, "create."+s.name, b.id); err != nil {
			return sandbox.Info{}, err
		}
		if err := s.run(); err != nil {
			return sandbox.Info{}, err
		}
		b.phase(ctx, s.name, began)
	}
	undo.Release()
	return b.snapshot(), nil
}

// checkSpec refuses what cannot be, before anything is touched.
func (d *Driver) checkSpec(spec *sandbox.Spec) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	for _, c := range []struct {
		wanted bool
		f      sandbox.Feature
	}{
		{spec.MemoryBytes > 0, sandbox.FeatureMemoryLimit},
		{spec.CPUs > 0, sandbox.FeatureCPULimit},
		{spec.Pids > 0, sandbox.FeaturePidsLimit},
		{spec.ReadOnly, sandbox.FeatureReadOnlyRoot},
		{len(spec.Mounts) > 0, sandbox.FeatureMounts},
		{spec.Network == sandbox.NetworkNone, sandbox.FeatureNetworkNone},
		{spec.Network != sandbox.NetworkNone, sandbox.FeatureNetwork},
	} {
		if c.wanted {
			if err := d.need(c.f); err != nil {
				return err
			}
		}
	}
	return checkSources(spec.Mounts)
}

// add takes the box's ID: from here on the ID belongs to this attempt.
func (m *machine) add(b *box) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.boxes[b.id] != nil {
		return sandbox.ErrAlreadyExists
	}
	m.nextIP++
	b.number = m.nextIP
	m.boxes[b.id] = b
	return nil
}

func (d *Driver) useImage(b *box) error {
	im, err := d.m.image(b.spec.Image)
	if err != nil {
		return err
	}
	b.applyImage(im)
	return nil
}

func (b *box) checkUser() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := lookUser(b.info.User)
	return err
}

// giveAddress gives boxes with a network an address of their own.
func (m *machine) giveAddress(b *box) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.info.Network != sandbox.NetworkNone {
		b.info.IP = fmt.Sprintf("10.%d.%d.%d", b.number>>16&0xff, b.number>>8&0xff, b.number&0xff)
	}
}

func (b *box) phase(ctx context.Context, name string, began time.Time) {
	tracing.Done(ctx, "box."+strings.TrimPrefix(name, "start."), began)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.info.Phases = append(b.info.Phases, sandbox.Phase{Name: name, Duration: time.Since(began)})
}

func (b *box) forgetPhases(prefix string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.info.Phases = slices.DeleteFunc(b.info.Phases, func(p sandbox.Phase) bool { return strings.HasPrefix(p.Name, prefix) })
}

// Start starts a created or stopped box.
func (d *Driver) Start(ctx context.Context, id string) error {
	if err := d.start(ctx, id); err != nil {
		return fmt.Errorf("start box %.64q: %w", id, err)
	}
	return nil
}

func (d *Driver) start(ctx context.Context, id string) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	b, err := d.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer b.release()
	switch info := b.snapshot(); info.State {
	case sandbox.StateRunning:
		return nil
	case sandbox.StateRemoving:
		return sandbox.ErrRemoving
	default:
	}
	if err := checkSources(b.spec.Mounts); err != nil {
		return err
	}
	b.forgetPhases("start.")
	for _, step := range []string{"start.runtime", "start.bridge"} {
		began := time.Now()
		if err := d.step(ctx, step, id); err != nil {
			return err
		}
		b.phase(ctx, step, began)
	}
	if err := b.mountDirs(); err != nil {
		return err
	}
	b.setState(sandbox.StateRunning, ReasonUser)
	if err := d.startEntrypoint(ctx, b); err != nil {
		if !d.dead() {
			b.breakDown(sandbox.StateFailed, "entrypoint")
		}
		return err
	}
	return d.step(ctx, "start.done", id)
}

// startEntrypoint runs the box's entrypoint as 002's trap loop did: kept alive
// by the bridge's own "hold".
func (d *Driver) startEntrypoint(ctx context.Context, b *box) error {
	if err := d.step(ctx, "start.entrypoint", b.id); err != nil {
		return err
	}
	b.mu.Lock()
	entrypoint := b.info.Entrypoint
	delete(b.execs, sandbox.EntrypointExec)
	b.order = slices.DeleteFunc(b.order, func(e *exec) bool { return e.info.ID == sandbox.EntrypointExec })
	b.mu.Unlock()
	if len(entrypoint) == 0 || b.spec.NoStart {
		return nil
	}
	_, err := d.startExec(ctx, b, sandbox.ExecSpec{
		ID: sandbox.EntrypointExec, Args: append(slices.Clone(entrypoint), "taibox-bridge", "hold"),
	})
	return err
}

// Stop ends every command of the box, then the box.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	return d.StopFor(ctx, id, grace, ReasonUser)
}

// StopFor is [Driver.Stop] with the reason that the box then has.
func (d *Driver) StopFor(ctx context.Context, id string, grace time.Duration, reason string) error {
	if err := d.stop(ctx, id, grace, reason); err != nil {
		return fmt.Errorf("stop box %.64q: %w", id, err)
	}
	return nil
}

func (d *Driver) stop(ctx context.Context, id string, grace time.Duration, reason string) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	// The stop goes on when its caller does not wait for it any more.
	done := make(chan error, 1)
	d.m.work.run(func() { done <- d.stopBox(context.WithoutCancel(ctx), id, grace, reason) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *Driver) stopBox(ctx context.Context, id string, grace time.Duration, reason string) error {
	b, err := d.acquire(ctx, id)
	if err != nil {
		return err
	}
	defer b.release()
	switch state := b.snapshot().State; state {
	case sandbox.StateCreated, sandbox.StateStopped, sandbox.StateFailed:
		return nil
	case sandbox.StateRemoving:
		return sandbox.ErrRemoving
	case sandbox.StateRunning:
		b.setState(sandbox.StateStopping, reason)
	default: // an earlier stop was cut short
	}
	if err := d.step(ctx, "stop.term", b.id); err != nil {
		return err
	}
	b.asWeStop(syscall.SIGTERM)
	t := time.NewTimer(max(grace, 0))
	defer t.Stop()
	if !b.waitIdle(ctx, t.C) {
		b.asWeStop(syscall.SIGKILL)
		b.waitIdle(ctx, nil)
	}
	for _, step := range []string{"stop.runtime", "stop.record"} {
		if err := d.step(ctx, step, b.id); err != nil {
			return err
		}
	}
	b.setState(sandbox.StateStopped, reason)
	return d.step(ctx, "stop.done", b.id)
}

// asWeStop signals every process, and lets the records say why.
func (b *box) asWeStop(sig syscall.Signal) {
	b.mu.Lock()
	for _, e := range b.order {
		e.endingLocked(sandbox.ReasonStop)
	}
	b.mu.Unlock()
	for _, p := range b.processes() {
		p.Signal(sig)
	}
}

// Remove ends the box and deletes it.
func (d *Driver) Remove(ctx context.Context, id string) error {
	if err := d.remove(ctx, id); err != nil {
		return fmt.Errorf("remove box %.64q: %w", id, err)
	}
	return nil
}

func (d *Driver) remove(ctx context.Context, id string) error {
	if err := d.begin(ctx); err != nil {
		return err
	}
	b, err := d.box(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	r := b.removal
	if r == nil {
		r = &removal{done: make(chan struct{})}
		b.removal, b.removing = r, true
		d.m.work.run(func() {
			r.err = d.removeBox(context.WithoutCancel(ctx), b)
			b.mu.Lock()
			b.removal = nil
			b.mu.Unlock()
			close(r.done)
		})
	}
	b.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *Driver) removeBox(ctx context.Context, b *box) error {
	if err := d.step(ctx, "remove.kill", b.id); err != nil {
		return err
	}
	b.asWeStop(syscall.SIGKILL) // also ends a stop that waits for its grace
	if _, err := d.acquire(ctx, b.id); err != nil {
		return err
	}
	defer b.release()
	b.setState(sandbox.StateRemoving, ReasonUser)
	b.asWeStop(syscall.SIGKILL)
	b.waitIdle(ctx, nil)
	for _, step := range []string{"remove.runtime", "remove.network", "remove.rootfs", "remove.record"} {
		if err := d.step(ctx, step, b.id); err != nil {
			return err
		}
	}
	d.m.forget(b)
	return d.step(ctx, "remove.done", b.id)
}

// Inspect returns what is known of a box.
func (d *Driver) Inspect(ctx context.Context, id string) (sandbox.Info, error) {
	if err := d.step(ctx, "inspect", id); err != nil {
		return sandbox.Info{}, fmt.Errorf("inspect box %.64q: %w", id, err)
	}
	b, err := d.box(id)
	if err != nil {
		return sandbox.Info{}, fmt.Errorf("inspect box %.64q: %w", id, err)
	}
	return b.snapshot(), nil
}

// List returns the boxes that match, in order of creation.
func (d *Driver) List(ctx context.Context, f sandbox.Filter) ([]sandbox.Info, error) {
	if err := d.step(ctx, "list", ""); err != nil {
		return nil, fmt.Errorf("list boxes: %w", err)
	}
	var infos []sandbox.Info
	for _, b := range d.m.all() {
		if info := b.snapshot(); f.Match(&info) {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

func cloneSpec(s sandbox.Spec) sandbox.Spec {
	s.Labels, s.Env = maps.Clone(s.Labels), maps.Clone(s.Env)
	s.ExtraHosts, s.Tmpfs, s.Devices = slices.Clone(s.ExtraHosts), slices.Clone(s.Tmpfs), slices.Clone(s.Devices)
	s.Mounts = slices.Clone(s.Mounts)
	if s.Entrypoint != nil {
		e := slices.Clone(*s.Entrypoint)
		s.Entrypoint = &e
	}
	return s
}
