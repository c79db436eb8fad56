// Package durable replaces small files so that, whatever happens, either the
// old or the new contents are there in full.
package durable

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Write replaces a file, with mode 0600. When it returns the new contents are
// on the disk.
func Write(path string, data []byte) error {
	if err := replace(path, data, (*os.File).Sync); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteJSON is [Write] with v as JSON.
func WriteJSON(path string, v any) error {
	data, err := encode(path, v)
	if err != nil {
		return err
	}
	return Write(path, data)
}

// NoteJSON is [WriteJSON] without waiting for the disk: what it writes may be
// lost with the machine's power, but not with this process.
func NoteJSON(path string, v any) error {
	data, err := encode(path, v)
	if err != nil {
		return err
	}
	return replace(path, data, func(*os.File) error { return nil })
}

func encode(path string, v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", path, err)
	}
	return data, nil
}

// replace writes a temporary file beside path and renames it.
func replace(path string, data []byte, settle func(*os.File) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return err
	}
	if err := settle(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return tmp.Close()
}

// Sweep removes what replacements that were cut short have left in a directory.
// Nobody may be replacing anything there. An absent directory has nothing.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Type().IsRegular() && temporary(e.Name()) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// temporary reports a name that replace gives: a dot, the file's name, a dot
// and a number.
func temporary(name string) bool {
	i := strings.LastIndexByte(name, '.')
	if i < 2 || name[0] != '.' {
		return false
	}
	_, err := strconv.ParseUint(name[i+1:], 10, 64)
	return err == nil
}

// ReadJSON reads what [WriteJSON] wrote.
func ReadJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
