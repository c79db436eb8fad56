package bench

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// CLI measures a command line: each call is a process.
type CLI struct {
	// Program is the command line's, with what comes before each verb.
	Program []string
	// The arguments of each call. ID stands for the box's.
	PrepareArgs, RunArgs, CreateArgs, ExecArgs, RemoveArgs []string
}

// ID stands for the ID of a box in the arguments of a [CLI].
const ID = "{id}"

// TaiboxCLI returns our own command line, with flags before each verb.
func TaiboxCLI(program string, flags ...string) *CLI {
	return &CLI{
		Program:     append([]string{program}, flags...),
		PrepareArgs: []string{"image", "load", "-q"},
		RunArgs:     []string{"run", Image, "--", "/bin/true"},
		CreateArgs:  []string{"create", "--id", ID, Image},
		ExecArgs:    []string{"exec", ID, "--", "/bin/true"},
		RemoveArgs:  []string{"rm", "-f", ID},
	}
}

// DockerCLI returns the docker command.
func DockerCLI() *CLI {
	return &CLI{
		Program:     []string{"docker"},
		PrepareArgs: []string{"load", "-q"},
		RunArgs:     []string{"run", "--rm", "--name", ID, Image, "/bin/true"},
		CreateArgs:  []string{"run", "-d", "--name", ID, Image, "/bin/sleep", "2147483647"},
		ExecArgs:    []string{"exec", ID, "/bin/true"},
		RemoveArgs:  []string{"rm", "-f", ID},
	}
}

// Prepare implements [Peer].
func (c *CLI) Prepare(ctx context.Context, archive []byte) error {
	return c.call(ctx, archive, c.PrepareArgs, "")
}

// Run implements [Peer].
func (c *CLI) Run(ctx context.Context, id string) (bool, error) {
	return false, c.call(ctx, nil, c.RunArgs, id)
}

// Create implements [Peer].
func (c *CLI) Create(ctx context.Context, id string) error {
	return c.call(ctx, nil, c.CreateArgs, id)
}

// Exec implements [Peer].
func (c *CLI) Exec(ctx context.Context, id string) error { return c.call(ctx, nil, c.ExecArgs, id) }

// Remove implements [Peer].
func (c *CLI) Remove(ctx context.Context, id string) error { return c.call(ctx, nil, c.RemoveArgs, id) }

func (c *CLI) call(ctx context.Context, stdin []byte, args []string, id string) error {
	line := append([]string{}, c.Program...)
	for _, a := range args {
		if a == ID {
			a = id
		}
		line = append(line, a)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	if stdin != nil {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(line, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
