package check

import (
	"encoding/xml"
	"fmt"
	"io"
	"slices"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// Print writes a result as table, wide, json, yaml or junit. A table has the findings, the wide one
// also what is ok, and the pages.
func (r Result) Print(out io.Writer, output string) error {
	switch output {
	case "json", "yaml":
		return view.Encode(out, output, r)
	case "junit":
		return r.junit(out)
	}
	wide := output == "wide"
	t := view.Table{Header: []string{"VERDICT", "CODE", "CLUSTER", "OBJECT", "REASON"}}
	findings := r.Findings()
	if wide {
		for _, o := range r.Outcomes {
			if o.Verdict == OK {
				findings = append(findings, Finding{Code: o.Code, Verdict: OK, Cluster: o.Cluster, Reason: o.Title, Page: o.Page})
			}
		}
	}
	for _, f := range findings {
		t.Rows = append(t.Rows, view.Row{Cells: []string{string(f.Verdict), f.Code, f.Cluster, dash(f.Object), f.Reason}})
	}
	if len(findings) > 0 {
		if err := t.Print(out, false); err != nil {
			return err
		}
	}
	if err := r.remedies(out, wide); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out, r.Summary())
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// remedies writes each remedy once, with the checks that name it.
func (r Result) remedies(out io.Writer, wide bool) error {
	type remedy struct{ code, text string }
	var seen []remedy
	for _, f := range r.Findings() {
		if is := (remedy{f.Code, f.Remedy}); !slices.Contains(seen, is) {
			seen = append(seen, is)
		}
	}
	for _, is := range seen {
		line := fmt.Sprintf("%s: %s", is.code, is.text)
		if wide {
			line += fmt.Sprintf("\n          (%s)", Find(is.code).Page())
		}
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	if len(seen) > 0 {
		_, err := fmt.Fprintln(out)
		return err
	}
	return nil
}

// Summary counts the outcomes.
func (r Result) Summary() string {
	clusters := []string{}
	for _, o := range r.Outcomes {
		clusters = append(clusters, o.Cluster)
	}
	slices.Sort(clusters)
	return fmt.Sprintf("%d checks of %d clusters: %d ok, %d warnings, %d errors, %d unknown", len(r.Outcomes), len(slices.Compact(clusters)),
		r.Count(OK), r.Count(Warning), r.Count(Error), r.Count(Unknown))
}

// Elements of JUnit's XML: a suite for each cluster, a case for each check.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Skipped *junitMessage `xml:"skipped,omitempty"`
		Output  string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// Case is a test case of JUnit's XML, in the suite of a cluster.
type Case struct {
	Suite, Class, Name string
	// Failure and Skipped are messages, empty unless the case failed or was skipped; Text is more
	// about either.
	Failure, Skipped, Text string
	Output                 string
}

// WriteJUnit writes cases, those of one suite in a row.
func WriteJUnit(out io.Writer, cases []Case) error {
	var all junitSuites
	for _, c := range cases {
		if n := len(all.Suites); n == 0 || all.Suites[n-1].Name != c.Suite {
			all.Suites = append(all.Suites, junitSuite{Name: c.Suite})
		}
		s := &all.Suites[len(all.Suites)-1]
		written := junitCase{Class: c.Class, Name: c.Name, Output: c.Output}
		s.Tests++
		switch {
		case c.Failure != "":
			s.Failures++
			written.Failure = &junitMessage{c.Failure, c.Text}
		case c.Skipped != "":
			s.Skipped++
			written.Skipped = &junitMessage{c.Skipped, c.Text}
		}
		s.Cases = append(s.Cases, written)
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(out)
	e.Indent("", "  ")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("print as junit: %w", err)
	}
	_, err := io.WriteString(out, "\n")
	return err
}

// junit writes errors as failures, what is unknown as skipped, and warnings as output.
func (r Result) junit(out io.Writer) error {
	var cases []Case
	for _, o := range r.Outcomes {
		c := Case{Suite: o.Cluster, Class: o.Code, Name: o.Title}
		text := ""
		for _, f := range o.Findings {
			text += fmt.Sprintf("%s: %s: %s; %s\n", f.Verdict, dash(f.Object), f.Reason, f.Remedy)
		}
		switch o.Verdict {
		case Error:
			c.Failure, c.Text = o.Findings[0].Reason, text
		case Unknown:
			c.Skipped, c.Text = o.Findings[0].Reason, text
		case Warning:
			c.Output = text
		}
		cases = append(cases, c)
	}
	return WriteJUnit(out, cases)
}
