package workspace_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/tai/registry"
	"github.com/taibox/taibox/tai/volume"
	"github.com/taibox/taibox/workspace"
)

func TestCreate(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ws := w.create(workspace.CreateOptions{ID: "ws-a", Name: "proj", Owner: "u1", Labels: map[string]string{"k": "v"}})
	if ws.ID != "ws-a" || ws.Name != "proj" || ws.Owner != "u1" || ws.Node != registry.Local || ws.Labels["k"] != "v" || ws.CreatedAt.IsZero() || ws.UpdatedAt.IsZero() {
		t.Errorf("made is %+v", ws)
	}
	got, err := w.m.Get(ctx, "ws-a")
	w.ok(err)
	if diff := cmp.Diff(ws, got); diff != "" {
		t.Errorf("Get (-made +got):\n%s", diff)
	}
	got.Labels["k"] = "changed"
	if again, err := w.m.Get(ctx, "ws-a"); err != nil || again.Labels["k"] != "v" {
		t.Errorf("what a caller does with its copy counts: %+v, %v", again, err)
	}
	_, err = w.m.Create(ctx, workspace.CreateOptions{ID: "ws-a"})
	w.wantErr(err, workspace.ErrAlreadyExists)

	auto := w.create(workspace.CreateOptions{})
	if !strings.HasPrefix(auto.ID, "ws-") || auto.Name != auto.ID {
		t.Errorf("without a name it is %+v", auto)
	}
	if n, err := w.m.NodeForWorkspace(ctx, auto.ID); err != nil || n != registry.Local {
		t.Errorf("it is on %q, %v", n, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		o    workspace.CreateOptions
		want error
	}{
		"id":       {workspace.CreateOptions{ID: "../etc"}, workspace.ErrInvalid},
		"capital":  {workspace.CreateOptions{ID: "A"}, workspace.ErrInvalid},
		"name":     {workspace.CreateOptions{Name: "a\x00b"}, workspace.ErrInvalid},
		"long":     {workspace.CreateOptions{Name: strings.Repeat("n", 300)}, workspace.ErrInvalid},
		"owner":    {workspace.CreateOptions{Owner: "\xff"}, workspace.ErrInvalid},
		"label":    {workspace.CreateOptions{Labels: map[string]string{"": "v"}}, workspace.ErrInvalid},
		"quota":    {workspace.CreateOptions{Quota: volume.Quota{Bytes: -1}}, workspace.ErrInvalid},
		"no-node":  {workspace.CreateOptions{Node: remote}, workspace.ErrNodeNotFound},
		"bad-node": {workspace.CreateOptions{Node: "nonsense"}, workspace.ErrNodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.m.Create(t.Context(), c.o)
			if !errors.Is(err, c.want) {
				t.Errorf("the error is %v; wanted is %v", err, c.want)
			}
		})
	}
	if list, err := w.m.List(t.Context(), workspace.ListOptions{}); err != nil || len(list) > 0 {
		t.Errorf("there is %v, %v", ids(list), err)
	}
}

func TestWhichNode(t *testing.T) {
	t.Run("none", func(t *testing.T) {
		m, err := workspace.New(workspace.Config{Registry: registry.New()})
		if err == nil {
			_, err = m.Create(t.Context(), workspace.CreateOptions{})
		}
		if !errors.Is(err, workspace.ErrNodeMissing) {
			t.Errorf("without a node: %v", err)
		}
	})
	t.Run("only", func(t *testing.T) {
		w := newWorld(t, remote)
		if ws := w.create(workspace.CreateOptions{}); ws.Node != remote {
			t.Errorf("it is on %s", ws.Node)
		}
	})
	t.Run("local", func(t *testing.T) {
		w := newWorld(t, remote, registry.Local)
		if ws := w.create(workspace.CreateOptions{}); ws.Node != registry.Local {
			t.Errorf("it is on %s", ws.Node)
		}
		if ws := w.create(workspace.CreateOptions{Node: remote}); ws.Node != remote {
			t.Errorf("it is on %s", ws.Node)
		}
	})
	t.Run("several", func(t *testing.T) {
		w := newWorld(t, remote, "10.0.0.2-19100")
		_, err := w.m.Create(t.Context(), workspace.CreateOptions{})
		w.wantErr(err, workspace.ErrNodeMissing)
		if err != nil && !strings.Contains(err.Error(), remote) {
			t.Errorf("it does not say which there are: %v", err)
		}
	})
}

