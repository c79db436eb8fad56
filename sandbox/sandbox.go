package sandbox

import "sync"

var global struct {
	mu sync.Mutex
	m  *Manager
}

// Init makes the manager of the process, [New] with [DefaultConfig]. Repeated
// calls do nothing.
func Init() {
	global.mu.Lock()
	defer global.mu.Unlock()
	if global.m != nil {
		return
	}
	m, err := New(DefaultConfig())
	if err != nil {
		panic("sandbox: the default configuration is invalid: " + err.Error())
	}
	global.m = m
}

// M returns the manager that [Init] made. It panics if Init was not called.
func M() *Manager {
	global.mu.Lock()
	defer global.mu.Unlock()
	if global.m == nil {
		panic("sandbox: M was called before Init")
	}
	return global.m
}
