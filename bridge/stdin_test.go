package bridge_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/taibox/taibox/tai/sandbox"
)

func TestB01ShortInputEnds(t *testing.T) {
	t.Parallel()
	b := start(t)
	for range 150 {
		res := b.exec(sandbox.ExecSpec{Args: []string{"cat"}, StdinData: []byte("x")})
		if string(res.Stdout) != "x" {
			t.Fatalf("%q", res.Stdout)
		}
		res = b.exec(sandbox.ExecSpec{Args: []string{"cat"}, Stdin: true})
		wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
		if len(res.Stdout) > 0 {
			t.Fatalf("%q", res.Stdout)
		}
	}
}

func TestB02InputOfEverySize(t *testing.T) {
	b := start(t)
	for _, n := range []int{0, 1, 4095, 4096, 65536, 65537, 10 << 20} {
		data := make([]byte, n)
		rng := rand.NewChaCha8([32]byte{byte(n)})
		rng.Read(data)
		sum := sha256.Sum256(data)
		res := b.exec(sandbox.ExecSpec{Args: []string{"sha256sum"}, Stdin: true, StdinData: data})
		if want := hex.EncodeToString(sum[:]); !strings.HasPrefix(string(res.Stdout), want) {
			t.Errorf("%d bytes: %q, want %s", n, res.Stdout, want)
		}
		res = b.exec(sandbox.ExecSpec{Args: []string{"cat"}, Stdin: true, StdinData: data})
		if !bytes.Equal(res.Stdout, data) {
			t.Errorf("%d bytes through cat: %d came back", n, len(res.Stdout))
		}
	}
}

// TestB02InputBeforeAnyRecv writes more than every pipe and window on the way
// holds, and only then begins to read.
func TestB02InputBeforeAnyRecv(t *testing.T) {
	b := start(t)
	s := b.start(sandbox.ExecSpec{Args: []string{"cat"}, Stdin: true})
	data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
	if n, err := s.Write(data); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	res, err := sandbox.Collect(t.Context(), s, nil, false, 0)
	if err != nil || !bytes.Equal(res.Stdout, data) {
		t.Fatalf("%d of %d bytes, %v", len(res.Stdout), len(data), err)
	}
}

// TestB02DetachedClientKeepsInputOpen hands the input from one client to
// another.
func TestB02DetachedClientKeepsInputOpen(t *testing.T) {
	b := start(t)
	s := b.start(sandbox.ExecSpec{Args: []string{"cat"}, Stdin: true})
	if _, err := s.Write([]byte("one ")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	var again sandbox.Stream
	until(t, "the input is free", func() (ok bool) {
		var err error
		again, err = b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Hold: true})
		return err == nil
	})
	res, err := sandbox.Collect(t.Context(), again, []byte("two"), true, 0)
	if err != nil || string(res.Stdout) != "one two" {
		t.Fatalf("%q, %v", res.Stdout, err)
	}
}

func TestB04DirectionsAreIndependent(t *testing.T) {
	t.Parallel()
	b := start(t)
	spec := sh("cat >/dev/null; sleep 0.5; seq 1 1000")
	spec.StdinData = []byte("q")
	res := b.exec(spec)
	if n := bytes.Count(res.Stdout, []byte("\n")); n != 1000 {
		t.Errorf("%d lines", n)
	}

	// A command that closes its input goes on writing, and its stream lives.
	s := b.start(sandbox.ExecSpec{Args: []string{"sh", "-c", "exec <&-; sleep 0.3; echo still here"}, Stdin: true})
	var err error
	for deadline := time.Now().Add(time.Minute); err == nil && time.Now().Before(deadline); {
		_, err = s.Write([]byte("unwanted"))
	}
	wantErr(t, err, sandbox.ErrExecEnded)
	got, err := sandbox.Collect(t.Context(), s, nil, false, 0)
	if err != nil || string(got.Stdout) != "still here\n" {
		t.Fatalf("%q, %v", got.Stdout, err)
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("a closed stream takes input")
	}
}

func TestB05NoInputIsEmptyInput(t *testing.T) {
	b := start(t)
	res := b.exec(sandbox.ExecSpec{Args: []string{"cat"}})
	wantCode(t, res.ExecInfo, 0, sandbox.ReasonExit)
	res = b.exec(sh("readlink /proc/self/fd/0"))
	if string(res.Stdout) != "/dev/null\n" {
		t.Errorf("%q", res.Stdout)
	}
	s := b.start(sh("sleep 30"))
	_, err := s.Write([]byte("x"))
	wantErr(t, err, sandbox.ErrExecEnded)
}

func TestInputOfAFullPipeBlocksOnlyWrite(t *testing.T) {
	b := start(t)
	s := b.start(sandbox.ExecSpec{Args: []string{"sh", "-c", "echo ready; sleep 30"}, Stdin: true})
	wrote := make(chan error, 1)
	go func() {
		_, err := s.Write(make([]byte, 2<<20))
		wrote <- err
	}()
	if c, err := s.Recv(); err != nil || string(c.Data) != "ready\n" {
		t.Fatal(c, err)
	}
	select {
	case err := <-wrote:
		t.Fatalf("nobody reads, and Write says %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := b.KillExec(t.Context(), s.ID(), sandbox.KillOptions{Signal: 9, Tree: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; !errors.Is(err, sandbox.ErrExecEnded) {
		t.Fatal(err)
	}
}

// TestG11InputGoesOn: who feeds a command leaves, and the next one knows how
// much of the input it has got, and whether that has ended.
func TestG11InputGoesOn(t *testing.T) {
	b := start(t)
	s := b.start(sandbox.ExecSpec{Args: []string{"sh", "-c", "read line; echo $line; read line; cat"}, Stdin: true})
	want := func(open bool, bytes int64) {
		t.Helper()
		if info, err := b.InspectExec(t.Context(), s.ID()); err != nil || info.InputOpen != open || info.InputBytes != bytes {
			t.Errorf("%+v %v, want open %v and %d bytes", info, err, open, bytes)
		}
	}
	if _, err := s.Write([]byte("one\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil { // it was read
		t.Fatal(err)
	}
	want(true, 4)
	if _, err := s.Write([]byte("tw")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	want(true, 6) // the command still waits for the rest of the line
	again, err := b.AttachExec(t.Context(), s.ID(), sandbox.AttachOptions{Hold: true})
	if err != nil {
		t.Fatal(err)
	}
	want(true, 6)
	res, err := sandbox.Collect(t.Context(), again, []byte("o\nthree"), true, 0)
	if err != nil || string(res.Stdout) != "one\nthree" || res.InputOpen {
		t.Errorf("%q %+v %v", res.Stdout, res.ExecInfo, err)
	}
}
