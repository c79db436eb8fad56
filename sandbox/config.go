package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/taibox/taibox/tai/registry"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
	"github.com/taibox/taibox/workspace"
)

// DefaultInstance is the instance of a manager that was not given one.
const DefaultInstance = "default"

// Config says what a manager is to be.
type Config struct {
	// Instance marks the manager's boxes, so that several managers on one node
	// leave each other's alone. A manager finds its boxes again by it.
	Instance string

	MaxTotal    int // boxes altogether; 0 = no limit
	MaxPerOwner int // boxes of one owner, the empty one too; 0 = no limit
	MaxPerImage int // boxes of one image, as it was named; 0 = no limit
	MaxPerNode  int // boxes on one node; 0 = no limit

	// OrphanAfter is after how long a running box of another instance is
	// stopped: no manager of that name was there. Only for a manager that has
	// its nodes to itself. 0 = such boxes are left alone.
	OrphanAfter time.Duration

	// Workspaces knows the workspaces that boxes can mount. A program that
	// makes some shares its manager. Default a new one.
	Workspaces *workspace.Manager

	Registry *registry.Registry // default registry.Global()
	Logger   *slog.Logger       // default none
}

// DefaultConfig returns the configuration of [Init]: [DefaultInstance], no
// limits.
func DefaultConfig() Config { return Config{Instance: DefaultInstance} }

// Validate reports all problems, joined.
func (c *Config) Validate() error {
	var errs []error
	if err := taisandbox.ValidateID(c.Instance); err != nil {
		errs = append(errs, fmt.Errorf("instance: %w", err))
	}
	if min(c.MaxTotal, c.MaxPerOwner, c.MaxPerImage, c.MaxPerNode) < 0 {
		errs = append(errs, fmt.Errorf("%w: limits of %d boxes, %d an owner, %d an image, %d a node: they cannot be negative",
			ErrInvalidSpec, c.MaxTotal, c.MaxPerOwner, c.MaxPerImage, c.MaxPerNode))
	}
	if c.OrphanAfter < 0 {
		errs = append(errs, fmt.Errorf("%w: boxes cannot be orphans after %v", ErrInvalidSpec, c.OrphanAfter))
	}
	return errors.Join(errs...)
}
