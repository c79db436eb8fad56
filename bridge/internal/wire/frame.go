// Package wire is what travels between a node and the bridge of a box: frames,
// requests, and the format of an exec's log.
package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Major is the version of the protocol. A bridge refuses any other.
const Major = 1

// Bounds of a frame's payload.
const (
	MaxData = 64 << 10 // bytes of input or output in one frame
	MaxJSON = 4 << 20
	maxFDs  = 8
)

// Windows keep either side from having to stop reading a connection: so much
// may be on its way that the other side has not yet taken.
const (
	InputWindow  = 256 << 10
	OutputWindow = 256 << 10
)

// Type says what a frame is.
type Type byte

// The frames. The payload of all that carry an offset begins with it, as eight
// bytes, big end first.
const (
	TypeRequest Type = 1 // node: Request; the first frame of a connection
	TypeReply   Type = 2 // bridge: JSON, as the request's kind says
	TypeError   Type = 3 // bridge: Error; the last frame of a connection

	TypeStdin    Type = 16 // node: input
	TypeEOF      Type = 17 // node: the input ends here
	TypeAck      Type = 18 // node: offset; all before it reached the client for good
	TypeConsumed Type = 19 // node: offset; all before it was taken from the stream
	TypeResize   Type = 20 // node: columns and rows, two bytes each
	TypeHangup   Type = 21 // node: its client is gone

	TypeOutput      Type = 32 // bridge: offset, source, output
	TypeGap         Type = 33 // bridge: offset of the first byte lost, offset after the last
	TypeExit        Type = 34 // bridge: the final record, JSON
	TypeEnd         Type = 35 // bridge: the present end of the log was reached
	TypeInput       Type = 36 // bridge: count of the input bytes taken so far
	TypeInputClosed Type = 37 // bridge: the command reads no more input
)

// bounds returns the least and greatest size of a payload.
func (t Type) bounds() (least, most int) {
	switch t {
	case TypeRequest, TypeReply, TypeError, TypeExit:
		return 2, MaxJSON
	case TypeStdin:
		return 1, MaxData
	case TypeOutput:
		return OutputHead + 1, OutputHead + MaxData
	case TypeAck, TypeConsumed, TypeInput:
		return 8, 8
	case TypeGap:
		return 16, 16
	case TypeResize:
		return 4, 4
	case TypeEOF, TypeHangup, TypeEnd, TypeInputClosed:
		return 0, 0
	}
	return 0, -1
}

// FrameHead is the size of a frame's head: type and length.
const FrameHead = 5

// OutputHead is the size of what precedes the data of a TypeOutput payload.
const OutputHead = 9

// ErrProtocol reports a peer that does not keep to the protocol.
var ErrProtocol = errors.New("protocol violation")

// AppendFrame appends a frame to b. The payload may come in parts.
func AppendFrame(b []byte, t Type, payload ...[]byte) []byte {
	n := 0
	for _, p := range payload {
		n += len(p)
	}
	b = append(b, byte(t), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[len(b)-4:], uint32(n))
	for _, p := range payload {
		b = append(b, p...)
	}
	return b
}

