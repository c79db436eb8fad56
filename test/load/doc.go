// Package load puts a machine under load: clients make, use and remove boxes
// through the real programs while the server is killed again and again and its
// disk fills up. Every answer is checked by its value, and in the end nothing
// may be left over, unaccounted for, or changed beside the product.
package load
