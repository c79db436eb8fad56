package nofollow

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A directory with more names than there is room for is refused.
func TestTooManyNames(t *testing.T) {
	dir := t.TempDir()
	for i := range 1500 { // more than one call of the kernel returns
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%0100d", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for most, want := range map[int]error{100: ErrTooMany, 1499: ErrTooMany, 1500: nil} {
		if names, err := readNames(int(f.Fd()), most); !errors.Is(err, want) || err == nil && len(names) != 1500 {
			t.Errorf("%d: %d names, %v", most, len(names), err)
		}
	}
	if names, err := ReadNames(f); len(names) != 1500 {
		t.Errorf("%d names, %v", len(names), err)
	}
}
