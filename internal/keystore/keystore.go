// Package keystore keeps the API keys of a server.
//
// # Model
//
// A key is tbx_ID_SECRET. The secret has 256 random bits, is returned once by
// [Store.Create] and is not kept: only its SHA-256 is, which is enough for
// something that cannot be guessed. A [Store] is one file of mode 0600, which
// is replaced as a whole; a change is on disk before it counts.
//
// # Errors
//
// A file that cannot be understood is an error, with fields that we do not
// know as well: to ignore a restriction would be to lift it.
//
// # Concurrency
//
// All methods are safe for concurrent use. What one of them has done, every
// later call sees.
package keystore

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/taibox/taibox/internal/durable"
)

// Key is what is known of a key. Admin and Owner exclude each other.
type Key struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Admin   bool      `json:"admin,omitempty"`
	Verbs   []string  `json:"verbs,omitempty"` // none: all
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	// Once, if set, names the request that made the key: there is one key of it.
	Once string `json:"once,omitempty"`
}

// ErrRepeated reports a request that has made a key before.
var ErrRepeated = fmt.Errorf("the request has made a key: %w", errdefs.ErrAlreadyExists)

// Expired reports whether the key's time is over.
func (k *Key) Expired() bool { return !k.Expires.IsZero() && !time.Now().Before(k.Expires) }

// record is a key in the file.
type record struct {
	Key
	SHA256 string `json:"sha256"`
}

// file is the store on disk.
type file struct {
	Version int      `json:"version"`
	Keys    []record `json:"keys"`
}

const fileVersion = 1

// entry is a key that counts, until ended is closed.
type entry struct {
	key   Key
	hash  [sha256.Size]byte
	ended chan struct{}
	end   func()
	timer *time.Timer // nil: it does not expire
}

// Store holds the keys. Make it with [New] or [Open].
type Store struct {
	path string // "" = in memory

	mu   sync.RWMutex
	keys map[string]*entry
}

// New returns an empty store in memory.
func New() *Store { return &Store{keys: map[string]*entry{}} }

// Open reads the store at path, which need not exist yet.
func Open(path string) (*Store, error) {
	s := New()
	s.path = path
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	var f file
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("read keys: %s: %w: %w", path, err, errdefs.ErrDataLoss)
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("read keys: %s has version %d, %d is known: %w", path, f.Version, fileVersion, errdefs.ErrFailedPrecondition)
	}
	for _, r := range f.Keys {
		hash, err := hex.DecodeString(r.SHA256)
		if err != nil || len(hash) != sha256.Size || r.ID == "" || r.Admin == (r.Owner != "") || s.keys[r.ID] != nil {
			s.Close()
			return nil, fmt.Errorf("read keys: %s: key %q is damaged: %w", path, r.ID, errdefs.ErrDataLoss)
		}
		s.keys[r.ID] = newEntry(r.Key, [sha256.Size]byte(hash))
	}
	return s, nil
}

func newEntry(k Key, hash [sha256.Size]byte) *entry {
	e := &entry{key: k, hash: hash, ended: make(chan struct{})}
	e.end = sync.OnceFunc(func() { close(e.ended) })
	if !k.Expires.IsZero() {
		e.timer = time.AfterFunc(time.Until(k.Expires), e.end)
	}
	return e
}

// stop lets go of what the entry holds.
func (e *entry) stop() {
	if e.timer != nil {
		e.timer.Stop()
	}
}

// Close stops what the store has running. The keys stay on disk.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.keys {
		e.stop()
	}
}

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

const (
	prefix    = "tbx_"
	idPrefix  = "k-"
	secretLen = 32 // bytes
)

// Create makes a key like k, whose ID and time it sets, and returns it with
// the secret that proves it. If there is a key of the same [Key.Once] already,
// it returns that one and [ErrRepeated].
func (s *Store) Create(k Key) (Key, string, error) {
	var id [8]byte
	var secret [secretLen]byte
	rand.Read(id[:])
	rand.Read(secret[:])
	name := hex.EncodeToString(id[:])
	token := prefix + name + "_" + encoding.EncodeToString(secret[:])
	k.ID, k.Created, k.Verbs = idPrefix+name, time.Now().UTC(), slices.Clone(k.Verbs)

	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.keys {
		if k.Once != "" && old.key.Once == k.Once {
			return old.key, "", ErrRepeated
		}
	}
	e := newEntry(k, sha256.Sum256([]byte(token)))
	s.keys[k.ID] = e
	if err := s.saveLocked(); err != nil {
		e.stop()
		delete(s.keys, k.ID)
		return Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return k, token, nil
}

// Remove ends a key at once and for ever. It reports whether there was one.
func (s *Store) Remove(id string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.keys[id]
	if e == nil {
		return false, nil
	}
	delete(s.keys, id)
	if err := s.saveLocked(); err != nil {
		s.keys[id] = e
		return true, fmt.Errorf("remove key %s: %w", id, err)
	}
	e.stop()
	e.end()
	return true, nil
}

// List returns all keys, also expired ones, oldest first.
func (s *Store) List() []Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]Key, 0, len(s.keys))
	for _, e := range s.keys {
		list = append(list, e.key)
	}
	slices.SortFunc(list, func(a, b Key) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list
}

// Find returns the key that token proves. ended is closed when it no longer
// counts. What is sent by a caller is compared by its hash and in constant
// time.
func (s *Store) Find(token string) (k Key, ended <-chan struct{}, ok bool) {
	var id string
	if rest, has := strings.CutPrefix(token, prefix); has {
		name, _, _ := strings.Cut(rest, "_")
		id = idPrefix + name
	}
	hash := sha256.Sum256([]byte(token))
	s.mu.RLock()
	defer s.mu.RUnlock()
	e := s.keys[id]
	if e == nil || subtle.ConstantTimeCompare(hash[:], e.hash[:]) != 1 || e.key.Expired() {
		return Key{}, nil, false
	}
	return e.key, e.ended, true
}

// saveLocked writes the file anew.
func (s *Store) saveLocked() error {
	if s.path == "" {
		return nil
	}
	f := file{Version: fileVersion, Keys: []record{}}
	for _, e := range s.keys {
		f.Keys = append(f.Keys, record{e.key, hex.EncodeToString(e.hash[:])})
	}
	slices.SortFunc(f.Keys, func(a, b record) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	data, err := json.MarshalIndent(&f, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(s.path, append(data, '\n'))
}