func TestList(t *testing.T) {
	w := newWorld(t, registry.Local, remote)
	w.create(workspace.CreateOptions{ID: "a", Owner: "u1", Labels: map[string]string{"k": "v", "x": "y"}})
	w.create(workspace.CreateOptions{ID: "b", Owner: "u2", Node: remote, Labels: map[string]string{"k": "v"}})
	w.create(workspace.CreateOptions{ID: "c", Owner: "u1", Node: remote})
	for name, c := range map[string]struct {
		o    workspace.ListOptions
		want []string
	}{
		"all":    {workspace.ListOptions{}, []string{"a", "b", "c"}},
		"owner":  {workspace.ListOptions{Owner: "u1"}, []string{"a", "c"}},
		"node":   {workspace.ListOptions{Node: remote}, []string{"b", "c"}},
		"label":  {workspace.ListOptions{Labels: map[string]string{"k": "v"}}, []string{"a", "b"}},
		"labels": {workspace.ListOptions{Labels: map[string]string{"k": "v", "x": "y"}}, []string{"a"}},
		"both":   {workspace.ListOptions{Owner: "u2", Labels: map[string]string{"k": "v"}}, []string{"b"}},
		"none":   {workspace.ListOptions{Owner: "u3"}, nil},
	} {
		got, err := w.m.List(t.Context(), c.o)
		w.ok(err)
		if diff := cmp.Diff(c.want, ids(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestUpdate(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "a", Name: "old", Owner: "u1", Labels: map[string]string{"k": "v"}})
	name := "new"
	ws, err := w.m.Update(ctx, "a", workspace.UpdateOptions{Name: &name})
	w.ok(err)
	if ws.Name != "new" || ws.Labels["k"] != "v" || ws.Owner != "u1" || ws.UpdatedAt.Before(ws.CreatedAt) {
		t.Errorf("after a new name it is %+v", ws)
	}
	ws, err = w.m.Update(ctx, "a", workspace.UpdateOptions{Labels: map[string]string{}})
	w.ok(err)
	if ws.Name != "new" || len(ws.Labels) > 0 {
		t.Errorf("without labels it is %+v", ws)
	}
	bad := "a\nb"
	_, err = w.m.Update(ctx, "a", workspace.UpdateOptions{Name: &bad})
	w.wantErr(err, workspace.ErrInvalid)
	_, err = w.m.Update(ctx, "nosuch", workspace.UpdateOptions{Name: &name})
	w.wantErr(err, workspace.ErrNotFound)

	// Updates at the same time do not undo each other.
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := w.m.Update(ctx, "a", workspace.UpdateOptions{Labels: map[string]string{"by": "labels"}}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			final := "final"
			if _, err := w.m.Update(ctx, "a", workspace.UpdateOptions{Name: &final}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Another manager reads what is on disk.
	ws, err = w.manager().Get(ctx, "a")
	w.ok(err)
	if ws.Name != "final" || ws.Labels["by"] != "labels" || ws.Owner != "u1" {
		t.Errorf("in the end it is %+v", ws)
	}
}

func TestCreateRace(t *testing.T) {
	w := newWorld(t, registry.Local, remote)
	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for i := range 20 {
		wg.Go(func() {
			node := []string{registry.Local, remote}[i%2]
			_, err := w.m.Create(t.Context(), workspace.CreateOptions{ID: "same", Node: node})
			errs <- err
		})
	}
	wg.Wait()
	close(errs)
	made := 0
	for err := range errs {
		if err == nil {
			made++
		} else {
			w.wantErr(err, workspace.ErrAlreadyExists)
		}
	}
	if made != 1 {
		t.Errorf("it was made %d times", made)
	}
	if list, err := w.m.List(t.Context(), workspace.ListOptions{}); err != nil || len(list) != 1 {
		t.Errorf("there is %v, %v", ids(list), err)
	}
}

// TestCreateJoins: who creates an ID that is being made learns what comes of it.
func TestCreateJoins(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			begun, goOn := make(chan struct{}), make(chan error)
			w.volumes[registry.Local].created = sync.OnceValue(func() error {
				close(begun)
				return <-goOn
			})
			first, second := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := w.m.Create(ctx, workspace.CreateOptions{ID: "a", Name: "first"})
				first <- err
			}()
			<-begun
			gone, cancel := context.WithCancelCause(ctx)
			cancel(errBroken)
			_, err := w.m.Create(gone, workspace.CreateOptions{ID: "a"})
			w.wantErr(err, errBroken)
			go func() {
				_, err := w.m.Create(ctx, workspace.CreateOptions{ID: "a", Name: "second"})
				if errors.Is(err, workspace.ErrAlreadyExists) {
					if _, err := w.m.Get(ctx, "a"); err != nil {
						t.Error(err)
					}
				}
				second <- err
			}()
			synctest.Wait()
			name := "first"
			if fails {
				w.volumes[registry.Local].created = nil
				goOn <- errBroken
				w.wantErr(<-first, errBroken)
				w.ok(<-second)
				name = "second"
			} else {
				goOn <- nil
				w.ok(<-first)
				w.wantErr(<-second, workspace.ErrAlreadyExists)
			}
			ws, err := w.m.Get(ctx, "a")
			w.ok(err)
			if ws.Name != name {
				t.Errorf("there is %+v", ws)
			}
		})
	}
}

