// Package audit keeps the log of who did what with what result, and of what
// ended without anybody's asking.
//
// # Model
//
// A [Log] is a file of JSON lines, mode 0600, which is only appended to. When
// it has grown beyond [MaxSize] it becomes NAME.1, what was NAME.1 becomes
// NAME.2, and so on; beyond [Kept] old ones the oldest goes. An entry holds
// names and ids, and never a secret, a query or a body.
//
// # Errors
//
// [Log.Write] returns why an entry could not be kept. What is done with that
// is the caller's matter.
//
// # Concurrency
//
// Write is safe for concurrent use.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a log.
const (
	MaxSize = 32 << 20 // bytes of a file
	Kept    = 8        // old files
)

// Entry is one line.
type Entry struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"` // none: an end that nobody asked for
	Caller    Caller    `json:"caller"`
	Verb      string    `json:"verb,omitempty"`
	Object    Object    `json:"object,omitzero"`
	Status    int       `json:"status,omitempty"` // of HTTP
	Result    string    `json:"result"`           // "ok", or the code of the failure; of an end the state
	Reason    string    `json:"reason,omitempty"` // of an end
	Skipped   int       `json:"skipped,omitempty"`
}

// Caller is who asked.
type Caller struct {
	Key    string `json:"key,omitempty"` // id of the key, "socket", or of what nobody asked for "system"
	Owner  string `json:"owner,omitempty"`
	Admin  bool   `json:"admin,omitempty"`
	UID    *int   `json:"uid,omitempty"` // of the process on the socket
	PID    int    `json:"pid,omitempty"`
	Remote string `json:"remote,omitempty"` // address
}

// Object is what it was about.
type Object struct {
	Kind  string `json:"kind,omitempty"`
	ID    string `json:"id,omitempty"`
	Owner string `json:"owner,omitempty"`
	Node  string `json:"node,omitempty"`
	Exec  string `json:"exec,omitempty"` // of the box: started, fed or signalled
}

// Log appends entries to a file. Make it with [Open].
type Log struct {
	path    string
	maxSize int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

// Open opens the log at path, or begins it.
func Open(path string) (*Log, error) {
	l := &Log{path: path, maxSize: MaxSize}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.openLocked(); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	return l, nil
}

func (l *Log) openLocked() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Chmod(0o600)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write appends an entry, in one piece.
func (l *Log) Write(e *Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode audit entry: %w", err)
	}
	line = append(line, '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return fmt.Errorf("write audit entry: %w", fs.ErrClosed)
	}
	var rotated error
	if l.size > 0 && l.size+int64(len(line)) > l.maxSize {
		rotated = l.rotateLocked()
	}
	n, err := l.f.Write(line)
	l.size += int64(n)
	if err = errors.Join(rotated, err); err != nil {
		return fmt.Errorf("write audit entry: %w", err)
	}
	return nil
}

// rotateLocked begins a new file. If that fails, the present one grows on.
func (l *Log) rotateLocked() error {
	for i := Kept - 1; i >= 1; i-- {
		err := os.Rename(fmt.Sprintf("%s.%d", l.path, i), fmt.Sprintf("%s.%d", l.path, i+1))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil {
		return err
	}
	old := l.f
	if err := l.openLocked(); err != nil {
		return err
	}
	return old.Close()
}

// Close closes the file. Repeated calls do nothing.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return f.Close()
}
