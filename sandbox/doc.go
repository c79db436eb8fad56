// Package sandbox creates and keeps boxes on nodes.
//
// # Model
//
// A [Manager] makes boxes on the nodes of a [registry.Registry] and hands out
// a [Box] for each: a handle to run commands in, stop and remove. A box has an
// ID, unique over all nodes of a manager (see [taisandbox.ValidateID]), an
// owner, labels and a [LifecyclePolicy].
//
// The truth is at the nodes. What a manager must know again after a restart is
// in each box's labels; [Manager.Start] finds the boxes of its
// [Config.Instance] by them, removes what was half made, and goes on with what
// it had been doing. Boxes of other instances are not touched. Before Start a
// manager knows only what it made itself.
//
// Get and List answer from memory, which each node's events and a sweep each
// minute keep fresh; no call waits for another box or for a node that hangs. A
// box that vanished from its node is "failed" with the reason "lost" until it
// is removed.
//
// A box with a WorkspaceID works in that workspace: it is made on the node
// that keeps it, has it mounted at [DefaultMountPath] or elsewhere, and its
// commands begin there. Whoever the box runs as owns the files. The workspace
// outlives the box, and is not deleted while the box is there; any number of
// boxes can have it. [Box.Workspace] reaches its files from outside.
//
// In a box the variable YAO_SANDBOX_ID is its ID, unless the caller set it.
//
// [Manager.Events] tells what happens, in order and with reasons; the last few
// thousand events are kept for a reader that comes back, see
// [Manager.EventsSince].
//
// # Policies
//
// A [OneShot] box is removed once its first command has ended and its output
// was taken; also when that command could not be started, and when none was
// run within five minutes (one minute after a restart of the manager). If the
// reader went away without a word, the box and its output are kept for another
// minute.
//
// A [Session] box that was idle for its IdleTimeout is stopped and removed, a
// [LongRunning] one is stopped and can be started again. MaxLifetime after its
// creation a box of any policy but [Persistent] is removed, busy or not; its
// commands get its StopTimeout to end, unless somebody removes it meanwhile. A
// Persistent box never ends by itself. A timeout of zero is none.
//
// A box is busy, and its idle time begins afterwards, while a command's leader
// runs, a stream is open, a call for its files or another call that uses it is
// under way, for a minute after an active [Manager.Heartbeat], and while there
// is a [Box.Lease]. Not busy by themselves are an entrypoint that runs by
// itself (one that the caller runs is a command), children of commands that
// ended, and whoever only looks: Info, lists, logs, statistics, events. With
// KeepAlive the entrypoint and the children count too; of these no node tells
// the end, so that idle time begins when they are seen to be gone.
// [BoxInfo.Busy] says what keeps a box. Start and Stop are activity.
//
// Right before a box is stopped for idleness its node is asked whether
// commands run. A call that comes before that is decided wins. One that comes
// after gets [ErrStopping] or [ErrRemoving] with a hint; Start and Create wait.
// A box that takes long to end holds back no other.
//
// Timers go by the monotonic clock. After a restart, a box's idle time goes on
// from its last command, start, stop or creation, and its lifetime from its
// creation, as the node has them. After a restart, and when the process stood
// still for more than some seconds, nothing ends before half its timeout, or
// a minute if that is less, has passed: those who use the box can come back.
// What could not be done is tried again after a minute.
//
// # Errors
//
// The sentinels of this package; those of tai/sandbox are the same values.
//
// # Concurrency
//
// All methods are safe for concurrent use. Removes of one box join, and so
// does GetOrCreate with a create under way. [Manager.Close] ends all
// goroutines and detaches all streams; boxes and commands go on.
package sandbox
