// Package sandboxtest is the contract of tai/sandbox, as tests. Passing it is
// the definition of being a driver.
//
// # How to call it
//
// A driver's whole test is a [Subject], which opens the driver on a directory,
// and the options that its machine needs:
//
//	func TestSandbox(t *testing.T) {
//		sandboxtest.Run(t, func(t *testing.T, dir string) sandboxtest.Driver {
//			d, err := mydriver.Open(t.Context(), dir)
//			if err != nil {
//				t.Fatal(err)
//			}
//			return d
//		}, sandboxtest.WithResidue(mounts))
//	}
//
// A subject is called many times. Opened twice on one directory it must find
// the same boxes. Each group of tests has a directory of its own.
//
// # Options
//
// The suite never asks which driver it tests. What drivers can do is said by
// their [sandbox.Features], and what is absent must fail with
// [sandbox.ErrUnsupported]: that is tested too. The rest is said by options:
// the image to make boxes of ([WithImage], [WithPrepare]), the commands that
// it has ([WithCommands]; the default needs a shell and the usual tools, as
// hostfs and busybox have them), how slow the machine is ([WithPatience]),
// whether to leave out what takes long ([Quick]), how to take an instance off
// the machine ([WithWipe]), and what must be as before when a group is done
// ([WithResidue]).
//
// # How to add a case
//
// Put it into the group's file, as a function that takes an *env, and into the
// list at the head of that file. A case that keeps one of the numbered failures
// from happening begins with its number (A01, G07). Cases of one group may run
// at the same time on one machine, and share its driver: make boxes with
// env.create or env.started, which remove them in the end, and never count what
// others may have made. What a command does is a field of [Commands], never a
// literal. A bug that got past the suite becomes a case in a file issues.go,
// with a link.
package sandboxtest
