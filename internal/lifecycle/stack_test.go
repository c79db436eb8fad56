package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/taibox/taibox/internal/lifecycle"
)

func TestStackRunsLastFirstOnce(t *testing.T) {
	var s lifecycle.Stack
	var ran []int
	failure := errors.New("step 2")
	for i := range 3 {
		s.Push(func(context.Context) error {
			ran = append(ran, i)
			if i == 1 {
				return failure
			}
			return nil
		})
	}
	if err := s.Close(t.Context()); !errors.Is(err, failure) {
		t.Errorf("the error is %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("a second close gives %v", err)
	}
	if !slices.Equal(ran, []int{2, 1, 0}) {
		t.Errorf("the steps ran as %v: one that fails must not stop the others", ran)
	}
	if s.Push(func(context.Context) error { return nil }) {
		t.Error("a closed stack took a step")
	}
}

func TestStackRelease(t *testing.T) {
	var s lifecycle.Stack
	s.Push(func(context.Context) error { t.Error("a released step ran"); return nil })
	s.Release()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if s.Push(func(context.Context) error { return nil }) {
		t.Error("a released stack took a step")
	}
}

func TestStackCleansUpAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "kept"))
		cancel(errors.New("the caller went home"))
		var s lifecycle.Stack
		began := time.Now()
		s.Push(func(ctx context.Context) error {
			if ctx.Err() != nil || ctx.Value(key{}) != "kept" {
				t.Errorf("a step runs with %v, %v", ctx.Err(), ctx.Value(key{}))
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if err := s.Close(ctx); err == nil {
			t.Error("a step that hung is no error")
		}
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("the steps had %v", took)
		}
	})
}

// TestStackNoLostStep: a step is run, or refused, never both or neither.
func TestStackNoLostStep(t *testing.T) {
	for range 200 {
		var s lifecycle.Stack
		var ran, kept atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if s.Push(func(context.Context) error { ran.Add(1); return nil }) {
					kept.Add(1)
				}
			})
		}
		wg.Go(func() { s.Close(t.Context()) })
		wg.Wait()
		s.Close(t.Context())
		if ran.Load() != kept.Load() {
			t.Fatalf("%d steps were taken, %d ran", kept.Load(), ran.Load())
		}
	}
}
