package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// keyring remembers which box an idempotency key made.
type keyring struct {
	byKey map[string]*keyEntry
	queue []*keyEntry // oldest first
}

type keyEntry struct {
	key, body string
	box       *Box
	at        time.Time
}

func newKeyring() keyring { return keyring{byKey: map[string]*keyEntry{}} }

// get returns the entry of a key that has not expired.
func (k *keyring) get(key string, now time.Time) *keyEntry {
	e := k.byKey[key]
	if e == nil || now.Sub(e.at) >= keyRetention {
		return nil
	}
	return e
}

// put enters a box's key, if it has one, as of the box's creation, and lets
// go of what expired or is too much.
func (k *keyring) put(b *Box, now time.Time) {
	if b.key == "" || now.Sub(b.info.CreatedAt) >= keyRetention {
		return
	}
	e := &keyEntry{key: b.key, body: b.body, box: b, at: b.info.CreatedAt}
	k.byKey[e.key] = e
	k.queue = append(k.queue, e)
	for len(k.queue) > maxKeys || now.Sub(k.queue[0].at) >= keyRetention {
		k.remove(k.queue[0])
		k.queue[0], k.queue = nil, k.queue[1:]
	}
}

// forget frees the key of a create that failed.
func (k *keyring) forget(b *Box) {
	if e := k.byKey[b.key]; e != nil && e.box == b {
		k.remove(e)
	}
}

func (k *keyring) remove(e *keyEntry) {
	if k.byKey[e.key] == e {
		delete(k.byKey, e.key)
	}
}

// hashRequest returns what labels keep of a key and of the options it came
// with: hashes, since both may hold secrets. Keys of different owners differ.
func hashRequest(opts *CreateOptions) (key, body string) {
	key = hash([]byte(opts.Owner + "\x00" + opts.IdempotencyKey))
	if len(opts.IdempotencyBody) > 0 {
		return key, hash(opts.IdempotencyBody)
	}
	o := *opts
	o.IdempotencyKey = ""
	b, err := json.Marshal(&o)
	if err != nil {
		panic(fmt.Sprintf("sandbox: options cannot be encoded: %v", err)) // no value of their types can do that
	}
	return key, hash(b)
}

func hash(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:16])
}
