package bridge_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/taibox/taibox/bridge/internal/wire"
)

// TestSettle: what was asked for before is on the list when Settle returns,
// however late the bridge gets to read it.
func TestSettle(t *testing.T) {
	b := start(t)
	nc, err := net.Dial("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := b.Settle(ctx); err == nil || ctx.Err() == nil {
		t.Errorf("settled before the request was read: %v", err)
	}
	body, err := wire.Marshal(wire.Exec{ID: "late", Args: [][]byte{[]byte("/bin/sleep"), []byte("60")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := wire.NewConn(nc).WriteJSON(wire.TypeRequest, wire.Request{Version: wire.Major, Op: wire.OpExec, Body: body}); err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	execs, err := b.ListExecs(t.Context())
	if err != nil || len(execs) != 1 || execs[0].ID != "late" {
		t.Errorf("execs %+v, %v", execs, err)
	}
}
