package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func lines(t *testing.T, path string) (entries []Entry) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var e Entry
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", s.Text(), err)
		}
		entries = append(entries, e)
	}
	return entries
}

func TestLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for i := range 2 { // the second time it is there
		l, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Write(&Entry{RequestID: fmt.Sprint(i), Verb: "exec", Status: 200, Result: "ok"}); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil || l.Close() != nil {
			t.Error(err)
		}
		if l.Write(&Entry{}) == nil {
			t.Error("written after Close")
		}
	}
	if got := lines(t, path); len(got) != 2 || got[0].RequestID != "0" || got[1].RequestID != "1" {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// No entry is lost or cut by a rotation, until there are too many files.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.maxSize = 4000
	const writers, each = 4, 30
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range each {
				if err := l.Write(&Entry{RequestID: fmt.Sprintf("%d-%d", i, j)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v %v", files, err)
	}
	seen := map[string]bool{}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.Size() > l.maxSize || info.Mode() != 0o600 {
			t.Errorf("%s: %d bytes, %v, %v", f, info.Size(), info.Mode(), err)
		}
		for _, e := range lines(t, f) {
			seen[e.RequestID] = true
		}
	}
	if len(seen) != writers*each {
		t.Errorf("%d of %d entries are kept", len(seen), writers*each)
	}
	for range 2 * (Kept + 1) * 40 {
		if err := l.Write(&Entry{}); err != nil {
			t.Fatal(err)
		}
	}
	if files, _ := filepath.Glob(path + "*"); len(files) != Kept+1 {
		t.Errorf("kept: %v", files)
	}
}
