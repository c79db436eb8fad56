package image

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/taibox/taibox/tai/sandbox"
)

// minDigestPrefix is how many hexadecimal digits name an image by digest.
const minDigestPrefix = 12

// parseName turns what people write into a full name: "bb" into
// "docker.io/library/bb:latest".
func parseName(s string) (reference.Named, error) {
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w: %w", s, sandbox.ErrImageRef, err)
	}
	return reference.TagNameOnly(named), nil
}

// newName checks a name that an image is to get.
func newName(s string) (string, error) {
	named, err := parseName(s)
	if err != nil {
		return "", err
	}
	if _, ok := named.(reference.Digested); ok {
		return "", fmt.Errorf("image %q: %w: a name with a tag, not a digest, is expected", s, sandbox.ErrImageRef)
	}
	if isHostFS(named) {
		return "", errHostFS("load")
	}
	return named.String(), nil
}

func isHostFS(n reference.Named) bool { return reference.FamiliarName(n) == sandbox.HostFS }

func errHostFS(verb string) error {
	return fmt.Errorf("%s image %s: %w: the name belongs to the built-in image", verb, sandbox.HostFS, sandbox.ErrImageRef)
}

// displayName is the name people know.
func displayName(name string) string {
	if _, err := digest.Parse(name); err == nil {
		return name
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return reference.FamiliarString(named)
}

// digestPrefix returns what ref says about a digest, if it is one or the
// beginning of one.
func digestPrefix(ref string) (string, bool) {
	hex := strings.TrimPrefix(ref, "sha256:")
	if len(hex) < minDigestPrefix || len(hex) > 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return "", false
	}
	return "sha256:" + hex, true
}
