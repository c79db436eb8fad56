// Package lifecycle undoes what was half done.
package lifecycle

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

const closeTimeout = 30 * time.Second

var errCloseTimeout = errors.New("clean-up did not end in time")

// Stack holds clean-up steps and runs them once, last first.
// The zero value is ready to use.
type Stack struct {
	mu     sync.Mutex
	steps  []func(context.Context) error
	closed bool
}

// Push adds a step. It reports false once the stack has closed; the caller
// then still owns what the step would have released.
func (s *Stack) Push(step func(context.Context) error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.steps = append(s.steps, step)
	}
	return !s.closed
}

// Release forgets the steps: what they would have undone is kept.
func (s *Stack) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps, s.closed = nil, true
}

// Close runs the steps with a deadline of its own, so that a cancelled request
// still cleans up. Later calls do nothing.
func (s *Stack) Close(ctx context.Context) error {
	s.mu.Lock()
	steps := s.steps
	s.steps, s.closed = nil, true
	s.mu.Unlock()
	if len(steps) == 0 {
		return nil
	}

	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), closeTimeout, errCloseTimeout)
	defer cancel()
	var errs []error
	for _, step := range slices.Backward(steps) {
		errs = append(errs, step(ctx))
	}
	return errors.Join(errs...)
}
