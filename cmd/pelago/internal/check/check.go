// Package check finds out what is wrong with a clusterset. Read reads the API objects of members
// and hubs, in parallel and within a deadline, and Run evaluates the table of checks on them, which
// is pure. The verbs check, diagnose, join and gather call it. It writes nothing.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Verdict is the result of a check.
type Verdict string

// Verdicts.
const (
	OK      Verdict = "ok"
	Warning Verdict = "warning"
	Error   Verdict = "error"
	// Unknown: what the check looks at could not be read.
	Unknown Verdict = "unknown"
)

// rank orders verdicts, the worst first.
func (v Verdict) rank() int { return slices.Index([]Verdict{Error, Unknown, Warning, OK}, v) }

// Of is what a check is about.
type Of int

// What a check is about.
const (
	Members Of = iota // a cluster that has joined
	Hubs
	Any     // any API server
	Joining // a cluster before it joins
	Hosting // an API server before it is a hub
	// JoiningNodes is a cluster before it joins on whose nodes pods have been run.
	JoiningNodes
	Manifests // files
)

// Check is one entry of the table. Its code is stable: it is never given to another check.
type Check struct {
	Code string
	// Title is what holds if the verdict is ok.
	Title string
	Of    Of
	// Topic is the word of `pelago diagnose` that runs it.
	Topic string
	// Looks names the sources, Why is what fails otherwise; both are on the check's page.
	Looks, Why string
	// Remedy is what to do about a finding that has none of its own.
	Remedy string
	// needs are the sources without which the verdict is unknown.
	needs []source
	// ofOthers are sources of other clusters that it compares with.
	ofOthers []source
	// byJoin: join itself refuses this.
	byJoin bool
	// find is nil where only rules make findings.
	find func(*Set, *Cluster, *report)
}

// Page is the address of the check's page, relative to the root of the project.
func (c *Check) Page() string { return "docs/checks.md#" + strings.ToLower(c.Code) }

// Find returns the check with the code, nil without one.
func Find(code string) *Check {
	for i := range table {
		if strings.EqualFold(table[i].Code, code) {
			return &table[i]
		}
	}
	return nil
}

// Finding is one problem.
type Finding struct {
	Code    string  `json:"code"`
	Verdict Verdict `json:"verdict"`
	// Cluster is the id of the cluster, or the context of one that has none.
	Cluster string `json:"cluster"`
	// Object is the object that shows it, as `Kind name`; empty: the cluster itself.
	Object string `json:"object,omitempty"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy"`
	Page   string `json:"page"`
}

// Outcome is what a check of one cluster came to.
type Outcome struct {
	Code     string    `json:"code"`
	Title    string    `json:"title"`
	Cluster  string    `json:"cluster"`
	Verdict  Verdict   `json:"verdict"`
	Page     string    `json:"page"`
	Findings []Finding `json:"findings,omitempty"`
}

// Result has an outcome for each check of each cluster, by cluster, then by code.
type Result struct {
	Verdict  Verdict   `json:"verdict"`
	Outcomes []Outcome `json:"outcomes"`
}

// Findings are those of all outcomes, the worst first.
func (r Result) Findings() []Finding {
	out := []Finding{}
	for _, o := range r.Outcomes {
		out = append(out, o.Findings...)
	}
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(a.Verdict.rank(), b.Verdict.rank()) })
	return out
}

// Count returns the number of outcomes with a verdict.
func (r Result) Count(v Verdict) (n int) {
	for _, o := range r.Outcomes {
		if o.Verdict == v {
			n++
		}
	}
	return n
}

// report collects the findings of one check of one cluster.
type report struct {
	check    *Check
	cluster  string
	findings []Finding
}

// add adds a finding; without a remedy it gets that of the check.
func (r *report) add(v Verdict, object, remedy, format string, args ...any) {
	r.findings = append(r.findings, Finding{Code: r.check.Code, Verdict: v, Cluster: r.cluster, Object: object,
		Reason: fmt.Sprintf(format, args...), Remedy: cmp.Or(remedy, r.check.Remedy), Page: r.check.Page()})
}

func (r *report) fail(object, format string, args ...any) { r.add(Error, object, "", format, args...) }
func (r *report) warn(object, format string, args ...any) {
	r.add(Warning, object, "", format, args...)
}

// Selection chooses checks; the zero value is all.
type Selection struct {
	// Only are codes, or letters of areas (N, D, H, P).
	Only []string
	// Topic is a word of `pelago diagnose`.
	Topic string
	// OfJoin leaves out what join itself refuses.
	OfJoin bool
}

// Validate refuses words that are neither code nor area.
func (s Selection) Validate() error {
	for _, word := range s.Only {
		if !slices.ContainsFunc(table, func(c Check) bool { return names(word, &c) }) {
			return fmt.Errorf("--only %s: give letters of areas (N network, D discovery, H hub, P before a join) or codes such as %s", word, table[0].Code)
		}
	}
	return nil
}

// names reports whether a word names the check or its area.
func names(word string, c *Check) bool {
	return strings.EqualFold(word, c.Code) || len(word) == 1 && strings.EqualFold(word, c.Code[len("PLG-"):][:1])
}

func (s Selection) has(c *Check) bool {
	only := len(s.Only) == 0 || slices.ContainsFunc(s.Only, func(word string) bool { return names(word, c) })
	return only && (s.Topic == "" || s.Topic == c.Topic) && !(s.OfJoin && c.byJoin)
}

// applies reports whether a check is about the cluster.
func (c *Check) applies(of *Cluster) bool {
	switch c.Of {
	case Members:
		return of.Member && !of.Config.WorkloadsOnly
	case Hubs:
		return of.Hub
	case Joining:
		return of.Joining
	case JoiningNodes:
		return of.Joining && len(of.Before.Nodes) > 0
	case Hosting:
		return of.Hosting
	case Manifests:
		return of.Files != nil
	}
	return of.Files == nil
}

// Run evaluates the selected checks. Of a cluster that could not be reached only that is an
// outcome.
func Run(s *Set, selected Selection) Result {
	r := Result{Verdict: OK, Outcomes: []Outcome{}}
	for i := range s.Clusters {
		c := &s.Clusters[i]
		for j := range table {
			check := &table[j]
			switch {
			case c.Err != nil && check.Code != codeUnreachable:
				continue
			case c.Err == nil && (!selected.has(check) || !check.applies(c)):
				continue
			}
			o := check.run(s, c)
			r.Outcomes = append(r.Outcomes, o)
			if o.Verdict.rank() < r.Verdict.rank() {
				r.Verdict = o.Verdict
			}
		}
	}
	return r
}

// run evaluates one check of one cluster.
func (c *Check) run(s *Set, of *Cluster) Outcome {
	o := Outcome{Code: c.Code, Title: c.Title, Cluster: of.Name(), Verdict: OK, Page: c.Page()}
	rep := &report{check: c, cluster: of.Name()}
	for _, need := range c.needs {
		if err := of.unread[need]; err != nil {
			rep.add(Unknown, string(need), "give the user of the kubeconfig the right to read it, or see whether the API server answers", "not read: %v", err)
		}
	}
	switch {
	case len(rep.findings) > 0:
	case c.find == nil:
		byRules(of, rep)
	default:
		c.find(s, of, rep)
	}
	o.Findings = rep.findings
	for _, f := range o.Findings {
		if f.Verdict.rank() < o.Verdict.rank() {
			o.Verdict = f.Verdict
		}
	}
	return o
}
