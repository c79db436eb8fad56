// Package bridge talks to the program that is PID 1 of a box.
//
// # Model
//
// A [Client] reaches one bridge by a [Dialer]; each call is a connection of
// its own. A command's output comes as a [sandbox.Stream]; [OpenLog] reads
// the same from the file that a bridge has left, when there is no bridge any
// more. The program itself is package inside.
//
// # Errors
//
// Those of package sandbox. [sandbox.ErrBridgeLost] means that the bridge did
// not answer, or not as the protocol says: the outcome is unknown.
//
// # Trust
//
// Root inside a box may have taken its bridge over. So a client believes no
// length, offset, or name that comes from there; what it returns is bounded and
// well formed, which does not make it true.
//
// # Concurrency
//
// All methods are safe for concurrent use.
//
// # Example
//
//	c := bridge.New(func(ctx context.Context) (net.Conn, error) {
//		var d net.Dialer
//		return d.DialContext(ctx, "unix", socket)
//	})
//	defer c.Close()
//	hello, err := c.Setup(ctx, bridge.Setup{Box: "b1"}) // waits for the bridge
//	s, err := c.StartExec(ctx, sandbox.ExecSpec{Args: []string{"uname", "-r"}}, bridge.Files{})
//	res, err := sandbox.Collect(ctx, s, nil, false, 0)
package bridge
