package bridge_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/taibox/taibox/bridge"
	"github.com/taibox/taibox/bridge/internal/wire"
	"github.com/taibox/taibox/tai/sandbox"
)

// watchEnd returns the final record of an exec from a watcher of its own.
func (b *box) watchEnd(id string) sandbox.ExecInfo {
	b.t.Helper()
	w, err := b.Watch(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	defer w.Close()
	for {
		info, err := w.Recv()
		if err != nil {
			b.t.Fatalf("watch for the end of %s: %v", id, err)
		}
		if info.ID == id && info.Done() {
			return info
		}
	}
}

// TestLongCommands runs commands whose words would fill any message.
func TestLongCommands(t *testing.T) {
	b := start(t)
	const piece = 100 << 10 // the kernel takes no longer argument
	for name, text := range map[string]string{"html": "<&>", "no_text": "\xff\xfe\xfd", "control": "\x01\x02\x03"} {
		t.Run(name, func(t *testing.T) {
			words := slices.Repeat([]string{strings.Repeat(text, piece/len(text))}, 8)
			res := b.exec(sandbox.ExecSpec{Args: slices.Concat([]string{"/bin/sh", "-c", `printf %s "$*" | wc -c`, "sh"}, words)})
			wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
			if want := fmt.Sprintf("%d\n", 8*(piece/len(text))*len(text)+7); string(res.Stdout) != want {
				t.Errorf("the command got %q bytes, not %q", res.Stdout, want)
			}
			info := b.watchEnd(res.ID)
			wantCode(t, info, 0, sandbox.ReasonExit)
			if n := len(info.Args); n != 5 || info.TextBytes() > 2*sandbox.MaxRecordList || !strings.HasSuffix(info.Args[n-1], "…") {
				t.Errorf("the record has %d arguments and %d bytes", n, info.TextBytes())
			}
		})
	}
	t.Run("too_long", func(t *testing.T) {
		spec := sh(strings.Repeat("<", 700<<10))
		spec.Env = map[string]string{strings.Repeat("&", 200<<10): "x"}
		res := b.exec(spec)
		wantCode(t, res.ExecInfo, 126, sandbox.ReasonExit)
		wantCode(t, b.watchEnd(res.ID), 126, sandbox.ReasonExit)
	})
	t.Run("long_name", func(t *testing.T) {
		res := b.exec(sandbox.ExecSpec{Args: []string{strings.Repeat("\xff", 1<<20)}})
		wantCode(t, res.ExecInfo, 127, sandbox.ReasonExit)
		if !strings.HasSuffix(res.Error, "…") {
			t.Errorf("the error ends in %q", res.Error[len(res.Error)-10:])
		}
	})
	t.Run("long_directory", func(t *testing.T) {
		spec := sh("true")
		spec.WorkDir = "/" + strings.Repeat("\xff", 2<<20)
		_, err := b.StartExec(t.Context(), spec, bridge.Files{})
		wantErr(t, err, sandbox.ErrDirNotFound)
	})
}

// TestListOfLongCommands asks for more than one message holds.
func TestListOfLongCommands(t *testing.T) {
	b := start(t)
	const execs = 30
	want := map[string]bool{}
	for range execs {
		res := b.exec(sh("exit 0 #" + strings.Repeat("\x01", 100<<10)))
		want[res.ID] = true
	}
	infos, err := b.ListExecs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if escaped := 6; execs*escaped*sandbox.MaxRecordList < wire.MaxJSON {
		t.Fatal("one message could hold them")
	}
	for _, info := range infos {
		wantCode(t, info, 0, sandbox.ReasonExit)
		delete(want, info.ID)
	}
	if len(infos) != execs || len(want) > 0 {
		t.Errorf("%d execs are listed, %d are not", len(infos), len(want))
	}
}

// TestOlderBridge asks one that tells of all execs in one frame.
func TestOlderBridge(t *testing.T) {
	c := hostile(t, func(conn *wire.Conn, req wire.Request) {
		if req.Op == wire.OpList {
			conn.WriteJSON(wire.TypeReply, []sandbox.ExecInfo{record("x"), record("y")})
			return
		}
		conn.WriteJSON(wire.TypeError, wire.NewError(fmt.Errorf("%w: the box's bridge knows no operation %q", sandbox.ErrUnsupported, req.Op)))
	})
	infos, err := c.ListExecs(t.Context())
	if err != nil || len(infos) != 2 || infos[1].ID != "y" {
		t.Errorf("%+v, %v", infos, err)
	}
}

// TestOlderNode asks as one does that takes all execs in one frame.
func TestOlderNode(t *testing.T) {
	b := start(t)
	id := b.exec(sh("true")).ID
	nc, err := b.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	conn := wire.NewConn(nc)
	if err := conn.WriteJSON(wire.TypeRequest, wire.Request{Version: wire.Major, Op: wire.OpList}); err != nil {
		t.Fatal(err)
	}
	if typ, p, err := conn.ReadFrame(); err != nil || typ != wire.TypeReply || !strings.Contains(string(p), `[{"id":"`+id+`"`) {
		t.Errorf("a frame of type %d, %q, %v", typ, p, err)
	}
}

// TestHostileRecords sends what no node should keep.
func TestHostileRecords(t *testing.T) {
	long := strings.Repeat("\x1b<", 32<<10)
	bad := record("x")
	bad.Box, bad.User, bad.WorkDir, bad.Signal, bad.Error = long, long, long, long, long
	bad.Args, bad.EnvNames = []string{"\x1b]0;owned\a", "a\n\tb", "\xff\x1b[0mé\xfe", long}, []string{"A\nB", long}
	c := hostile(t, func(conn *wire.Conn, req wire.Request) {
		conn.WriteJSON(wire.TypeReply, bad)
		if req.Op == wire.OpExecs {
			conn.WriteFrame(wire.TypeEnd, nil)
		}
	})
	infos, err := c.ListExecs(t.Context())
	if err != nil || len(infos) != 1 {
		t.Fatalf("%d records, %v", len(infos), err)
	}
	one, err := c.InspectExec(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range []sandbox.ExecInfo{infos[0], one} {
		all := slices.Concat(info.Args, info.EnvNames, []string{info.Box, info.User, info.WorkDir, info.Signal, info.Error})
		if strings.ContainsAny(strings.Join(all, ""), "\x1b\a") || info.TextBytes() > 2*sandbox.MaxRecordList+6*sandbox.MaxRecordText {
			t.Errorf("%d bytes: %.50q", info.TextBytes(), all)
		}
		if info.Args[1] != "a\n\tb" || info.Args[2] != "\xff [0mé\xfe" || info.EnvNames[0] != "A B" {
			t.Errorf("%q, %q", info.Args[1:3], info.EnvNames[0])
		}
	}
}

// TestHostileList never ends.
func TestHostileList(t *testing.T) {
	long := record("x")
	long.Args = []string{strings.Repeat("x", sandbox.MaxRecordList)}
	for name, info := range map[string]sandbox.ExecInfo{"many": record("x"), "long": long} {
		t.Run(name, func(t *testing.T) {
			raw, err := wire.Marshal(info)
			if err != nil {
				t.Fatal(err)
			}
			c := hostile(t, func(conn *wire.Conn, _ wire.Request) {
				for err := error(nil); err == nil; {
					err = conn.WriteFrame(wire.TypeReply, raw)
				}
			})
			_, err = c.ListExecs(t.Context())
			wantErr(t, err, sandbox.ErrBridgeLost)
		})
	}
}

// TestOlderBridgeMergesNothing: it does not do the half of what is asked for.
func TestOlderBridgeMergesNothing(t *testing.T) {
	c := hostile(t, func(conn *wire.Conn, req wire.Request) {
		if req.Op == wire.OpExec {
			conn.WriteJSON(wire.TypeReply, record("x"))
			return
		}
		conn.WriteJSON(wire.TypeError, wire.NewError(fmt.Errorf("%w: the box's bridge knows no operation %q", sandbox.ErrUnsupported, req.Op)))
	})
	spec := sandbox.ExecSpec{ID: "x", Args: []string{"true"}, MergeOutput: true}
	_, err := c.StartExec(t.Context(), spec, bridge.Files{})
	wantErr(t, err, sandbox.ErrUnsupported)
}
