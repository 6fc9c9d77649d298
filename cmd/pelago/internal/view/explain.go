package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/deploy"
)

// PrintExplanation writes it as text.
func PrintExplanation(w io.Writer, e Explanation, wide bool, now time.Time) error {
	fmt.Fprintf(w, "%s %s\n\n", e.Kind, deploy.Title(client.ObjectKey{Namespace: e.Namespace, Name: e.Name}))
	if e.Policy != nil {
		fmt.Fprintf(w, "Policy:    %s, priority %d, selects %s\n", e.Policy.title(), e.Policy.Priority, e.Policy.Selects)
	} else {
		fmt.Fprintln(w, "Policy:    none")
	}
	for _, p := range e.OtherPolicies {
		fmt.Fprintf(w, "  not by   %s, priority %d, selects %s: %s\n", p.title(), p.Priority, p.Selects, p.Why)
	}
	if e.Binding != "" {
		fmt.Fprintf(w, "Binding:   %s\n", e.Binding)
	}
	if d := e.Decision; d != nil {
		fmt.Fprintf(w, "Decision:  %s, %s ago", d.Reason, age(d.Time.Time, now))
		if d.AffinityGroup != "" {
			fmt.Fprintf(w, ", affinity group %q", d.AffinityGroup)
		}
		if !d.Current {
			fmt.Fprint(w, "; the binding has changed since")
		}
		fmt.Fprintln(w)
		if d.Message != "" {
			fmt.Fprintf(w, "           %s\n", d.Message)
		}
	}
	if e.Problem != "" {
		fmt.Fprintf(w, "Problem:   %s\n", e.Problem)
	}
	fmt.Fprintln(w)
	t := clusterTable(e.Clusters)
	if err := t.Print(w, wide); err != nil {
		return err
	}
	for _, c := range e.Clusters {
		for _, p := range c.Problems {
			fmt.Fprintf(w, "! %s: %s\n", c.Cluster, p)
		}
	}
	if len(e.Rejected) > 0 {
		fmt.Fprintln(w, "Not chosen:")
	}
	for _, r := range e.Rejected {
		clusters := strings.Join(r.Clusters, ", ")
		if r.More > 0 {
			clusters += fmt.Sprintf(" and %d more", r.More)
		}
		fmt.Fprintf(w, "  %s: %s\n", clusters, r.Why)
	}
	return nil
}

func clusterTable(clusters []explainedCluster) Table {
	t := Table{
		Header: []string{"CLUSTER", "REPLICAS", "STATE", "HEALTH", "OVERRIDES", "WHY"}, Wide: []string{"WORK"},
		Empty: "In no cluster.",
	}
	for _, c := range clusters {
		t.Rows = append(t.Rows, Row{
			Cells: []string{c.Cluster, strconv.Itoa(int(c.Replicas)), c.State, cmp.Or(c.Health, "-"),
				cmp.Or(strings.Join(c.Overrides, ", "), "-"), c.Why},
			Wide: []string{cmp.Or(c.Work, "-")},
		})
	}
	return t
}

// recentEvents bounds the Events of a description.
const recentEvents = 10

// Description is the form of describe in -o json and -o yaml.
type Description struct {
	Explanation `json:",inline"`
	Generation  int64                               `json:"generation"`
	Status      any                                 `json:"status,omitempty"`
	Conditions  []metav1.Condition                  `json:"conditions,omitempty"`
	Reports     []workv1alpha2.AggregatedStatusItem `json:"aggregatedStatus,omitempty"`
	Events      []describedEvent                    `json:"events,omitempty"`
}

type describedEvent struct {
	Time    metav1.Time `json:"time"`
	Object  string      `json:"object"`
	Type    string      `json:"type"`
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
}

// Describe makes the description; it is pure.
func (f *Subject) Describe() Description {
	d := Description{Explanation: f.Explain(), Generation: f.template.GetGeneration()}
	if status, ok, err := unstructured.NestedFieldNoCopy(f.template.Object, "status"); ok && err == nil {
		d.Status = status
	}
	if f.binding != nil {
		d.Conditions, d.Reports = f.binding.status.Conditions, f.binding.status.AggregatedStatus
	}
	events := f.events[max(0, len(f.events)-recentEvents):]
	for _, e := range events {
		d.Events = append(d.Events, describedEvent{when(e), e.InvolvedObject.Kind, e.Type, e.Reason, e.Message})
	}
	return d
}

// PrintDescription writes it as text.
func PrintDescription(w io.Writer, d Description, wide bool, now time.Time) error {
	if err := PrintExplanation(w, d.Explanation, true, now); err != nil {
		return err
	}
	fmt.Fprintf(w, "\nGeneration %d", d.Generation)
	if status, ok := d.Status.(map[string]any); ok && len(status) > 0 {
		text, err := json.Marshal(status)
		if err != nil {
			return fmt.Errorf("print the status: %w", err)
		}
		fmt.Fprintf(w, ", status %s", text)
	}
	fmt.Fprint(w, "\n\nConditions of the binding:\n")
	t := Table{Header: []string{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}, Empty: "none"}
	for _, c := range d.Conditions {
		t.Add(c.Type, string(c.Status), c.Reason, age(c.LastTransitionTime.Time, now),
			cmp.Or(c.Message, "-"))
	}
	if err := t.Print(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w, "Reported by clusters:")
	t = Table{Header: []string{"CLUSTER", "APPLIED", "HEALTH", "STATUS"}, Empty: "nothing"}
	for _, r := range d.Reports {
		t.Add(r.ClusterName, yesNo(r.Applied), string(r.Health), reported(r))
	}
	if err := t.Print(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w, "Events:")
	t = Table{Header: []string{"AGE", "OBJECT", "TYPE", "REASON", "MESSAGE"}, Empty: "none"}
	for _, e := range d.Events {
		t.Add(age(e.Time.Time, now), e.Object, cmp.Or(e.Type, corev1.EventTypeNormal), e.Reason,
			strings.ReplaceAll(e.Message, "\n", " "))
	}
	return t.Print(w, wide)
}

// reported is the status of a cluster, "-" if there is none.
func reported(item workv1alpha2.AggregatedStatusItem) string {
	if item.Status == nil {
		return "-"
	}
	return string(item.Status.Raw)
}
