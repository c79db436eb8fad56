package load

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	"github.com/taibox/taibox/sandbox"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

// kind is what becomes of a box by itself.
type kind string

const (
	stays   kind = "stays"   // until it is removed
	session kind = "session" // goes when it is idle
	sleeper kind = "sleeper" // stops when it is idle
	mortal  kind = "mortal"  // goes by its max lifetime
	// once goes when its command has ended. If the server dies meanwhile it is
	// only known to be of no use to anybody a while after the next one is up.
	once kind = "oneshot"

	idleTime = 3 * time.Second
	lifetime = 6 * time.Second
	// ownEnd bounds how late a box may go by itself, on a machine that does
	// much else and whose server is killed all the time: each restart grants
	// half of the time again, and a removal that did not work is tried again a
	// minute later.
	ownEnd = 4 * time.Minute
)

// box is what a client knows of a box of its own.
type box struct {
	id      string
	kind    kind
	image   string
	running bool
	files   map[string]string
	left    time.Time // no longer used, for it to go by itself
}

// actor is one client. It alone touches its boxes, and does one thing after
// the other, so that it knows what each answer must be.
type actor struct {
	m     *machine
	n     int
	limit int
	rnd   *rand.Rand
	api   *client.Client
	next  int
	boxes []*box
	left  []*box // those that are to go by themselves
}

func newActor(m *machine, n, limit int, rnd *rand.Rand) *actor {
	return &actor{m: m, n: n, limit: limit, rnd: rnd, api: m.newClient()}
}

// id returns a fresh ID.
func (a *actor) id() string {
	a.next++
	return fmt.Sprintf("c%d-%d", a.n, a.next)
}

// work does one thing after the other until ctx ends. What has begun then is
// brought to its end.
func (a *actor) work(ctx context.Context) {
	for ctx.Err() == nil && a.m.failures.Load() < maxTold {
		a.step(context.WithoutCancel(ctx))
		a.lookAtLeft()
	}
}

func (a *actor) step(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, callLimit, errStuck)
	defer cancel()
	switch {
	case len(a.boxes) < a.limit && a.rnd.IntN(2) == 0:
		a.create(ctx)
		return
	case a.rnd.IntN(6) == 0:
		a.oneOff(ctx)
		return
	case len(a.boxes) == 0:
		return
	}
	b := a.boxes[a.rnd.IntN(len(a.boxes))]
	if !b.running {
		a.stopped(ctx, b)
		return
	}
	type deed struct {
		weight int
		do     func(context.Context, *box)
	}
	deeds := []deed{
		{6, a.exec},
		{3, a.stream},
		{3, a.reattach},
		{2, a.timeout},
		{2, a.killed},
		{3, a.file},
		{2, a.tree},
		{2, a.commandLine},
		{2, a.stop},
		{1, a.stopUnderExec},
		{3, a.remove},
		{1, a.removeUnderStream},
		{3, a.leave},
	}
	total := 0
	for _, d := range deeds {
		total += d.weight
	}
	at := a.rnd.IntN(total)
	for _, d := range deeds {
		if at -= d.weight; at < 0 {
			d.do(ctx, b)
			return
		}
	}
}

// oneOff does what needs no box that is there.
func (a *actor) oneOff(ctx context.Context) {
	switch a.rnd.IntN(8) {
	case 0:
		a.image(ctx)
	case 1, 2:
		a.oneShot(ctx)
	case 3:
		a.list(ctx)
	default:
		a.run(ctx)
	}
}