// TestThisAndNoOther: what was found is not taken for another that has its ID.
func TestThisAndNoOther(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	this := w.create(workspace.CreateOptions{ID: "a", Owner: "u1"})
	name := "new"
	this, err := w.m.UpdateThis(ctx, this, workspace.UpdateOptions{Name: &name})
	w.ok(err)
	fsys, err := w.m.FS(ctx, "a")
	w.ok(err)
	defer fsys.Close()
	vol, err := w.m.Volume(ctx, this)
	w.ok(err)
	w.ok(w.m.DeleteThis(ctx, this))

	other := w.create(workspace.CreateOptions{ID: "a", Owner: "u2"})
	w.ok(w.m.WriteFile(ctx, "a", "f", []byte("theirs"), 0))
	_, err = w.m.UpdateThis(ctx, this, workspace.UpdateOptions{Name: &name})
	w.wantErr(err, workspace.ErrNotFound)
	w.wantErr(w.m.DeleteThis(ctx, this), workspace.ErrNotFound)
	_, err = w.m.Volume(ctx, this)
	w.wantErr(err, workspace.ErrNotFound)
	_, err = vol.ReadFile(ctx, "a", "f")
	w.wantErr(err, workspace.ErrNotFound)
	_, err = fsys.ReadFile("f")
	w.wantErr(err, workspace.ErrNotFound)
	got, err := w.m.Get(ctx, "a")
	w.ok(err)
	if diff := cmp.Diff(other, got); diff != "" {
		t.Errorf("the other (-made +found):\n%s", diff)
	}
	w.ok(w.m.DeleteThis(ctx, other))
}

// TestAnotherManagerMakesItAnew: one manager does not serve what the other
// deleted, and finds what has its ID now.
func TestAnotherManagerMakesItAnew(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	other := w.manager()
	w.create(workspace.CreateOptions{ID: "a", Owner: "u1"})
	_, err := other.Get(ctx, "a")
	w.ok(err)
	w.ok(w.m.Delete(ctx, "a"))
	w.create(workspace.CreateOptions{ID: "a", Owner: "u2"})
	w.ok(other.WriteFile(ctx, "a", "f", []byte("x"), 0))
	if ws, err := other.Get(ctx, "a"); err != nil || ws.Owner != "u2" {
		t.Errorf("the other has %+v, %v", ws, err)
	}
}

func TestMountedError(t *testing.T) {
	many := strings.Split("abcdefghijkl", "")
	for _, c := range []struct {
		err  workspace.MountedError
		says string
	}{
		{workspace.MountedError{Boxes: many[:1]}, "in box a"},
		{workspace.MountedError{Boxes: many[:2]}, "in boxes a, b"},
		{workspace.MountedError{Boxes: many[:2], Others: 1}, "in boxes a, b and 1 more"},
		{workspace.MountedError{Boxes: many, Others: 1}, "in boxes a, b, c, d, e, f, g, h, i, j and 3 more"},
		{workspace.MountedError{Others: 1}, "in 1 box of others"},
		{workspace.MountedError{Others: 2}, "in 2 boxes of others"},
	} {
		if text := c.err.Error(); text != "workspace is mounted "+c.says {
			t.Errorf("it says %q; wanted is %q", text, c.says)
		}
		if !errors.Is(&c.err, workspace.ErrHasMounts) {
			t.Errorf("%v is not %v", &c.err, workspace.ErrHasMounts)
		}
	}
}

