package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/errmap"
)

const (
	// eventSilence is how long a stream of events may say nothing: the server
	// sends a sign of life more often.
	eventSilence = 45 * time.Second
	maxEventLine = 4 << 20
)

var errSilence = fmt.Errorf("no sign of life for %v: %w", eventSilence, rest.ErrUnreachable)

// Events delivers what happens until ctx ends, or something fails for good. A
// stream that breaks is opened again where it was; if events were missed, a
// gap says so.
func (c *Client) Events(ctx context.Context, w rest.WatchEvents) iter.Seq2[rest.Event, error] {
	return func(yield func(rest.Event, error) bool) {
		at, wait := w.Since, retryFirst
		for {
			heard, stop, err := c.listen(ctx, w, &at, yield)
			switch {
			case stop:
				return
			case ctx.Err() != nil:
				yield(rest.Event{}, context.Cause(ctx))
				return
			case !errmap.Temporary(err):
				yield(rest.Event{}, err)
				return
			}
			if heard {
				wait = retryFirst
			}
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				continue
			}
			wait = min(2*wait, retryMost)
			if c.revive != nil {
				if err := c.revive(ctx); err != nil && !errmap.Temporary(err) {
					yield(rest.Event{}, err)
					return
				}
			}
		}
	}
}

// listen reads one stream to its end. at follows the place in it.
func (c *Client) listen(ctx context.Context, w rest.WatchEvents, at *string, yield func(rest.Event, error) bool) (heard, stop bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	u := c.at("v1", "events")
	q := url.Values{"box": w.Boxes, "owner": w.Owners, "type": w.Types}
	for k, v := range w.Labels {
		q.Add("label", k+"="+v)
	}
	u.RawQuery = q.Encode()
	header := []string{"Accept", "text/event-stream"}
	if *at != "" {
		header = append(header, rest.HeaderLastEventID, *at)
	}
	watch := time.AfterFunc(eventSilence, func() { cancel(errSilence) })
	defer watch.Stop()
	resp, err := c.send(ctx, http.MethodGet, u, nil, header...)
	if err != nil {
		return false, false, err
	}
	defer resp.Body.Close()
	r := bufio.NewReaderSize(resp.Body, 16<<10)
	for {
		id, data, err := readEvent(r, func() { watch.Reset(eventSilence) })
		if err != nil {
			if errors.Is(err, errEventLine) {
				return heard, false, err
			}
			return heard, false, c.linkError(ctx, err)
		}
		if id != "" {
			*at, heard = id, true
		}
		if data == "" {
			continue
		}
		var e rest.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return heard, false, fmt.Errorf("event %s: %w", id, err)
		}
		if !yield(e, nil) {
			return heard, true, nil
		}
	}
}

var errEventLine = errors.New("a line of the events is too long")

// readEvent reads one block of a stream of server-sent events.
func readEvent(r *bufio.Reader, alive func()) (id, data string, err error) {
	var text strings.Builder
	for {
		line, err := readLine(r)
		if err != nil {
			return "", "", err
		}
		alive()
		if line == "" {
			return id, text.String(), nil
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "data":
			if text.Len() > 0 {
				text.WriteByte('\n')
			}
			text.WriteString(value)
		}
	}
}

func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxEventLine:
			return "", errEventLine
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return "", io.ErrUnexpectedEOF
		case err != nil:
			return "", err
		default:
			return strings.TrimRight(string(line), "\r\n"), nil
		}
	}
}