// create makes a box. One whose link broke is asked for again with its key and
// must be the same box, not a second one.
func (a *actor) create(ctx context.Context) {
	b := &box{id: a.id(), kind: stays, image: taisandbox.HostFS, running: true, files: map[string]string{}}
	req := rest.CreateBox{ID: b.id, Image: b.image, Policy: "persistent", Labels: map[string]string{"client": fmt.Sprint(a.n)}, IdempotencyKey: "key-" + b.id}
	if a.rnd.IntN(3) == 0 {
		b.image = a.m.imageName("base")
		req.Image = b.image
	}
	if a.rnd.IntN(4) == 0 {
		req.Network = "none"
	}
	idle := idleTime.Milliseconds()
	switch a.rnd.IntN(8) {
	case 0:
		b.kind, req.Policy, req.IdleTimeoutMs = session, "session", &idle
	case 1:
		b.kind, req.Policy, req.IdleTimeoutMs = sleeper, "longrunning", &idle
	case 2:
		b.kind, req.Policy, req.MaxLifetimeMs = mortal, "longrunning", lifetime.Milliseconds()
	}
	begin := time.Now()
	got, err := a.api.CreateBox(ctx, req)
	if a.m.judge("create", begin, err) {
		a.resolve(ctx, b, false)
		return
	}
	if got.ID != b.id || got.Status != string(taisandbox.StateRunning) && b.kind == stays || got.Image != b.image {
		a.m.fail("create %s of %s: answered %s, %s, %s", b.id, b.image, got.ID, got.Status, got.Image)
	}
	a.boxes = append(a.boxes, b)
}

// resolve finds out what came of a call whose answer is unknown. known says
// that the box was there before.
func (a *actor) resolve(ctx context.Context, b *box, known bool) {
	got, err := a.get(ctx, b.id)
	switch {
	case errors.Is(err, taisandbox.ErrNotFound):
		a.drop(b)
		return
	case err != nil:
		a.m.fail("look at box %s: %v", b.id, err)
		a.drop(b)
		return
	}
	if !known && !slices.Contains(a.boxes, b) {
		a.boxes = append(a.boxes, b)
	}
	switch taisandbox.State(got.Status) {
	case taisandbox.StateRunning:
		b.running = true
	case taisandbox.StateStopped:
		b.running = false
	default:
		// Half made, half removed or failed: it can be removed in any case.
		a.m.tally.add("resolved: " + got.Status)
		a.remove(ctx, b)
	}
}

// get asks until there is an answer.
func (a *actor) get(ctx context.Context, id string) (rest.Box, error) {
	for {
		begin := time.Now()
		got, err := a.api.GetBox(ctx, id)
		if err == nil || errors.Is(err, taisandbox.ErrNotFound) || !a.m.excused(begin, err) {
			return got, err
		}
		wait(ctx, 100*time.Millisecond)
	}
}

// drop forgets a box that is gone.
func (a *actor) drop(b *box) {
	b.running = false
	a.boxes = slices.DeleteFunc(a.boxes, func(x *box) bool { return x == b })
}

// ownErrors is what a box says that goes, stops, or has gone by itself.
func ownEnds(b *box, err error) bool {
	switch b.kind {
	case sleeper:
		return errors.Is(err, sandbox.ErrStopping) || errors.Is(err, taisandbox.ErrNotRunning)
	case session, mortal, once:
		return errors.Is(err, taisandbox.ErrNotFound) || errors.Is(err, taisandbox.ErrRemoving) || errors.Is(err, taisandbox.ErrNotRunning)
	}
	return false
}

// ok judges a call on a box. It is false if the call did not succeed; then
// what there is of the box has been found out.
func (a *actor) ok(ctx context.Context, what string, b *box, begin time.Time, err error) bool {
	if err != nil && ownEnds(b, err) {
		a.m.tally.add("ended by itself")
		a.resolve(ctx, b, true)
		return false
	}
	if !a.m.judge(what, begin, err) {
		return true
	}
	a.resolve(ctx, b, true)
	return false
}

// stop stops a box, which keeps its files.
func (a *actor) stop(ctx context.Context, b *box) {
	grace := time.Duration(a.rnd.IntN(3)) * 100 * time.Millisecond
	begin := time.Now()
	if !a.ok(ctx, "stop", b, begin, a.api.StopBox(ctx, b.id, &grace)) {
		return
	}
	b.running = false
	if b.kind != stays {
		return
	}
	begin = time.Now()
	_, err := a.api.Exec(ctx, b.id, rest.ExecRequest{Cmd: []string{"true"}})
	if !errors.Is(err, taisandbox.ErrNotRunning) && !a.m.excused(begin, err) {
		a.m.fail("exec in the stopped box %s: %v", b.id, err)
	}
}