func TestDelete(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	w.create(workspace.CreateOptions{ID: "a"})
	w.ok(w.m.WriteFile(ctx, "a", "f", []byte("x"), 0))
	w.ok(w.m.Delete(ctx, "a"))
	w.wantErr(w.m.Delete(ctx, "a"), workspace.ErrNotFound)
	_, err := w.m.Get(ctx, "a")
	w.wantErr(err, workspace.ErrNotFound)
	_, err = w.m.ReadFile(ctx, "a", "f")
	w.wantErr(err, workspace.ErrNotFound)
	w.create(workspace.CreateOptions{ID: "a"}) // the ID is free
	_, err = w.m.ReadFile(ctx, "a", "f")
	w.wantErr(err, volume.ErrFileNotFound)
}

func TestDeleteOfMounted(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	ws := w.create(workspace.CreateOptions{ID: "a"})
	other := w.create(workspace.CreateOptions{ID: "b"})
	w.mount("box-one", ws)
	w.mount("box-two", ws)
	w.ok(w.drivers[registry.Local].Start(ctx, "box-two"))
	err := w.m.Delete(ctx, "a")
	w.wantErr(err, workspace.ErrHasMounts)
	if err != nil && (!strings.Contains(err.Error(), "box-one") || !strings.Contains(err.Error(), "box-two")) {
		t.Errorf("it does not name the boxes: %v", err)
	}
	if boxes, err := w.m.Mounts(ctx, "a"); err != nil || !slices.Equal(slices.Sorted(slices.Values(boxes)), []string{"box-one", "box-two"}) {
		t.Errorf("it is mounted in %v, %v", boxes, err)
	}
	w.ok(w.m.Delete(ctx, other.ID))
	w.ok(w.drivers[registry.Local].Remove(ctx, "box-one"))
	w.wantErr(w.m.Delete(ctx, "a"), workspace.ErrHasMounts)
	w.ok(w.drivers[registry.Local].Remove(ctx, "box-two"))
	w.ok(w.m.Delete(ctx, "a"))
}

// TestTwoManagers: one finds what the other made.
func TestTwoManagers(t *testing.T) {
	w := newWorld(t)
	other := w.manager()
	w.ok(other.Start(t.Context()))
	made := w.create(workspace.CreateOptions{ID: "a", Owner: "u1"})
	got, err := other.Get(t.Context(), "a")
	w.ok(err)
	if diff := cmp.Diff(made, got); diff != "" {
		t.Errorf("the other has (-made +got):\n%s", diff)
	}
	w.ok(w.m.Delete(t.Context(), "a"))
	w.wantErr(other.Delete(t.Context(), "a"), workspace.ErrNotFound)
	_, err = other.Get(t.Context(), "a")
	w.wantErr(err, workspace.ErrNotFound)
}

func TestManyMounts(t *testing.T) {
	w := newWorld(t)
	ws := w.create(workspace.CreateOptions{ID: "a"})
	for _, r := range "abcdefghijklm" {
		w.mount("box-"+string(r), ws)
	}
	err := w.m.Delete(t.Context(), "a")
	w.wantErr(err, workspace.ErrHasMounts)
	if err != nil && !strings.Contains(err.Error(), "3 more") {
		t.Errorf("it says %v", err)
	}
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx := t.Context()
		w.create(workspace.CreateOptions{ID: "a"})
		release, err := w.m.Hold(ctx, "a")
		w.ok(err)
		second, err := w.m.Hold(ctx, "a")
		w.ok(err)
		second()

		deleted := make(chan error, 1)
		go func() { deleted <- w.m.Delete(ctx, "a") }()
		synctest.Wait()
		select {
		case err := <-deleted:
			t.Fatalf("it was not held: %v", err)
		default:
		}
		// Who comes now waits for the delete, and finds nothing.
		held := make(chan error, 1)
		go func() {
			release, err := w.m.Hold(ctx, "a")
			if err == nil {
				release()
			}
			held <- err
		}()
		synctest.Wait()
		release()
		release() // safe to repeat
		w.ok(<-deleted)
		w.wantErr(<-held, workspace.ErrNotFound)
		_, err = w.m.Hold(ctx, "a")
		w.wantErr(err, workspace.ErrNotFound)
	})
}

