package keystore_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/taibox/taibox/internal/keystore"
)

// TestG05StoreOfVersion1: keys of the first layout let in after an upgrade, and
// are restricted as they were. A change of layout gets a fixture of its own and
// leaves this one alone.
func TestG05StoreOfVersion1(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	at := func(s string) time.Time {
		when, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	ann := keystore.Key{
		ID: "k-cdc6fa1626ae6fd6", Name: "ci", Owner: "ann", Verbs: []string{"list", "get"},
		Created: at("2026-11-30T11:01:18.590399011Z"), Expires: at("2126-11-27T11:01:18.590391931Z"), Once: "8552adb405027dc0e560bc5f1a68137b",
	}
	admin := keystore.Key{ID: "k-4d5a91bda35dbde4", Admin: true, Created: at("2026-11-30T11:01:18.598344098Z"), Once: "eb2d861180a5803679eb7f3a057ac664"}
	secrets := map[string]keystore.Key{
		"tbx_cdc6fa1626ae6fd6_mebzb67xixmfy3j5rjp2p6rnycqky3m7dx3lfqjmdejc4hr5lbxa": ann,
		"tbx_4d5a91bda35dbde4_p2mmrxctbdsxsf7fcmqplbicn6aaisijcw2wol2zfm3u4rtwhsza": admin,
	}

	s := open(t, path)
	if diff := cmp.Diff([]keystore.Key{ann, admin}, s.List()); diff != "" {
		t.Error(diff)
	}
	// A change writes all of them again.
	other, _, err := s.Create(keystore.Key{Owner: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	if len(s.List()) != 3 {
		t.Errorf("after a change: %v", s.List())
	}
	if had, err := s.Remove(other.ID); !had || err != nil {
		t.Error(had, err)
	}
	for secret, want := range secrets {
		got, _, ok := s.Find(secret)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("key %s: %v %s", want.ID, ok, diff)
		}
	}
}
