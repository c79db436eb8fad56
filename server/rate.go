package server

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/taibox/taibox/api/rest"
)

// rates bounds the requests of each key.
type rates struct {
	limit rate.Limit // 0 = none
	burst int

	mu    sync.Mutex
	byKey map[string]*rate.Limiter
}

// take admits a request, or says when the next one may come.
func (l *rates) take(key string) error {
	if l.limit == 0 {
		return nil
	}
	l.mu.Lock()
	lim := l.byKey[key]
	if lim == nil {
		if l.byKey == nil {
			l.byKey = map[string]*rate.Limiter{}
		}
		lim = rate.NewLimiter(l.limit, l.burst)
		l.byKey[key] = lim
	}
	l.mu.Unlock()
	now := time.Now()
	r := lim.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	return &rateError{wait}
}

// forget lets go of a key that was removed.
func (l *rates) forget(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byKey, key)
}

// rateError is one request too many.
type rateError struct{ wait time.Duration }

func (e *rateError) Error() string { return rest.ErrRate.Msg + " with this key" }
func (e *rateError) Unwrap() error { return rest.ErrRate }

// header says after how many whole seconds to come again.
func (e *rateError) header() http.Header {
	return http.Header{"Retry-After": {strconv.Itoa(int(math.Ceil(e.wait.Seconds())))}}
}
