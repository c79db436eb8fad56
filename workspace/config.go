package workspace

import (
	"fmt"
	"log/slog"

	"github.com/taibox/taibox/tai/registry"
)

// Config says what a manager is to be.
type Config struct {
	Registry *registry.Registry // default registry.Global()
	Logger   *slog.Logger       // default none

	// MaxPerOwner is how many workspaces an owner may have; 0 = no limit. One
	// that is away with its node counts too.
	MaxPerOwner int
}

// DefaultConfig returns the configuration of a manager of this process's
// nodes.
func DefaultConfig() Config { return Config{Registry: registry.Global()} }

// Validate reports all problems, joined.
func (c *Config) Validate() error {
	if c.MaxPerOwner < 0 {
		return fmt.Errorf("%w: at most %d workspaces of an owner: it cannot be negative", ErrInvalid, c.MaxPerOwner)
	}
	return nil
}
