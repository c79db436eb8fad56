package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// saveRecord writes the record of a workspace.
func saveRecord(dir string, rec *record) error {
	return writeJSON(filepath.Join(dir, recordName), rec)
}

// writeJSON replaces a file of ours: whole and on the disk when it returns.
func writeJSON(name string, v any) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".json-*")
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
	if err := tmp.Sync(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}

// readJSON reads what writeJSON wrote.
func readJSON(name string, v any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// validate checks what a workspace may be made with.
func validate(id string, meta json.RawMessage, q volume.Quota) error {
	if err := taisandbox.ValidateID(id); err != nil {
		return fmt.Errorf("%w: %w", volume.ErrInvalid, err)
	}
	return errors.Join(validMeta(meta), validQuota(q))
}

func validMeta(meta json.RawMessage) error {
	switch {
	case len(meta) > maxMeta:
		return fmt.Errorf("%w: more than %d bytes of metadata", volume.ErrInvalid, maxMeta)
	case !json.Valid(meta) || !bytes.HasPrefix(bytes.TrimSpace(meta), []byte("{")):
		return fmt.Errorf("%w: metadata must be a JSON object", volume.ErrInvalid)
	}
	return nil
}

// compact copies valid metadata in the form that it has on disk.
func compact(meta json.RawMessage) json.RawMessage {
	var b bytes.Buffer
	if err := json.Compact(&b, meta); err != nil {
		return slices.Clone(meta)
	}
	return b.Bytes()
}

// minQuota is the smallest quota: a file system has some size of its own.
const minQuota = 1 << 20

func validQuota(q volume.Quota) error {
	switch {
	case q.Bytes < 0 || q.Files < 0:
		return fmt.Errorf("%w: a quota cannot be negative", volume.ErrInvalid)
	case q.Bytes > 0 && q.Bytes < minQuota:
		return fmt.Errorf("%w: a quota of %d bytes; at least %d are possible", volume.ErrInvalid, q.Bytes, minQuota)
	}
	return nil
}
