package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestClaims: a name is one request's at a time, others are not kept, and who
// waits may leave.
func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c claims
		release, err := c.take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		other, err := c.take(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		other()

		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("left")
		impatient := make(chan error, 1)
		go func() {
			_, err := c.take(ctx, "a")
			impatient <- err
		}()
		held, most := 0, 0 // under the claim, which is what guards them
		for range 3 {
			go func() {
				release, err := c.take(t.Context(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				defer release()
				held++
				most = max(most, held)
				time.Sleep(time.Second) // of the bubble
				held--
			}()
		}
		synctest.Wait()
		if most != 0 {
			t.Error("a name that is taken was given away")
		}
		cancel(left)
		if err := <-impatient; !errors.Is(err, left) {
			t.Errorf("%v", err)
		}
		release()
		time.Sleep(time.Minute)
		synctest.Wait()
		if most != 1 || len(c.taken) != 0 {
			t.Errorf("%d at a time; %d names are left", most, len(c.taken))
		}
	})
}