// stopped does something with a box that does not run.
func (a *actor) stopped(ctx context.Context, b *box) {
	switch a.rnd.IntN(4) {
	case 0:
		a.tree(ctx, b)
	case 1:
		a.remove(ctx, b)
	default:
		begin := time.Now()
		if a.ok(ctx, "start", b, begin, a.api.StartBox(ctx, b.id)) {
			b.running = true
			a.wantFiles(ctx, b)
		}
	}
}

// remove removes a box; afterwards there is none.
func (a *actor) remove(ctx context.Context, b *box) {
	for {
		begin := time.Now()
		err := a.api.RemoveBox(ctx, b.id)
		if err != nil && errors.Is(err, errdefs.ErrNotFound) && (b.kind == session || b.kind == mortal) {
			err = nil
		}
		if err == nil {
			a.m.tally.add("remove")
			break
		}
		if !a.m.excused(begin, err) {
			a.m.fail("remove %s: %v", b.id, err)
			break
		}
		a.m.tally.add("excused")
		if _, err := a.get(ctx, b.id); errors.Is(err, taisandbox.ErrNotFound) {
			break
		}
		wait(ctx, 100*time.Millisecond)
	}
	a.drop(b)
	if got, err := a.get(ctx, b.id); !errors.Is(err, taisandbox.ErrNotFound) {
		a.m.fail("box %s was removed, and is there: %s %s, %v", b.id, got.Status, got.StopReason, err)
	}
}

// leave lets a box go that goes by itself.
func (a *actor) leave(ctx context.Context, b *box) {
	if b.kind != session && b.kind != mortal {
		a.exec(ctx, b)
		return
	}
	b.left = time.Now()
	a.drop(b)
	a.left = append(a.left, b)
}

// lookAtLeft sees to it that boxes which are to go by themselves do.
func (a *actor) lookAtLeft() {
	if len(a.left) == 0 || a.rnd.IntN(4) > 0 {
		return
	}
	b := a.left[0]
	ctx, cancel := context.WithTimeoutCause(context.Background(), callLimit, errStuck)
	defer cancel()
	got, err := a.get(ctx, b.id)
	switch {
	case errors.Is(err, taisandbox.ErrNotFound):
		a.m.tally.add("went by itself: " + string(b.kind))
		a.left = a.left[1:]
	case err != nil:
		a.m.fail("look at box %s: %v", b.id, err)
		a.left = a.left[1:]
	case time.Since(b.left) > ownEnd && (b.kind != once || !a.m.killedSince(time.Now().Add(-ownEnd))):
		a.m.fail("box %s (%s) was left alone %v ago, and is there: %s, %s, busy with %q", b.id, b.kind, time.Since(b.left), got.Status, got.StopReason, got.Busy)
		a.left = a.left[1:]
	}
}

// list asks for all boxes; those that stay are among them.
func (a *actor) list(ctx context.Context) {
	begin := time.Now()
	list, err := a.api.ListBoxes(ctx, rest.ListBoxes{Labels: map[string]string{"client": fmt.Sprint(a.n)}})
	if a.m.judge("list", begin, err) {
		return
	}
	have := map[string]rest.Box{}
	for _, b := range list {
		have[b.ID] = b
	}
	for _, b := range a.boxes {
		got, ok := have[b.id]
		delete(have, b.id)
		if b.kind != stays {
			continue
		}
		want := taisandbox.StateStopped
		if b.running {
			want = taisandbox.StateRunning
		}
		if !ok || got.Status != string(want) {
			a.m.fail("ls: box %s is %q (%s), want %s", b.id, got.Status, got.StopReason, want)
		}
	}
	for _, b := range a.left {
		delete(have, b.id)
	}
	if len(have) > 0 {
		a.m.fail("ls: client %d has boxes that it did not make, or removed: %v", a.n, slices.Sorted(maps.Keys(have)))
	}
}

// removeAll removes all boxes of the client.
func (a *actor) removeAll() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), 10*time.Minute, errStuck)
	defer cancel()
	for _, b := range slices.Concat(a.boxes, a.left) {
		a.remove(ctx, b)
	}
	a.boxes, a.left = nil, nil
	a.api.Close()
}
