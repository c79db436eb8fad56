package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/keystore"
	"github.com/taibox/taibox/internal/reason"
	"github.com/taibox/taibox/sandbox"
)

func (s *Server) keyRoutes() {
	handle(s, http.MethodPost, "/v1/keys", "Make an API key; its secret is in this answer only", s.createKey)
	handle(s, http.MethodGet, "/v1/keys", "All API keys, oldest first", s.listKeys)
	handle(s, http.MethodDelete, "/v1/keys/{id}", "Remove an API key, which ends it at once", s.removeKey)
}

type createKeyInput struct {
	Key  string `header:"Idempotency-Key" maxLength:"256" doc:"The same key makes no second API key: the answer is 409 and names the first"`
	Body rest.CreateKey
}

func (s *Server) createKey(ctx context.Context, in *createKeyInput) (*output[rest.NewKey], error) {
	if err := s.allow(ctx, VerbCreate, Object{Kind: KindKey, Owner: in.Body.Owner}); err != nil {
		return nil, err
	}
	r := &in.Body
	if r.Admin == (r.Owner != "") {
		return nil, fmt.Errorf("%w: a key is of either an owner or an admin", rest.ErrRequest)
	}
	for _, v := range r.Verbs {
		if !slices.Contains(Verbs(), Verb(v)) {
			return nil, fmt.Errorf("%w: verb %.32q: %v are possible", rest.ErrRequest, v, Verbs())
		}
	}
	ttl, err := duration("expires_in_ms", r.ExpiresInMs)
	if err != nil {
		return nil, err
	}
	k := keystore.Key{Name: r.Name, Owner: r.Owner, Admin: r.Admin, Verbs: r.Verbs}
	if ttl > 0 {
		k.Expires = time.Now().Add(ttl).UTC()
	}
	caller, _ := ctx.Value(callerKey).(Caller)
	if err := caller.mayGrant(&k); err != nil {
		return nil, fmt.Errorf("create key: %w", err)
	}
	if in.Key != "" {
		k.Once = digest(16, caller.Name, in.Key)
	}
	k, secret, err := s.cfg.Keys.Create(k)
	if errors.Is(err, keystore.ErrRepeated) {
		err = reason.WithHint(fmt.Errorf("create key: %w: it made key %s", sandbox.ErrIdempotencyKey, k.ID),
			"what proves that key was told then, and is not kept: if it is lost, remove the key and make another")
		return nil, &detailedError{err, map[string]any{"key_id": k.ID}}
	}
	if err != nil {
		return nil, err
	}
	s.noteID(ctx, k.ID)
	return &output[rest.NewKey]{Status: http.StatusCreated, Body: rest.NewKey{Key: keyOf(&k), Secret: secret}}, nil
}

// mayGrant refuses a key that may do what the caller may not, or that outlives
// the caller's own.
func (c *Caller) mayGrant(k *keystore.Key) error {
	beyond := func(v string) bool { return !slices.Contains(c.Verbs, Verb(v)) }
	if len(c.Verbs) > 0 && (len(k.Verbs) == 0 || slices.ContainsFunc(k.Verbs, beyond)) {
		return reason.WithHint(fmt.Errorf("%w: yours is for %v", rest.ErrForbidden, c.Verbs), "give the new key some of these verbs, and no others")
	}
	if !c.Expires.IsZero() && (k.Expires.IsZero() || k.Expires.After(c.Expires)) {
		return reason.WithHint(fmt.Errorf("%w: yours ends at %s", rest.ErrForbidden, c.Expires.Format(time.RFC3339)), "let the new key end by then")
	}
	return nil
}

type listKeysInput struct{ Paging }

func (s *Server) listKeys(ctx context.Context, in *listKeysInput) (*output[rest.KeyList], error) {
	if err := s.allow(ctx, VerbList, Object{Kind: KindKey}); err != nil {
		return nil, err
	}
	made := func(k *keystore.Key) cursor { return cursor{k.Created.UnixNano(), k.ID} }
	items, next, err := page(in.Paging, inOrder(s.cfg.Keys.List(), made), made, always(keyOf))
	if err != nil {
		return nil, err
	}
	return ok(rest.KeyList{Items: items, NextToken: next}), nil
}

type keyPath struct {
	ID string `path:"id"`
}

func (s *Server) removeKey(ctx context.Context, in *keyPath) (*nothing, error) {
	if err := s.allow(ctx, VerbRemove, Object{Kind: KindKey, ID: in.ID}); err != nil {
		return nil, err
	}
	had, err := s.cfg.Keys.Remove(in.ID)
	if err == nil && !had {
		err = fmt.Errorf("key %.64q: %w", in.ID, rest.ErrKeyNotFound)
	}
	if err != nil {
		return nil, err
	}
	s.rates.forget(in.ID)
	return nil, nil
}

func keyOf(k *keystore.Key) rest.Key {
	r := rest.Key{
		ID: k.ID, Name: k.Name, Owner: k.Owner, Admin: k.Admin, Verbs: append([]string{}, k.Verbs...),
		Expired: k.Expired(), CreatedAt: k.Created,
	}
	if !k.Expires.IsZero() {
		r.ExpiresAt = &k.Expires
	}
	return r
}

// token returns the key that a request carries. One that carries something
// else in a key's place carries a wrong one.
func token(r *http.Request) (key string, given bool) {
	auth, plain := r.Header.Values("Authorization"), r.Header.Values(rest.HeaderAPIKey)
	switch {
	case len(auth)+len(plain) == 0:
		return "", false
	case len(auth)+len(plain) > 1:
		return "", true // which of them counts is not for us to guess
	case len(plain) == 1:
		return plain[0], true
	}
	scheme, value, _ := strings.Cut(auth[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true
	}
	return strings.TrimSpace(value), true
}

// keyCaller returns the caller that a key stands for.
func (s *Server) keyCaller(key string) (Caller, error) {
	k, ended, ok := s.cfg.Keys.Find(key)
	if !ok {
		return Caller{}, reason.WithHint(fmt.Errorf("%w: unknown key", rest.ErrUnauthenticated),
			"it was removed, has expired or never existed; an admin makes one with: taibox key create")
	}
	c := Caller{Name: k.ID, Key: true, Admin: k.Admin, Owner: k.Owner, Expires: k.Expires, ended: ended}
	for _, v := range k.Verbs {
		c.Verbs = append(c.Verbs, Verb(v))
	}
	return c, nil
}

// while returns a context that ends with the caller's key.
func (c *Caller) while(ctx context.Context) (context.Context, func()) {
	if c.ended == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-c.ended:
			cancel(fmt.Errorf("%w: the key has ended", rest.ErrUnauthenticated))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