// TestHoldThis is of one workspace, and of no later one with its ID, however
// long it waited.
func TestHoldThis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx := t.Context()
		first := w.create(workspace.CreateOptions{ID: "a"})
		release, err := w.m.HoldThis(ctx, first)
		w.ok(err)
		go w.m.DeleteThis(ctx, first)
		synctest.Wait()
		held := make(chan error, 1)
		go func() {
			_, err := w.m.HoldThis(ctx, first)
			held <- err
		}()
		synctest.Wait()
		release()
		w.wantErr(<-held, workspace.ErrNotFound)
		time.Sleep(time.Second)
		second := w.create(workspace.CreateOptions{ID: "a"})
		_, err = w.m.HoldThis(ctx, first)
		w.wantErr(err, workspace.ErrNotFound)
		release, err = w.m.HoldThis(ctx, second)
		w.ok(err)
		release()
		w.ok(w.m.DeleteThis(ctx, second)) // nothing holds it
	})
}

// TestHoldIsNotForEver: who waits for a hold leaves when its context ends, and
// nobody is kept out afterwards.
func TestHoldIsNotForEver(t *testing.T) {
	w := newWorld(t)
	w.create(workspace.CreateOptions{ID: "a"})
	release, err := w.m.Hold(t.Context(), "a")
	w.ok(err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	w.wantErr(w.m.Delete(ctx, "a"), context.DeadlineExceeded)
	again, err := w.m.Hold(t.Context(), "a")
	w.ok(err)
	again()
	release()
	w.ok(w.m.Delete(t.Context(), "a"))
}

// TestMountOrDelete: of a mount and a delete at the same time one wins, and a
// box never has a workspace that is not there.
func TestMountOrDelete(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for range 20 {
		ws := w.create(workspace.CreateOptions{ID: "a"})
		var wg sync.WaitGroup
		var mounted, deleted error
		wg.Go(func() {
			release, err := w.m.Hold(ctx, "a")
			if mounted = err; err != nil {
				return
			}
			defer release()
			w.mount("box", ws)
		})
		wg.Go(func() { deleted = w.m.Delete(ctx, "a") })
		wg.Wait()
		switch {
		case mounted == nil:
			w.wantErr(deleted, workspace.ErrHasMounts)
			w.ok(w.drivers[registry.Local].Remove(ctx, "box"))
			w.ok(w.m.Delete(ctx, "a"))
		default:
			w.wantErr(mounted, workspace.ErrNotFound)
			w.ok(deleted)
		}
	}
}

// TestMaxPerOwner: an owner has no more workspaces than it may, however many
// creates run at once; those that failed and those that are gone do not count.
func TestMaxPerOwner(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	m, err := workspace.New(workspace.Config{Registry: w.reg, MaxPerOwner: 3})
	w.ok(err)
	w.volumes[registry.Local].created = func() error { return errBroken }
	_, err = m.Create(ctx, workspace.CreateOptions{ID: "failed", Owner: "ann"})
	w.wantErr(err, errBroken)
	w.volumes[registry.Local].created = nil
	var made atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			_, err := m.Create(ctx, workspace.CreateOptions{ID: fmt.Sprintf("w%d", i), Owner: "ann"})
			if err == nil {
				made.Add(1)
			} else {
				w.wantErr(err, workspace.ErrTooMany)
			}
		})
	}
	wg.Wait()
	list, err := m.List(ctx, workspace.ListOptions{Owner: "ann"})
	if w.ok(err); made.Load() != 3 || len(list) != 3 {
		t.Fatalf("%d were made, %d are there", made.Load(), len(list))
	}
	_, err = m.Create(ctx, workspace.CreateOptions{ID: "of-another", Owner: "bob"})
	w.ok(err)
	w.ok(m.Delete(ctx, list[0].ID))
	_, err = m.Create(ctx, workspace.CreateOptions{Owner: "ann"})
	w.ok(err)
	// Those that were there before count for another manager too.
	m, err = workspace.New(workspace.Config{Registry: w.reg, MaxPerOwner: 3})
	w.ok(err)
	_, err = m.Create(ctx, workspace.CreateOptions{Owner: "ann"})
	w.wantErr(err, workspace.ErrTooMany)
	_, err = workspace.New(workspace.Config{MaxPerOwner: -1})
	w.wantErr(err, workspace.ErrInvalid)
}
