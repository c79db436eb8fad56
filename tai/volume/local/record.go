package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/taibox/taibox/internal/durable"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/tai/volume"
)

// saveRecord writes the record of a workspace.
func saveRecord(dir string, rec *record) error {
	return durable.WriteJSON(filepath.Join(dir, recordName), rec)
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
