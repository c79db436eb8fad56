// Package boxcopy copies files between this machine and a box, by the rules of
// docker cp.
//
// # Rules
//
// A source is copied into a destination that is a directory, and else takes
// its place. Of a source that ends in "/." only what is in it is copied.
// Parents of the destination must be there.
//
// # Trust
//
// A box is hostile. What comes from one is made below the destination alone,
// under the name that was asked for; nothing is written through a link, and
// links that could lead out of what was copied are left out.
package boxcopy
