package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// minSpecs is how many specs v0.5.2 has with two clusters, 15 required and 13 optional. Fewer,
// or a skipped one, means that it ran with less than two.
const minSpecs = 28

// excluded is a spec that a mode cannot satisfy by its nature.
type excluded struct {
	description string // is in that of the suite
	reason      string
}

// withGlobalnet: the specs that compare with the addresses that pods have in their own cluster.
var withGlobalnet = []excluded{
	{"for a headless service should return the ready endpoint addresses of all the backing pods",
		`KEP-1645, specification.md 2.4.1, has a record for "each ready endpoint accessible across the cluster set with the IPv4 address" ` +
			"that it holds: with globalnet the pods' global IPs. The suite compares with their addresses in the exporting cluster"},
}

// spec is the outcome of one spec of the suite.
type spec struct {
	description string
	required    bool
	status      string // passed, failed, skipped, …
	seconds     float64
	message     string
}

// result is one run of the suite.
type result struct {
	mode, contexts string
	specs          []spec
}

func (r result) passed() (n int) {
	for _, s := range r.specs {
		if s.status == "passed" {
			n++
		}
	}
	return n
}

// verdict names the specs that failed or were skipped, and those of excluded that passed: they are
// not to be excluded any more. A run of all specs in no time was a dry run, which reports that all
// have passed.
func (r result) verdict(exclusions []excluded, focused bool) error {
	var errs []error
	total := 0.0
	for _, s := range r.specs {
		total += s.seconds
		of := slices.ContainsFunc(exclusions, func(e excluded) bool { return strings.Contains(s.description, e.description) })
		switch {
		case s.status == "skipped" && focused:
		case s.status != "passed" && !of:
			errs = append(errs, fmt.Errorf("%s: %q: %s", s.status, s.description, s.message))
		case s.status == "passed" && of:
			errs = append(errs, fmt.Errorf("%q passed: remove it from the excluded specs", s.description))
		}
	}
	if len(r.specs) < minSpecs {
		errs = append(errs, fmt.Errorf("%d specs, at least %d: the suite is not that of %s", len(r.specs), minSpecs, suiteModule))
	}
	if total < 1 {
		errs = append(errs, fmt.Errorf("all specs took %.3f s: they have not run", total))
	}
	return errors.Join(errs...)
}

// junit is the part of a JUnit report that is read.
type junit struct {
	Cases []struct {
		Name    string  `xml:"name,attr"`
		Status  string  `xml:"status,attr"`
		Time    float64 `xml:"time,attr"`
		Failure struct {
			Message string `xml:"message,attr"`
		} `xml:"failure"`
		Error struct {
			Message string `xml:"message,attr"`
		} `xml:"error"`
	} `xml:"testsuite>testcase"`
}

// readJUnit reads the outcomes from the report that Ginkgo writes; names are "[It] description
// [label, label]".
func readJUnit(file string) ([]spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the report of the suite: %w", err)
	}
	var j junit
	if err := xml.Unmarshal(text, &j); err != nil {
		return nil, fmt.Errorf("read the report of the suite in %s: %w", file, err)
	}
	var specs []spec
	for _, c := range j.Cases {
		name, ok := strings.CutPrefix(c.Name, "[It] ")
		if !ok { // a set-up or clean-up of the suite
			if c.Status != "passed" {
				return nil, fmt.Errorf("%s %s: %s%s", c.Name, c.Status, c.Failure.Message, c.Error.Message)
			}
			continue
		}
		description, labels := strings.TrimSpace(name), ""
		if i := strings.LastIndex(description, " ["); i >= 0 {
			description, labels = description[:i], description[i:]
		}
		specs = append(specs, spec{description: description, required: strings.Contains(labels, "Required"), status: c.Status, seconds: c.Time,
			message: strings.ReplaceAll(c.Failure.Message+c.Error.Message, "\n", " ")})
	}
	slices.SortStableFunc(specs, func(a, b spec) int {
		switch {
		case a.required && !b.required:
			return -1
		case b.required && !a.required:
			return 1
		}
		return strings.Compare(a.description, b.description)
	})
	return specs, nil
}

// printTable prints a line for each spec and a column for each run.
func printTable(out io.Writer, results []result) {
	if len(results) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head := []string{"LEVEL"}
	for _, r := range results {
		head = append(head, strings.ToUpper(r.mode+" "+r.contexts))
	}
	fmt.Fprintln(w, strings.Join(append(head, "SPEC"), "\t"))
	for _, s := range results[0].specs {
		row := []string{map[bool]string{true: "required", false: "optional"}[s.required]}
		for _, r := range results {
			status := "-"
			if i := slices.IndexFunc(r.specs, func(o spec) bool { return o.description == s.description && o.required == s.required }); i >= 0 {
				status = r.specs[i].status
			}
			row = append(row, status)
		}
		fmt.Fprintln(w, strings.Join(append(row, s.description), "\t"))
	}
	w.Flush()
}
