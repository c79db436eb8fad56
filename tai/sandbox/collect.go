package sandbox

import (
	"context"
	"errors"
	"io"
	"sync"
)

// Collect runs an attached stream to its end, gathers the output, and closes
// the stream. It keeps up to max bytes over both sources (0 means
// [DefaultMaxOutput]); what goes beyond is read and dropped, so that the
// command runs to its end. stdin is written while reading, then closed. When
// ctx ends first the client counts as gone: the stream is hung up and the
// context's cause returned. Drivers build Exec with it.
func Collect(ctx context.Context, s Stream, stdin []byte, hasStdin bool, max int64) (res ExecResult, err error) {
	if max == 0 {
		max = DefaultMaxOutput
	}
	stop := context.AfterFunc(ctx, func() { s.Hangup() }) //nolint:errcheck // the cause is what the caller gets
	defer stop()
	var feeder sync.WaitGroup
	if hasStdin {
		feeder.Go(func() { feed(s, stdin) })
	}
	defer func() {
		err = errors.Join(err, s.Close())
		feeder.Wait()
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()

	if err := gather(s, &res, max); err != nil {
		return res, err
	}
	res.ExecInfo, err = s.Wait(ctx)
	return res, err
}

// feed writes the whole input. A command that does not want it is its own
// affair.
func feed(s Stream, stdin []byte) {
	if len(stdin) > 0 {
		if _, err := s.Write(stdin); err != nil {
			return
		}
	}
	s.CloseWrite() //nolint:errcheck // as above
}

// gather reads a stream to its end into res, up to max bytes.
func gather(s Stream, res *ExecResult, max int64) error {
	var got int64
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data := c.Data
		if int64(len(data)) > max-got {
			data = data[:max-got]
			res.OutputTruncated = true
		}
		got += int64(len(data))
		switch c.Source {
		case Stdout:
			res.Stdout = append(res.Stdout, data...)
		case Stderr:
			res.Stderr = append(res.Stderr, data...)
		case Gap:
			res.OutputTruncated = true
		}
		if err := s.Ack(c.End()); err != nil {
			return err
		}
	}
}
