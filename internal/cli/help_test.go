package cli

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// commands calls f with each visible command.
func commands(cmd *cobra.Command, f func(*cobra.Command)) {
	if cmd.Hidden {
		return
	}
	f(cmd)
	for _, c := range cmd.Commands() {
		commands(c, f)
	}
}

// variables is an environment that has just these.
func variables(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func runMain(args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	env := Env{In: strings.NewReader(""), Out: &out, Err: &errs, LookupEnv: variables(nil), Version: "1.2.3"}
	code = Main(context.Background(), env, args)
	return out.String(), errs.String(), code
}

func TestHelp(t *testing.T) {
	dir := filepath.Join("testdata", "help")
	golden := map[string]bool{}
	commands(newRoot(&Env{}), func(cmd *cobra.Command) {
		path := strings.Fields(cmd.CommandPath())
		name := filepath.Join(dir, strings.Join(path, "_")+".txt")
		golden[filepath.Base(name)] = true
		t.Run(strings.Join(path, "_"), func(t *testing.T) {
			got, errs, code := runMain(append(path[1:], "--help")...)
			if code != exitOK || errs != "" {
				t.Fatalf("code %d, stderr %q", code, errs)
			}
			for i, line := range strings.Split(got, "\n") {
				if n := len([]rune(line)); n > 110 {
					t.Errorf("line %d has %d columns: %s", i+1, n, line)
				}
			}
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("%s (-update rewrites it):\n%s", name, d)
			}
		})
	})
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !golden[f.Name()] {
			t.Errorf("%s is of no command", f.Name())
		}
	}
}

// TestOutputFlags: JSON is to be had everywhere, but where the output is data as
// it is, or there is none.
func TestOutputFlags(t *testing.T) {
	without := map[string]bool{
		"attach": true, "logs": true, "workspace cat": true, "image save": true,
		"serve": true, "completion": true, "help": true,
	}
	commands(newRoot(&Env{}), func(cmd *cobra.Command) {
		if !cmd.Runnable() || cmd.HasSubCommands() {
			return
		}
		verb := verbOf(cmd)
		output := cmd.Flags().Lookup("output")
		if has := output != nil && strings.HasSuffix(output.Usage, "table or json"); has == without[verb] {
			t.Errorf("taibox %s: -o json: %v", verb, has)
		}
		if quiet := cmd.Flags().ShorthandLookup("q"); quiet != nil && quiet.Name != "quiet" {
			t.Errorf("taibox %s: -q is --%s", verb, quiet.Name)
		}
	})
}

// TestEveryVerb holds the list of CONVENTIONS.md against the commands.
func TestEveryVerb(t *testing.T) {
	have := map[string]bool{}
	commands(newRoot(&Env{}), func(cmd *cobra.Command) { have[verbOf(cmd)] = true })
	for verb := range strings.SplitSeq("run,create,start,stop,rm,ls,inspect,wait,exec,ps,attach,kill,logs,stats,port,image ls,image load,image rm,image inspect,serve,doctor,bench,config dump,version,completion", ",") {
		if !have[verb] {
			t.Errorf("there is no %q", verb)
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"bogus", 2, `no command "bogus"`},
		{"lss", 2, "did you mean ls"},
		{"image bogus", 2, `no command "bogus"`},
		{"--bogus", 2, "unknown flag: --bogus"},
		{"ls --bogus", 2, "unknown flag: --bogus"},
		{"ls extra", 2, `"extra"`},
		{"ls -o xml", 2, `output "xml"`},
		{"rm", 2, "BOX is missing"},
		{"inspect a b", 2, `"b" is one argument too many`},
		{"create --no-such-flag hostfs", 2, "unknown flag"},
		{"create --memory -5m hostfs", 2, `size "-5m"`},
		{"create --memory 99999999t hostfs", 2, "too large"},
		{"create --cpus NaN hostfs", 2, `cpus "NaN"`},
		{"create --pids -1 hostfs", 2, `--pids: number "-1"`},
		{"create --idle-timeout -1s hostfs", 2, `idle timeout "-1s"`},
		{"create --idle-timeout 1us hostfs", 2, `idle timeout "1µs"`},
		{"create --max-lifetime -1s hostfs", 2, "--max-lifetime -1s"},
		{"create --pull sometimes hostfs", 2, `"sometimes"`},
		{"create --id ../x hostfs", 2, `"../x"`},
		{"create --tmpfs x hostfs", 2, `tmpfs "x"`},
		{"create -l =x hostfs", 2, `label "=x"`},
		{"kill -s BOGUS b x", 2, `signal "BOGUS"`},
		{"cp -o json b:/x -", 2, "exclude each other"},
		{"serve --host http://x", 2, "Unix socket"},
		{"serve --log loud", 2, `log level "loud"`},
		{"bench -n 0", 2, "-n 0"},
		{"bench --vs podman", 2, `--vs "podman"`},
		{"completion tcsh", 2, `shell "tcsh"`},
		{"--host tcp://x ls", 2, `host "tcp://x"`},
		{"help bogus", 2, `no command "bogus"`},

		{"run", 125, "IMAGE is missing"},
		{"run --no-such-flag hostfs", 125, "unknown flag"},
		{"run --memory lots hostfs", 125, `size "lots"`},
		{"run -d -i hostfs", 125, "-d cannot be had"},
		{"run --timeout -1s hostfs", 125, "--timeout"},
		{"run --timeout 0 hostfs", 125, "--timeout"},
		{"exec", 125, "BOX is missing"},
		{"exec b", 125, "COMMAND is missing"},
		{"exec b --", 125, "COMMAND is missing"},
		{"exec --no-such-flag b -- true", 125, "unknown flag"},
		{"exec -o json -t b -- true", 125, "-o json cannot"},
		{"attach b", 125, "EXEC is missing"},
		{"attach b x --since -5", 125, "--since -5"},
		{"wait", 125, "BOX is missing"},
	} {
		t.Run(strings.NewReplacer(" ", "_", "/", "|").Replace(c.line), func(t *testing.T) {
			out, errs, code := runMain(strings.Fields(c.line)...)
			if code != c.code || out != "" || !strings.Contains(errs, c.want) {
				t.Errorf("code %d, stdout %q, stderr %q; want code %d and %q", code, out, errs, c.code, c.want)
			}
			if !strings.HasPrefix(errs, "taibox: ") {
				t.Errorf("stderr %q does not begin with taibox:", errs)
			}
		})
	}
}
