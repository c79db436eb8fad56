// Package cli is the command line: the commands of taibox, as thin clients of
// the server's HTTP API.
//
// # Model
//
// [Main] runs one command line against an [Env], which is all that a command
// may touch outside its arguments. Nearly every command talks to the server on
// its socket; where none answers there, the command starts one in the
// background (see background.go) and says so. What a server is made of is not
// linked here: [Env.Serve] brings it, and where it is nil `serve` becomes the
// program taibox-server, so that the commands start fast.
//
// # Output
//
// Data goes to [Env.Out]; notes, progress and errors go to [Env.Err]. Tables
// are for people. With -o json the output is stable: an array for lists, an
// object else, snake_case names, RFC 3339 times, sizes in bytes, durations in
// milliseconds. With -q it is IDs only.
//
// # Errors
//
// One table (exit.go) makes the exit code of an error. For run, exec, attach
// and wait the code is the command's own, and 125 for every failure of ours;
// for all other verbs it is 0 ok, 1 error, 2 usage or an invalid value, 3 not
// found, 4 conflict, 5 denied, 6 unavailable. An interrupted command ends with
// 130. A failure is one line on stderr, "taibox: …", which names the object
// and the cause; what to do about it follows on the next line, "hint: …".
package cli
