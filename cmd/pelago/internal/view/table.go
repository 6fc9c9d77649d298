// Package view reads and prints what the commands show: tables, the explanation of a template at
// the hub, lists of objects of several clusters, and the state of a member. It writes nothing to a
// cluster.
package view

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/deploy/spec"
)

// AddOutputFlag adds --output, with further formats.
func AddOutputFlag(f *pflag.FlagSet, output *string, more ...string) {
	c := spec.NewChoice(output, "table", append([]string{"table", "wide", "json", "yaml"}, more...)...)
	f.VarP(c, "output", "o", c.Words())
}

// Encode writes JSON or YAML, nothing if the output is a table.
func Encode(out io.Writer, output string, v any) error {
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

// Table is a list of objects in columns.
type Table struct {
	// Title stands above it; "": none.
	Title  string
	Header []string
	// Wide are the titles of the columns that -o wide adds.
	Wide []string
	Rows []Row
	// Empty is printed instead of a table without rows.
	Empty string
}

// Row is one line; Object is its form in -o json and -o yaml, Name that in -o name.
type Row struct {
	Cells, Wide []string
	Object      any
	Name        string
}

// Add adds a row without an object.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, Row{Cells: cells}) }

// Objects are those of all rows, not nil.
func (t *Table) Objects() []any {
	out := []any{}
	for _, r := range t.Rows {
		out = append(out, r.Object)
	}
	return out
}

// Print writes the table in columns.
func (t *Table) Print(out io.Writer, wide bool) error {
	if t.Title != "" {
		fmt.Fprintln(out, t.Title)
	}
	if len(t.Rows) == 0 {
		_, err := fmt.Fprintf(out, "%s\n\n", t.Empty)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for _, r := range append([]Row{{Cells: t.Header, Wide: t.Wide}}, t.Rows...) {
		cells := r.Cells
		if wide {
			cells = slices.Concat(r.Cells, r.Wide)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// PrintTables writes tables, or the list of their objects.
func PrintTables(out io.Writer, output string, tables ...Table) error {
	objects := []any{}
	for _, t := range tables {
		objects = append(objects, t.Objects()...)
	}
	if output == "json" || output == "yaml" {
		return Encode(out, output, objects)
	}
	for _, t := range tables {
		if output == "name" {
			for _, r := range t.Rows {
				fmt.Fprintln(out, r.Name)
			}
			continue
		}
		if err := t.Print(out, output == "wide"); err != nil {
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
