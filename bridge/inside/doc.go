// Package inside is PID 1 of a box: it starts commands, keeps their output,
// reaps what ends, and answers the node.
//
// # Model
//
// [Run] serves execs. Each has one record, one log, one tree of processes, and
// one goroutine that supervises it from start to end; that goroutine alone
// decides how the exec ended. Pumps move output from pipes to the log, streams
// from the log to the node. At most one stream holds an exec: it feeds the
// input, and its acknowledgements let the command write on when the log is
// full.
//
// # Trust
//
// The server trusts its peer, which it knows to be outside the box, and the
// descriptors that come from there. It trusts nothing in the box: what it reads
// there is bounded and waits for nothing. A non-root user of the box cannot
// disturb it; root inside may disturb its own box only.
//
// # Trees
//
// Where the node passes a cgroup for an exec, the kernel keeps the list of its
// processes and kills it in one stroke. Without, the tree is found by parents
// and sessions in /proc: a process that leaves its session and loses its
// parent between two looks gets away, until the box ends.
//
// # Errors
//
// Those of package sandbox, which travel by name; of files, error numbers.
//
// # Concurrency
//
// One goroutine a connection. A panic in one ends that connection only. No
// lock that others need is held over a system call that can block on the box
// or the disk.
package inside
