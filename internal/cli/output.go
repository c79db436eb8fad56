package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// format is how a command prints its data.
type format struct {
	output string
	quiet  bool
}

// addOutput adds -o.
func (f *format) addOutput(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "`format` of the data: table or json")
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if f.output != "table" && f.output != "json" {
			return usage("output %q: table and json are possible", f.output)
		}
		if before != nil {
			return before(cmd, args)
		}
		return nil
	}
}

// addQuiet adds -q.
func (f *format) addQuiet(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print "+what+" only")
}

func (f *format) json() bool { return f.output == "json" }

// silent reports whether no progress is to be shown.
func (f *format) silent() bool { return f.quiet || f.json() }

// printJSON writes v, indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printList writes items as a JSON array, never null.
func printList[T any](w io.Writer, items []T) error {
	if items == nil {
		items = []T{}
	}
	return printJSON(w, items)
}

// printItems shows a list: as JSON, by the first cells of its rows with -q, or
// as a table.
func printItems[T any](env *Env, out format, items []T, heads []string, row func(*T) []string) error {
	if out.json() {
		return printList(env.Out, items)
	}
	if out.quiet {
		return printIDs(env, items, func(i T) string { return row(&i)[0] })
	}
	t := newTable(heads...)
	for i := range items {
		t.add(row(&items[i])...)
	}
	return t.print(env.Out)
}

// printIDs prints what names each item on a line of its own.
func printIDs[T any](env *Env, items []T, id func(T) string) error {
	var b strings.Builder
	for _, i := range items {
		b.WriteString(id(i) + "\n")
	}
	_, err := fmt.Fprint(env.Out, b.String())
	return err
}

// table gathers rows and prints them in aligned columns.
type table struct {
	rows [][]string
}

func newTable(head ...string) *table { return &table{rows: [][]string{head}} }

// add appends a row. An empty cell is printed as a dash.
func (t *table) add(cells ...string) {
	row := make([]string, len(cells))
	for i, c := range cells {
		if row[i] = oneLine(c); c == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// print writes the table in one go.
func (t *table) print(w io.Writer) error {
	var width []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			b.WriteString(c)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+3))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// fields prints names and values, one a line; those without a value are left out.
type fields struct{ table }

func (f *fields) add(name, value string) {
	if value != "" {
		f.rows = append(f.rows, []string{name + ":", oneLine(value)})
	}
}

// printLine writes one line of data.
func printLine(w io.Writer, s string) error {
	_, err := fmt.Fprintln(w, s)
	return err
}

// colour wraps s in an escape sequence where people look at a terminal and did
// not ask for none.
func (e *Env) colour(code, s string) string {
	if !e.TTY || e.Getenv("NO_COLOR") != "" || e.Getenv("TERM") == "dumb" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
