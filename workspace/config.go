package workspace

import (
	"log/slog"

	"github.com/taibox/taibox/tai/registry"
)

// Config says what a manager is to be.
type Config struct {
	Registry *registry.Registry // default registry.Global()
	Logger   *slog.Logger       // default none
}

// DefaultConfig returns the configuration of a manager of this process's
// nodes.
func DefaultConfig() Config { return Config{Registry: registry.Global()} }

// Validate reports all problems, joined. As yet there is nothing to get wrong.
func (c *Config) Validate() error { return nil }
