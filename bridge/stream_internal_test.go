package bridge

import (
	"errors"
	"testing"

	"github.com/taibox/taibox/bridge/internal/wire"
)

// TestFloodOfGaps is more than any bridge tells before it is read from.
func TestFloodOfGaps(t *testing.T) {
	s := &execStream{}
	for i := range int64(2*wire.OutputWindow + 1) {
		if err := s.frameLocked(wire.TypeGap, wire.AppendOffset(nil, wire.TypeGap, i, i+1)[wire.FrameHead:]); err != nil {
			if !errors.Is(err, wire.ErrProtocol) || len(s.queue) < wire.OutputWindow {
				t.Errorf("%v, after %d", err, len(s.queue))
			}
			return
		}
	}
	t.Errorf("%d gaps are kept", len(s.queue))
}
