package local

import "sync"

// fileKey names a place in a directory.
type fileKey struct {
	dev, ino uint64
	base     string
}

// keyedLock is a lock for each key that is in use.
type keyedLock[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*countedLock
}

type countedLock struct {
	sync.Mutex
	users int
}

// lock waits for the lock of a key, and returns what gives it back.
func (k *keyedLock[K]) lock(key K) (unlock func()) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[K]*countedLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &countedLock{}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
}
