package fake

import (
	"context"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

// box is one box. A call that changes its state holds op while it works.
type box struct {
	m      *machine
	id     string
	number int // order of creation
	spec   sandbox.Spec
	image  sandbox.ImageInfo
	op     chan struct{} // holds one token while nobody changes the box

	mu       sync.Mutex
	info     sandbox.Info
	removing bool // asked for: nothing new begins
	removal  *removal
	execs    map[string]*exec
	order    []*exec // as started
	procs    map[int]*Proc
	lastPID  int
	ports    map[int]*listener
	files    map[string][]byte
	dirs     map[string]bool
	links    map[string]string
	attrs    map[string]attr
}

// removal is one attempt to remove a box; calls at the same time share it.
type removal struct {
	done chan struct{}
	err  error
}

// newBox returns a box that its caller has acquired.
func newBox(m *machine, spec sandbox.Spec) *box {
	b := &box{
		m: m, id: spec.ID, spec: spec,
		op:    make(chan struct{}, 1),
		execs: map[string]*exec{}, procs: map[int]*Proc{}, ports: map[int]*listener{},
		files: map[string][]byte{}, dirs: map[string]bool{}, links: map[string]string{}, attrs: map[string]attr{},
		lastPID: 1, // the bridge
	}
	for _, dir := range []string{"/", "/bin", "/etc", "/home", "/root", "/tmp", "/run", "/usr", "/usr/bin", "/var", "/workspace"} {
		b.dirs[dir] = true
	}
	now := time.Now()
	b.info = sandbox.Info{
		ID: spec.ID, ContainerID: "fake-" + spec.ID, Image: spec.Image, Labels: spec.Labels,
		Isolation: orDefault(spec.Isolation, sandbox.IsolationContainer),
		Network:   orDefault(spec.Network, sandbox.NetworkInternet),
		State:     sandbox.StateCreating, CreatedAt: now,
		MemoryBytes: spec.MemoryBytes, CPUs: spec.CPUs, Pids: spec.Pids, OpenFiles: spec.OpenFiles,
		ReadOnly: spec.ReadOnly, Devices: spec.Devices, Mounts: spec.Mounts,
	}
	return b
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// applyImage fills in what the image says and the spec does not.
func (b *box) applyImage(im sandbox.ImageInfo) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.image = im
	b.info.ImageDigest = im.Digest
	b.info.User = orDefault(orDefault(b.spec.User, im.Config.User), "root")
	b.info.WorkDir = path.Clean(orDefault(orDefault(b.spec.WorkDir, im.Config.WorkDir), "/workspace"))
	b.info.Entrypoint, b.info.Cmd = im.Config.Entrypoint, im.Config.Cmd
	if b.spec.Entrypoint != nil {
		b.info.Entrypoint = *b.spec.Entrypoint
	}
	b.makeDirLocked(b.info.WorkDir)
}

func (b *box) makeDirLocked(dir string) {
	for ; dir != "/"; dir = path.Dir(dir) {
		b.dirs[dir] = true
	}
}

// acquire finds a box and waits until nobody else changes it.
func (d *Driver) acquire(ctx context.Context, id string) (*box, error) {
	b, err := d.box(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-b.op:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if now, err := d.box(id); err != nil || now != b {
		b.release()
		return nil, sandbox.ErrNotFound
	}
	return b, nil
}

func (b *box) release() { b.op <- struct{}{} }

// setState changes the state and tells about it.
func (b *box) setState(s sandbox.State, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setStateLocked(s, reason)
}

func (b *box) setStateLocked(s sandbox.State, reason string) {
	now := time.Now()
	b.info.State, b.info.Reason, b.info.Error = s, reason, ""
	switch s {
	case sandbox.StateRunning:
		b.info.StartedAt, b.info.StoppedAt = now, time.Time{}
	case sandbox.StateStopped, sandbox.StateFailed:
		b.info.StoppedAt = now
		clear(b.ports)
	default:
	}
	if s == sandbox.StateFailed {
		b.info.Error = "the box's bridge ended: " + reason
	}
	b.m.events.publish(sandbox.Event{
		Time: now, Type: sandbox.EventState, Box: b.id, Labels: maps.Clone(b.info.Labels), State: s, Reason: reason,
	})
}

// usableLocked says why nothing can run in the box, if so.
func (b *box) usableLocked() error {
	switch {
	case b.removing:
		return sandbox.ErrRemoving
	case b.info.State != sandbox.StateRunning:
		return sandbox.ErrNotRunning
	}
	return nil
}

func (b *box) labels() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.info.Labels)
}

