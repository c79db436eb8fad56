package keystore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/internal/keystore"
)

func open(t *testing.T, path string) *keystore.Store {
	t.Helper()
	s, err := keystore.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	s := open(t, path)
	k, token, err := s.Create(keystore.Key{Owner: "u1", Name: "n", Verbs: []string{"get"}})
	if err != nil || !strings.HasPrefix(token, "tbx_") || len(token) < 4+16+1+52 || !strings.HasPrefix(k.ID, "k-") {
		t.Fatalf("%+v %d %v", k, len(token), err)
	}
	a, other, err := s.Create(keystore.Key{Admin: true})
	if err != nil || other == token {
		t.Fatal(err)
	}

	// Not the secret, nor a part of it, is on disk.
	data, err := os.ReadFile(path)
	_, secret, _ := strings.Cut(strings.TrimPrefix(token, "tbx_"), "_")
	if err != nil || strings.Contains(string(data), secret) {
		t.Errorf("the file holds the secret, or: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}

	for range 2 { // the second time from disk
		got, ended, ok := s.Find(token)
		if diff := cmp.Diff(k, got); !ok || diff != "" {
			t.Errorf("find: %v %s", ok, diff)
		}
		if diff := cmp.Diff([]keystore.Key{k, a}, s.List()); diff != "" {
			t.Error(diff)
		}
		select {
		case <-ended:
			t.Error("ended")
		default:
		}
		for _, wrong := range []string{"", "tbx_", "x", token + "a", token[:len(token)-1], "k" + token, strings.ToUpper(token), token[:21] + other[21:], "tbx_" + strings.TrimPrefix(k.ID, "k-") + "_"} {
			if _, _, ok := s.Find(wrong); ok {
				t.Errorf("%q counts", wrong)
			}
		}
		s = open(t, path)
	}

	_, ended, _ := s.Find(token)
	if had, err := s.Remove(k.ID); !had || err != nil {
		t.Fatal(had, err)
	}
	<-ended
	if _, _, ok := s.Find(token); ok {
		t.Error("a removed key counts")
	}
	if had, err := s.Remove(k.ID); had || err != nil {
		t.Error(had, err)
	}
	if _, _, ok := open(t, path).Find(token); ok {
		t.Error("a removed key counts after a restart")
	}
	if _, _, ok := s.Find(other); !ok {
		t.Error("the other key went, too")
	}
	left, err := filepath.Glob(path + "*")
	if err != nil || len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keystore.New()
		defer s.Close()
		_, token, err := s.Create(keystore.Key{Owner: "u1", Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		_, ended, ok := s.Find(token)
		if !ok {
			t.Fatal("a new key does not count")
		}
		time.Sleep(time.Hour)
		<-ended
		if _, _, ok := s.Find(token); ok {
			t.Error("an expired key counts")
		}
		if l := s.List(); len(l) != 1 || !l[0].Expired() {
			t.Errorf("%+v", l)
		}
	})
}

// What cannot be written does not count, and what cannot be removed still does.
func TestDiskFails(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, filepath.Join(dir, "keys"))
	k, token, err := s.Create(keystore.Key{Admin: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+"2"); err != nil {
		t.Fatal(err)
	}
	if _, token, err := s.Create(keystore.Key{Admin: true}); !errors.Is(err, os.ErrNotExist) || token != "" || len(s.List()) != 1 {
		t.Errorf("create: %v", err)
	}
	if _, err := s.Remove(k.ID); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remove: %v", err)
	}
	if _, _, ok := s.Find(token); !ok {
		t.Error("the key is gone here, but not on disk")
	}
}

func TestDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	for _, text := range []string{
		"", "{", `{"version":2,"keys":[]}`, `{"version":1,"keys":[{"id":"k-1","admin":true,"sha256":"00"}]}`,
		`{"version":1,"keys":[{"id":"k-1","admin":true,"only_from":"10.0.0.0/8","sha256":"` + strings.Repeat("0", 64) + `"}]}`,
		`{"version":1,"keys":[{"id":"k-1","sha256":"` + strings.Repeat("0", 64) + `"}]}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := keystore.Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestOnce: a request makes one key, and is known again after a restart. The
// key's removal forgets it.
func TestOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	s := open(t, path)
	k, _, err := s.Create(keystore.Key{Owner: "u1", Once: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from disk
		got, token, err := s.Create(keystore.Key{Admin: true, Once: "r1"})
		if !errors.Is(err, keystore.ErrRepeated) || token != "" || got.ID != k.ID {
			t.Errorf("%+v %q %v", got, token, err)
		}
		if n := len(s.List()); n != 1 {
			t.Errorf("%d keys", n)
		}
		s = open(t, path)
	}
	for _, once := range []string{"", "", "r2"} {
		if _, _, err := s.Create(keystore.Key{Owner: "u1", Once: once}); err != nil {
			t.Errorf("%q: %v", once, err)
		}
	}
	if _, err := s.Remove(k.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Create(keystore.Key{Owner: "u1", Once: "r1"}); err != nil {
		t.Errorf("after its removal: %v", err)
	}
}
