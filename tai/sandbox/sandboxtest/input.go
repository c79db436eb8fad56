package sandboxtest

import (
	"bytes"
	"errors"

	"github.com/taibox/taibox/tai/sandbox"
)

func input(e *env) {
	e.cases([]testCase{
		{"B01-short-input-ends", shortInput},
		{"B02-every-size", inputSizes},
		{"B04-output-after-the-end-of-input", outputAfterInput},
		{"B05-no-input", noInput},
		{"write-after-the-end", writeAfterEnd},
		{"bytes-pass-untouched", bytesUntouched},
	})
}

func withStdin(s *sandbox.ExecSpec) { s.Stdin = true }

func shortInput(e *env) {
	id := e.box()
	for _, err := range concurrently(4, func(worker int) error {
		for i := range 50 {
			s, err := e.d.ExecStream(e.ctx, id, sandbox.ExecSpec{Args: e.commands.Cat(), Stdin: true})
			if err != nil {
				return err
			}
			want := ""
			if (i+worker)%2 == 0 {
				want = "x"
				if _, err := s.Write([]byte(want)); err != nil {
					return err
				}
			}
			if err := s.CloseWrite(); err != nil {
				return err
			}
			t, err := readUntil(s, 0, func(text) bool { return false })
			if err != nil || string(t.out) != want {
				return errors.Join(err, errors.New("cat printed "+string(t.out)))
			}
			if err := s.Close(); err != nil {
				return err
			}
		}
		return nil
	}) {
		e.ok(err)
	}
}

func inputSizes(e *env) {
	for _, n := range []int{0, 1, 4095, 4096, 65536, 65537, 10 << 20} {
		in := pattern(n)
		res := e.run(e.box(), e.commands.Cat(), func(s *sandbox.ExecSpec) { s.StdinData = in })
		e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 0)
		if !bytes.Equal(res.Stdout, in) {
			e.Errorf("%d bytes came back as %d other ones", n, len(res.Stdout))
		}
	}
}

func outputAfterInput(e *env) {
	res := e.run(e.box(), e.commands.Drain(1000), func(s *sandbox.ExecSpec) { s.StdinData = []byte("q") })
	if string(res.Stdout) != numbers(1000) {
		e.Errorf("after its input ended it printed %d bytes, %q", len(res.Stdout), clip(string(res.Stdout)))
	}
}

func noInput(e *env) {
	e.soon("a command that reads no input", func() {
		res := e.run(e.box(), e.commands.Cat())
		e.wantEnd(res.ExecInfo, sandbox.ReasonExit, 0)
		if len(res.Stdout) > 0 {
			e.Errorf("it read %q", res.Stdout)
		}
	})
}

func writeAfterEnd(e *env) {
	s := e.stream(e.box(), e.commands.Exit(3), withStdin)
	_, err := s.Wait(e.ctx)
	e.ok(err)
	// The first write may still fit into a buffer.
	for range 100 {
		if _, err = s.Write(make([]byte, 1<<16)); err != nil {
			break
		}
	}
	e.wantErr(err, sandbox.ErrExecEnded)
	if t := e.read(s, 0); t.end != 0 {
		e.Errorf("it printed %d bytes", t.end)
	}

	// One that never reads does not hold the writer for ever.
	s = e.stream(e.box(), e.commands.Drain(1), withStdin)
	e.ok(s.CloseWrite())
	e.read(s, 0)
}

func bytesUntouched(e *env) {
	in := []byte("é漢🙂\x00\r\n\x1b[0m\xff\xfe")
	for i := range 256 {
		in = append(in, byte(i))
	}
	res := e.run(e.box(), e.commands.Cat(), func(s *sandbox.ExecSpec) { s.StdinData = in })
	if !bytes.Equal(res.Stdout, in) {
		e.Errorf("%q came back as %q", in, res.Stdout)
	}
}
