package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/taibox/taibox/api/rest"
)

// stallTimeout is how long a body that is streamed may bring nothing. It may
// come from a program that pauses.
const stallTimeout = 5 * time.Minute

// steadyBody is a body that may take any time, as long as it brings something.
type steadyBody struct {
	io.ReadCloser
	patience time.Duration
	deadline func(time.Time) error // of reads
	ended    bool
}

// steady bounds how long the body of a request may stall.
func steady(w http.ResponseWriter, r *http.Request) *steadyBody {
	b := &steadyBody{ReadCloser: r.Body, patience: stallTimeout, deadline: http.NewResponseController(w).SetReadDeadline}
	b.ended = r.Body == nil || r.Body == http.NoBody
	if !b.ended {
		r.Body = b
	}
	return b
}

func (b *steadyBody) Read(p []byte) (int, error) {
	b.arm()
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) { // which stays: nobody waits for the rest
		b.ended = true
		return n, fmt.Errorf("%w: nothing of the body came for %v", rest.ErrRequest, b.patience)
	}
	// While nobody reads, nothing need come.
	b.set(time.Time{})
	b.ended = b.ended || err != nil
	return n, err
}

// leave bounds how long what is left of the body is waited for.
func (b *steadyBody) leave() {
	if !b.ended {
		b.arm()
	}
}

func (b *steadyBody) arm() { b.set(time.Now().Add(b.patience)) }

func (b *steadyBody) set(t time.Time) {
	b.deadline(t) //nolint:errcheck // without a connection nothing stalls
}
