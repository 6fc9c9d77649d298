package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// outputs are the values of --output.
var outputs = []string{"table", "wide", "json", "yaml"}

func addOutputFlag(cmd *cobra.Command, output *string) {
	*output = "table"
	cmd.Flags().VarP((*outputValue)(output), "output", "o", "table, wide, json or yaml")
	words := cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("output", words) // fails only without such a flag
}

// outputValue refuses unknown values when the flag is parsed.
type outputValue string

func (v *outputValue) String() string { return string(*v) }
func (v *outputValue) Type() string   { return "string" }

func (v *outputValue) Set(text string) error {
	if !slices.Contains(outputs, text) {
		return fmt.Errorf("use %s or %s", strings.Join(outputs[:len(outputs)-1], ", "), outputs[len(outputs)-1])
	}
	*v = outputValue(text)
	return nil
}

// encode writes JSON or YAML.
func encode(out io.Writer, output string, v any) error {
	var text []byte
	var err error
	switch output {
	case "json":
		text, err = json.MarshalIndent(v, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(v)
	}
	if err != nil {
		return fmt.Errorf("print as %s: %w", output, err)
	}
	_, err = out.Write(text)
	return err
}

// table is a list of objects in columns.
type table struct {
	// title stands above it; "": none.
	title  string
	header []string
	// wide are the titles of the columns that -o wide adds.
	wide []string
	rows []row
	// empty is printed instead of a table without rows.
	empty string
}

// row is one line; object is its form in -o json and -o yaml.
type row struct {
	cells, wide []string
	object      any
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, row{cells: cells}) }

// objects are those of all rows, not nil.
func (t *table) objects() []any {
	out := []any{}
	for _, r := range t.rows {
		out = append(out, r.object)
	}
	return out
}

// print writes the table in columns.
func (t *table) print(out io.Writer, wide bool) error {
	if t.title != "" {
		fmt.Fprintln(out, t.title)
	}
	if len(t.rows) == 0 {
		_, err := fmt.Fprintf(out, "%s\n\n", t.empty)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, r := range append([]row{{cells: t.header, wide: t.wide}}, t.rows...) {
		cells := r.cells
		if wide {
			cells = slices.Concat(r.cells, r.wide)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// printTables writes tables, or the list of their objects.
func printTables(out io.Writer, output string, tables ...table) error {
	objects := []any{}
	for _, t := range tables {
		objects = append(objects, t.objects()...)
	}
	if output == "json" || output == "yaml" {
		return encode(out, output, objects)
	}
	for _, t := range tables {
		if err := t.print(out, output == "wide"); err != nil {
			return err
		}
	}
	return nil
}

// age is the time since then in kubectl's form.
func age(then, now time.Time) string { return duration.HumanDuration(now.Sub(then)) }

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// progress prints steps, one line each, with the seconds since the start.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

// step is a deploy.Progress.
func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
