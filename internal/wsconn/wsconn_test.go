package wsconn_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/wsconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns both ends of a WebSocket.
func pair(t *testing.T, limit int64, live wsconn.Liveness) (a, b *wsconn.Conn) {
	t.Helper()
	return pairWith(t, limit, live, func() {})
}

// pairWith is pair, and tells of each ping that b gets.
func pairWith(t *testing.T, limit int64, live wsconn.Liveness, pinged func()) (a, b *wsconn.Conn) {
	t.Helper()
	opts := &websocket.AcceptOptions{OnPingReceived: func(context.Context, []byte) bool {
		pinged()
		return true
	}}
	got := make(chan *wsconn.Conn)
	done := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, opts)
		if err != nil {
			t.Error(err)
		}
		got <- wsconn.New(ws, limit, live)
		<-done
	}))
	ws, _, err := websocket.Dial(context.Background(), s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, b = wsconn.New(ws, limit, live), <-got
	t.Cleanup(func() {
		a.CloseNow()
		b.CloseNow()
		close(done)
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return a, b
}

func TestFrames(t *testing.T) {
	a, b := pair(t, 1+rest.MaxData, wsconn.Liveness{})
	var buf []byte
	for _, n := range []int{0, 1, 511, 512, 513, rest.MaxData - 1, rest.MaxData} {
		data := bytes.Repeat([]byte{byte(n)}, n)
		sent := make(chan error, 1)
		go func() { sent <- a.WriteData(2, data) }()
		text, f, err := b.Read(buf)
		if err != nil || text || f[0] != 2 || !bytes.Equal(f[1:], data) {
			t.Fatalf("%d bytes: %d %v %v", n, len(f), text, err)
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		buf = f
	}
	if err := a.WriteJSON(rest.Frame{Type: "ack", Offset: 5}); err != nil {
		t.Fatal(err)
	}
	if text, f, err := b.Read(buf); err != nil || !text || string(f) != `{"type":"ack","offset":5}` {
		t.Errorf("%s %v", f, err)
	}
	go a.Close(4001, "taken over by another client, whose name is too long for a close frame, since it has room for no more than one hundred and twenty bytes")
	if _, _, err := b.Read(buf); wsconn.CloseCode(err) != 4001 {
		t.Errorf("%v", err)
	}
}

func TestLimit(t *testing.T) {
	a, b := pair(t, 10, wsconn.Liveness{})
	if err := a.WriteData(1, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Read(nil); err == nil || wsconn.CloseCode(err) != -1 {
		t.Errorf("%v", err)
	}
	if _, _, err := a.Read(nil); wsconn.CloseCode(err) != 1009 {
		t.Errorf("%v", err)
	}
}

// TestN01_SilentPeer: one that answers is left alone for as long as it likes,
// one that does not is cut off.
func TestN01_SilentPeer(t *testing.T) {
	// Each ping after the first one shows that the one before was answered.
	const several = 5
	pings, left := make(chan struct{}), several
	a, b := pairWith(t, 100, wsconn.Liveness{PingEvery: 5 * time.Millisecond, PingTimeout: 30 * time.Second}, func() {
		if left--; left == 0 {
			close(pings)
		}
	})
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		a.KeepAlive(stop)
	}()
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		a.Read(nil)
	}()
	peer := make(chan struct{})
	go func() {
		defer close(peer)
		b.Read(nil)
	}()
	select {
	case <-ended:
		t.Error("a peer that answers was cut off")
	case <-pings:
	}
	close(stop)
	<-ended
	a.CloseNow()
	<-reading
	<-peer

	silent := wsconn.Liveness{PingEvery: 5 * time.Millisecond, PingTimeout: 100 * time.Millisecond}
	a, _ = pair(t, 100, silent) // whose other end reads nothing
	start := time.Now()
	go a.KeepAlive(make(chan struct{}))
	if _, _, err := a.Read(nil); err == nil || time.Since(start) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

func TestWriteTimeout(t *testing.T) {
	a, _ := pair(t, 100, wsconn.Liveness{WriteTimeout: 50 * time.Millisecond})
	var err error
	for range 10000 {
		if err = a.WriteData(1, make([]byte, rest.MaxData)); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("a peer that reads nothing takes everything")
	}
}
