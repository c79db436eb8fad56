package sandbox

import (
	"context"
	"errors"
	"io"
)

// Collect runs an attached stream to its end and gathers the output, up to max
// bytes over both sources (0 means [DefaultMaxOutput]); what goes beyond is
// read and dropped, so that the command runs to its end. stdin is written
// while reading, then closed. When ctx ends first the client counts as gone:
// the stream is hung up and the context's cause returned. Drivers build Exec
// with it.
func Collect(ctx context.Context, s Stream, stdin []byte, hasStdin bool, max int64) (ExecResult, error) {
	if max == 0 {
		max = DefaultMaxOutput
	}
	stop := context.AfterFunc(ctx, func() { s.Hangup() }) //nolint:errcheck // the cause is what the caller gets
	defer stop()
	if hasStdin {
		go func() {
			// A command that does not want its input is its own affair.
			if len(stdin) > 0 {
				if _, err := s.Write(stdin); err != nil {
					return
				}
			}
			s.CloseWrite() //nolint:errcheck // as above
		}()
	}

	var res ExecResult
	var got int64
	for {
		c, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return res, err
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
		if err := s.Ack(c.End()); err != nil && ctx.Err() == nil {
			return res, err
		}
	}
	info, err := s.Wait(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return res, err
	}
	res.ExecInfo = info
	return res, s.Close()
}
