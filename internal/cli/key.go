package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/taibox/taibox/api/rest"
	"github.com/taibox/taibox/internal/client"
	taisandbox "github.com/taibox/taibox/tai/sandbox"
)

func newKey(env *Env) *cobra.Command {
	cmd := group("key", "Look after the keys that let others in")
	cmd.GroupID = groupOther
	cmd.AddCommand(newKeyCreate(env), newKeyLs(env), newKeyRm(env))
	return cmd
}

func newKeyCreate(env *Env) *cobra.Command {
	var out format
	var req rest.CreateKey
	var expires string
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make an API key and print it, this once",
		Long: `Make an API key and print it. It is shown this once: the server keeps only a
hash of it. A key of an owner makes and sees boxes of that owner and knows of no
others; one of an admin may do everything.`,
		Example: `  taibox key create --owner alice --expires 90d
  taibox key create --admin --name monitor --verbs list,get`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if req.Admin == (req.Owner != "") {
				return usage("give either --owner or --admin")
			}
			ttl, err := parseDays(expires)
			if err != nil {
				return err
			}
			req.ExpiresInMs = ttl.Milliseconds()
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			req.IdempotencyKey = taisandbox.NewID("cli-")
			k, err := c.CreateKey(cmd.Context(), req)
			if err != nil {
				return err
			}
			if out.json() {
				return printJSON(env.Out, k)
			}
			if err := printLine(env.Out, k.Secret); err != nil {
				return err
			}
			env.note("this is key %s of %s; it is not shown again", k.ID, holderOf(&k.Key))
			return nil
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "for the boxes of this `owner`")
	cmd.Flags().BoolVar(&req.Admin, "admin", false, "for everything")
	cmd.Flags().StringVar(&req.Name, "name", "", "a `text` that says what it is for")
	cmd.Flags().StringVar(&expires, "expires", "", "`when` it ends, from now, e.g. 12h or 90d (default never)")
	cmd.Flags().StringSliceVar(&req.Verbs, "verbs", nil, "only for these `verbs`: list, get, create, start, stop, remove, exec")
	out.addOutput(cmd)
	return cmd
}

// parseDays reads a time to come, with days as a unit too. "" is none.
func parseDays(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	const day = 24 * time.Hour
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int64
		if n, err = strconv.ParseInt(days, 10, 32); n > 36500 {
			return 0, usage("--expires %s: at most 36500d are possible", s)
		}
		d = time.Duration(n) * day
	}
	if err != nil || d < time.Millisecond {
		return 0, usage("--expires %q: a time like 12h or 90d is expected", s)
	}
	return d, nil
}

func newKeyLs(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "ls [flags]",
		Short: "List API keys",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := env.connect(cmd)
			if err != nil {
				return err
			}
			all, err := c.ListKeys(cmd.Context())
			if err != nil {
				return err
			}
			now := time.Now()
			return printItems(env, out, all, []string{"ID", "FOR", "NAME", "VERBS", "AGE", "EXPIRES"}, func(k *rest.Key) []string {
				return []string{k.ID, holderOf(k), k.Name, strings.Join(k.Verbs, ","), formatAge(k.CreatedAt, now), formatEnd(k)}
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}

// holderOf says whom a key is for.
func holderOf(k *rest.Key) string {
	if k.Admin {
		return "admin"
	}
	return fmt.Sprintf("owner %s", k.Owner)
}

func formatEnd(k *rest.Key) string {
	switch {
	case k.ExpiresAt == nil:
		return "never"
	case k.Expired:
		return "expired"
	}
	return k.ExpiresAt.Local().Format("2006-01-02 15:04")
}

func newKeyRm(env *Env) *cobra.Command {
	var out format
	cmd := &cobra.Command{
		Use:   "rm [flags] KEY...",
		Short: "Remove API keys, which end at once",
		Args:  wantArgs("KEY..."),
		RunE: func(cmd *cobra.Command, ids []string) error {
			return env.each(cmd, &out, ids, func(ctx context.Context, c *client.Client, id string) error {
				return c.RemoveKey(ctx, id)
			})
		},
	}
	out.addOutput(cmd)
	out.addQuiet(cmd, "IDs")
	return cmd
}