// snapshot returns a copy that the caller may keep.
func (b *box) snapshot() sandbox.Info {
	b.mu.Lock()
	defer b.mu.Unlock()
	info := b.info
	info.Labels = maps.Clone(info.Labels)
	info.Entrypoint, info.Cmd = slices.Clone(info.Entrypoint), slices.Clone(info.Cmd)
	info.Devices, info.Phases, info.Mounts = slices.Clone(info.Devices), slices.Clone(info.Phases), slices.Clone(info.Mounts)
	if b.removing {
		info.State = sandbox.StateRemoving
	}
	for _, e := range b.order {
		if e.info.State == sandbox.ExecRunning {
			info.RunningExecs++
		}
	}
	return info
}

// processes returns those that run, in order of their numbers.
func (b *box) processes() []*Proc {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.procs), func(a, c *Proc) int { return a.PID - c.PID })
}

func (b *box) killAll() {
	for _, p := range b.processes() {
		p.Signal(syscall.SIGKILL)
	}
}

// waitIdle waits until no process runs and every exec's record is final. It
// reports false if ctx or the timer ended before.
func (b *box) waitIdle(ctx context.Context, timer <-chan time.Time) bool {
	for {
		wait := b.busy()
		if wait == nil {
			return true
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return false
		case <-timer:
			return false
		}
	}
}

// busy returns a channel that closes when something that runs now has ended.
func (b *box) busy() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.procs {
		return p.ended
	}
	for _, e := range b.order {
		if !e.info.Done() {
			return e.done
		}
	}
	return nil
}

// breakDown ends the box from outside: nobody saw how its execs ended.
func (b *box) breakDown(s sandbox.State, reason string) {
	b.mu.Lock()
	if b.info.State == sandbox.StateRunning || b.info.State == sandbox.StateStopping {
		for _, e := range b.order {
			e.loseLocked()
		}
		b.setStateLocked(s, reason)
	}
	b.mu.Unlock()
	b.killAll()
}

// readFile and writeFile are the box's files, as programs see them.
func (b *box) readFile(name string) ([]byte, error) {
	if data, done, err := onMount(b, name, (*mounted).read); done {
		return data, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	data, ok := b.files[path.Clean(name)]
	switch {
	case b.dirs[path.Clean(name)]:
		return nil, syscall.EISDIR
	case !ok:
		return nil, syscall.ENOENT
	}
	return slices.Clone(data), nil
}

func (b *box) writeFile(name string, data []byte, add bool) error {
	flag := os.O_TRUNC
	if add {
		flag = os.O_APPEND
	}
	if _, done, err := onMount(b, name, func(m *mounted) (bool, error) { return true, m.write(data, flag, 0o644) }); done {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name = path.Clean(name)
	switch {
	case b.spec.ReadOnly && !strings.HasPrefix(name, "/tmp/") && !strings.HasPrefix(name, "/run/"):
		return syscall.EROFS
	case b.dirs[name]:
		return syscall.EISDIR
	case !b.dirs[path.Dir(name)]:
		return syscall.ENOENT
	}
	if !add {
		b.files[name] = nil
	}
	b.files[name] = append(b.files[name], data...)
	a := b.attrs[name]
	a.version = versions.Add(1)
	b.attrs[name] = a
	return nil
}
