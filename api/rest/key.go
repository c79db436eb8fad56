package rest

import "time"

// Key is an API key. What proves it is told once, by [NewKey].
type Key struct {
	ID        string     `json:"id"`
	Name      string     `json:"name" doc:"Free text"`
	Owner     string     `json:"owner" doc:"Whose boxes the key is for; empty with admin"`
	Admin     bool       `json:"admin" doc:"May do everything"`
	Verbs     []string   `json:"verbs" doc:"What the key may do; empty: all that its owner may"`
	Expired   bool       `json:"expired"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at" doc:"Null: never"`
}

// NewKey is a key that was just made.
type NewKey struct {
	Key
	Secret string `json:"key" doc:"What the caller sends as Authorization: Bearer or X-API-Key. It is not kept and cannot be asked for again"`
}

// CreateKey asks for a key, of either an owner or an admin. It is to do no more
// than the caller may, and to end no later than the caller's own.
type CreateKey struct {
	Owner       string   `json:"owner,omitempty" maxLength:"256"`
	Admin       bool     `json:"admin,omitempty"`
	Name        string   `json:"name,omitempty" maxLength:"256"`
	Verbs       []string `json:"verbs,omitempty" doc:"list, get, create, start, stop, remove, exec; none: all"`
	ExpiresInMs int64    `json:"expires_in_ms,omitempty" doc:"From now; 0: never"`

	// IdempotencyKey travels as a header: a request that is repeated with the
	// same key makes no second API key.
	IdempotencyKey string `json:"-"`
}

// KeyList is one page of keys, oldest first.
type KeyList struct {
	Items     []Key  `json:"items"`
	NextToken string `json:"next_token,omitempty" doc:"Ask with it for the next page"`
}