// AppendOffset appends a frame that carries nothing but numbers.
func AppendOffset(b []byte, t Type, numbers ...int64) []byte {
	b = append(b, byte(t), 0, 0, 0, byte(8*len(numbers)))
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// AppendOutput appends a TypeOutput frame.
func AppendOutput(b []byte, source byte, offset int64, data []byte) []byte {
	var head [OutputHead]byte
	binary.BigEndian.PutUint64(head[:], uint64(offset))
	head[8] = source
	return AppendFrame(b, TypeOutput, head[:], data)
}

// Offset reads the number at index i of a payload.
func Offset(payload []byte, i int) int64 {
	return int64(binary.BigEndian.Uint64(payload[8*i:]))
}

// Conn speaks frames. One goroutine may read while others write.
type Conn struct {
	net.Conn
	in  *bufio.Reader
	buf []byte

	wantFiles bool
	fds       []int

	out  sync.Mutex
	wbuf []byte
}

// NewConn wraps a connection.
func NewConn(c net.Conn) *Conn {
	w := &Conn{Conn: c}
	w.in = bufio.NewReaderSize((*fdReader)(w), 2<<10)
	return w
}

// CloseWrite says that no more frames come from this side.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// ReadFrame returns the next frame. The payload is valid until the next call.
func (c *Conn) ReadFrame() (Type, []byte, error) {
	var head [FrameHead]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return 0, nil, err
	}
	t := Type(head[0])
	n := binary.BigEndian.Uint32(head[1:])
	if least, most := t.bounds(); int64(n) < int64(least) || int64(n) > int64(most) {
		return 0, nil, fmt.Errorf("%w: frame of type %d with %d bytes", ErrProtocol, t, n)
	}
	if cap(c.buf) < int(n) || cap(c.buf) > 4*MaxData && int(n) < MaxData {
		c.buf = make([]byte, n)
	}
	c.buf = c.buf[:n]
	if _, err := io.ReadFull(c.in, c.buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return t, c.buf, nil
}

// WriteFrames writes whole frames, made with the Append functions.
func (c *Conn) WriteFrames(frames []byte) error {
	c.out.Lock()
	defer c.out.Unlock()
	_, err := c.Conn.Write(frames)
	return err
}

// WriteFrame writes one frame.
func (c *Conn) WriteFrame(t Type, payload []byte) error {
	c.out.Lock()
	defer c.out.Unlock()
	c.wbuf = AppendFrame(c.wbuf[:0], t, payload)
	_, err := c.Conn.Write(c.wbuf)
	return err
}

// Marshal is [json.Marshal] without what only HTML needs: escapes that make six
// bytes of each <, > and &.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// WriteJSON writes one frame with v as JSON.
func (c *Conn) WriteJSON(t Type, v any) error {
	return c.WriteJSONWithFiles(t, v, nil)
}

// WriteJSONWithFiles writes one frame with v as JSON, and descriptors.
func (c *Conn) WriteJSONWithFiles(t Type, v any, files []*os.File) error {
	body, err := Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > MaxJSON {
		return fmt.Errorf("%w: %d bytes of JSON, at most %d are possible", ErrTooLong, len(body), MaxJSON)
	}
	frame := AppendFrame(make([]byte, 0, FrameHead+len(body)), t, body)
	c.out.Lock()
	defer c.out.Unlock()
	if len(files) > 0 {
		n, err := c.sendFiles(frame, files)
		if err != nil {
			return err
		}
		frame = frame[n:]
	}
	if len(frame) == 0 {
		return nil
	}
	_, err = c.Conn.Write(frame)
	return err
}

// ErrTooLong reports a message beyond [MaxJSON].
var ErrTooLong = errors.New("message too long")

// ErrNoFiles reports a transport that cannot pass descriptors.
var ErrNoFiles = errors.New("the transport cannot pass descriptors")

func (c *Conn) sendFiles(frame []byte, files []*os.File) (int, error) {
	uc, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return 0, ErrNoFiles
	}
	// Control keeps each file open until the message is on its way, and leaves
	// its blocking mode alone, which Fd would not.
	fds := make([]int, 0, len(files))
	var send func() (int, error)
	send = func() (int, error) {
		if len(fds) == len(files) {
			n, _, err := uc.WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
			return n, err
		}
		rc, err := files[len(fds)].SyscallConn()
		if err != nil {
			return 0, err
		}
		var n int
		var sendErr error
		err = rc.Control(func(fd uintptr) {
			fds = append(fds, int(fd))
			n, sendErr = send()
		})
		return n, errors.Join(err, sendErr)
	}
	return send()
}

// WantFiles keeps descriptors that come with the next frames, for
// [Conn.TakeFiles]. Otherwise the kernel drops them.
func (c *Conn) WantFiles() { c.wantFiles = true }

// TakeFiles returns the descriptors that came so far, and wants no more.
func (c *Conn) TakeFiles() []*os.File {
	c.wantFiles = false
	files := make([]*os.File, 0, len(c.fds))
	for _, fd := range c.fds {
		files = append(files, os.NewFile(uintptr(fd), "passed"))
	}
	c.fds = nil
	return files
}

// fdReader reads bytes and keeps the descriptors that come with them.
type fdReader Conn

func (r *fdReader) Read(p []byte) (int, error) {
	uc, ok := r.Conn.(*net.UnixConn)
	if !ok || !r.wantFiles {
		return r.Conn.Read(p)
	}
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, flags, _, err := uc.ReadMsgUnix(p, oob)
	n = max(n, 0) // it is -1 with an error
	if oobn > 0 {
		fds, perr := parseFDs(oob[:oobn])
		r.fds = append(r.fds, fds...)
		if perr != nil || flags&unix.MSG_CTRUNC != 0 || len(r.fds) > maxFDs {
			for _, f := range (*Conn)(r).TakeFiles() {
				f.Close() //nolint:errcheck // refused unused
			}
			return 0, fmt.Errorf("%w: unexpected descriptors", ErrProtocol)
		}
	}
	return n, err
}

func parseFDs(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var all []int
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return all, err
		}
		all = slices.Concat(all, fds)
	}
	return all, nil
}
