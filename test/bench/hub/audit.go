package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// auditPolicy makes the hub's API server log every write, without bodies, except for the status of
// templates, whose body shows when it is complete.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Request
  verbs: [create, update, patch]
  resources: [{group: apps, resources: [deployments/status]}]
- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}
`

// entry is what is read of a line of the audit log.
type entry struct {
	Verb, UserAgent string
	ObjectRef       struct{ Resource, Namespace, Name, APIGroup, Subresource string }
	ResponseStatus  struct{ Code int }
	RequestObject   struct {
		Status struct{ ObservedGeneration int64 }
	}
	StageTimestamp time.Time
}

func (e entry) refused() bool { return e.ResponseStatus.Code >= 300 }

// complete reports whether the write is of a template's status that all members have caught up
// with. No template is edited, so there is one generation.
func (e entry) complete() bool {
	return e.ObjectRef.Resource == "deployments" && e.ObjectRef.Subresource == "status" && !e.refused() &&
		e.RequestObject.Status.ObservedGeneration > 0
}

// what is a write in words.
func (e entry) what() string {
	text := e.Verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		text += "/" + e.ObjectRef.Subresource
	}
	if e.refused() {
		text += fmt.Sprintf(" refused with %d", e.ResponseStatus.Code)
	}
	return text
}

// writes counts what pelago-hub has written. Those that were refused are counted apart.
type writes struct {
	byClass map[class]int
	// later are those of a template after its first complete status: what changes in members from
	// then on.
	later   int
	refused int
	others  map[string]int // by the first word of the user agent
}

// class is what a write is for.
type class string

const (
	ofDeployment class = "deployment" // a template, its binding, its Works
	ofConfigMap  class = "configmap"  // the same for a dependent
	ofPolicy     class = "policy"
	ofEvent      class = "event"
	ofMember     class = "member" // Clusters, leases, namespaces and their Works
)

// hubAgent begins the user agent of pelago-hub.
const hubAgent = "pelago-hub"

// digits is how long the number of a template is.
const digits = 5

// about reports what a write is for, and for which template or dependent, by the name of its
// object.
func about(e entry) (class, string) {
	r := e.ObjectRef
	switch {
	case r.Resource == "events":
		return ofEvent, ""
	case r.Resource == "propagationpolicies":
		return ofPolicy, ""
	}
	for start, c := range map[string]class{prefix: ofDeployment, dependentsOf: ofConfigMap} {
		if strings.HasPrefix(r.Name, start) && len(r.Name) >= len(start)+digits {
			return c, r.Name[:len(start)+digits]
		}
	}
	return ofMember, ""
}

// countWrites reads an audit log.
func countWrites(log io.Reader) (writes, *ledger, error) {
	w := writes{byClass: map[class]int{}, others: map[string]int{}}
	l := &ledger{kinds: map[string]int{}, of: map[string][]entry{}}
	complete := map[string]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return w, nil, fmt.Errorf("read the audit log: %w", err)
		}
		agent, _, _ := strings.Cut(e.UserAgent, "/")
		c, name := about(e)
		l.note(agent, c, name, e)
		switch {
		case agent != hubAgent:
			w.others[agent]++
		case e.refused():
			w.refused++
		case complete[name]:
			w.later++
		default:
			w.byClass[c]++
			complete[name] = e.complete() && name != ""
		}
	}
	if err := lines.Err(); err != nil {
		return w, nil, fmt.Errorf("read the audit log: %w", err)
	}
	return w, l, nil
}

// ledger is the audit log by kinds of writes, and by templates.
type ledger struct {
	kinds map[string]int
	of    map[string][]entry
}

func (l *ledger) note(agent string, c class, name string, e entry) {
	l.kinds[fmt.Sprintf("%s for %s: %s", agent, c, e.what())]++
	if name != "" {
		l.of[name] = append(l.of[name], e)
	}
}

// write writes the ledger for a reader who looks for what is too much.
func (l *ledger) write(file string) error {
	var text strings.Builder
	for _, kind := range slices.SortedFunc(maps.Keys(l.kinds), func(a, b string) int {
		return cmp.Or(cmp.Compare(l.kinds[b], l.kinds[a]), strings.Compare(a, b))
	}) {
		fmt.Fprintf(&text, "%7d  %s\n", l.kinds[kind], kind)
	}
	for _, name := range slices.Sorted(maps.Keys(l.of)) {
		fmt.Fprintf(&text, "\n%s\n", name)
		for _, e := range l.of[name] {
			agent, _, _ := strings.Cut(e.UserAgent, "/")
			note := ""
			if e.complete() {
				note = " (complete)"
			}
			fmt.Fprintf(&text, "%7d ms  %s: %s %s%s\n", e.StageTimestamp.Sub(l.of[name][0].StageTimestamp).Milliseconds(), agent, e.what(),
				e.ObjectRef.Namespace+"/"+e.ObjectRef.Name, note)
		}
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write what was written: %w", err)
	}
	return nil
}
