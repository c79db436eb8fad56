package sandbox

import (
	"context"
	"errors"
	"io"
	"sync"
)

// Collect runs an attached stream to its end, gathers the output, and closes
// the stream. It keeps up to max bytes over both sources (0 means
// [DefaultMaxOutput]) as a [Collector] does; what goes beyond is read and
// dropped, so that the command runs to its end. stdin is written while
// reading, then closed. When ctx ends first the client counts as gone: the
// stream is hung up and the context's cause returned. Drivers build Exec with
// it.
func Collect(ctx context.Context, s Stream, stdin []byte, hasStdin bool, max int64) (res ExecResult, err error) {
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

// Feed begins to write the whole input of an attached stream, and ends it. A
// client that goes does not cut it short: the context that is returned carries
// ctx's values and ends as ctx does, but not before the input was handed over
// or the stream can take no more. It is for [Collect], which goes on to read
// meanwhile, so that the command can. The caller closes the stream before it
// calls stop, which waits for what goes on here.
func Feed(ctx context.Context, s Stream, stdin []byte) (until context.Context, stop func()) {
	until, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	var feeder sync.WaitGroup
	feeder.Go(func() {
		feed(s, stdin)
		select {
		case <-ctx.Done():
			cancel(context.Cause(ctx))
		case <-until.Done():
		}
	})
	return until, func() {
		cancel(nil)
		feeder.Wait()
	}
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
	kept := NewCollector(max)
	defer kept.Fill(res)
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		kept.Add(c)
		if err := s.Ack(c.End()); err != nil {
			return err
		}
	}
}
