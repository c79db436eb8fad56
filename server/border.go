package server

import (
	"context"
	"fmt"
	"slices"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/sandbox"
	"github.com/taibox/taibox/workspace"
)

// Border is the [Authorizer] for admins, who may do everything, and owners,
// each of whom has boxes and workspaces of its own and knows of no others. What it does not
// know it refuses to all but admins.
type Border struct{}

// Authorize implements [Authorizer].
func (Border) Authorize(_ context.Context, c Caller, verb Verb, o Object) error {
	if o.Kind == KindServer && verb == VerbGet {
		return nil // everybody may know who answers
	}
	if !c.Admin {
		if err := within(c.Owner, verb, o); err != nil {
			return err
		}
	}
	if len(c.Verbs) > 0 && !slices.Contains(c.Verbs, verb) {
		return fmt.Errorf("%s %s: %w: the key is for %v", verb, o.Kind, rest.ErrForbidden, c.Verbs)
	}
	return nil
}

// within is the border of an owner.
func within(owner string, verb Verb, o Object) error {
	denied := fmt.Errorf("%s %s: %w", verb, o.Kind, rest.ErrForbidden)
	switch {
	case owner == "":
		return denied
	case o.Kind == KindImage && (verb == VerbGet || verb == VerbList):
		return nil
	case o.Kind != KindBox && o.Kind != KindWorkspace:
		return denied
	case verb == VerbList && o.ID == "": // each one that is found is asked about
		return nil
	case verb == VerbCreate && o.Owner != owner:
		return fmt.Errorf("create %s for owner %q: %w", o.Kind, o.Owner, rest.ErrForbidden)
	case o.Owner != owner && o.Kind == KindWorkspace:
		return fmt.Errorf("workspace %s: %w", o.ID, workspace.ErrNotFound)
	case o.Owner != owner:
		return fmt.Errorf("box %s: %w", o.ID, sandbox.ErrNotFound)
	}
	return nil
}
