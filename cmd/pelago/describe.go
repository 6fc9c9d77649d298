package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// recentEvents is how many Events a description has.
const recentEvents = 10

// description is what -o json and -o yaml print of describe.
type description struct {
	explanation `json:",inline"`
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

func describeCommand() *cobra.Command {
	return aboutCommand(&cobra.Command{
		Use:   "describe KIND NAME",
		Short: "Show all that the hub has about a workload, on one page",
		Long: `describe shows an object of the hub with the policy that has claimed it, its binding and the
decision, its Works, what each cluster reports, and the latest events.`,
		Example: `  pelago describe deployment nginx
  pelago describe deploy/nginx -n shop -o yaml`,
	}, func(f *subject) any { return f.describe() }, func(w io.Writer, f *subject, wide bool, now time.Time) error {
		return printDescription(w, f.describe(), wide, now)
	})
}

// describe makes the description; it is pure.
func (f *subject) describe() description {
	d := description{explanation: f.explain(), Generation: f.template.GetGeneration()}
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

// printDescription writes it for people.
func printDescription(w io.Writer, d description, wide bool, now time.Time) error {
	if err := printExplanation(w, d.explanation, true, now); err != nil {
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
	t := table{header: []string{"TYPE", "STATUS", "REASON", "AGE", "MESSAGE"}, empty: "none"}
	for _, c := range d.Conditions {
		t.rows = append(t.rows, row{cells: []string{c.Type, string(c.Status), c.Reason, age(c.LastTransitionTime.Time, now),
			cmp.Or(c.Message, "-")}})
	}
	if err := t.print(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w, "Reported by clusters:")
	t = table{header: []string{"CLUSTER", "APPLIED", "HEALTH", "STATUS"}, empty: "nothing"}
	for _, r := range d.Reports {
		t.rows = append(t.rows, row{cells: []string{r.ClusterName, yesNo(r.Applied), string(r.Health), reported(r)}})
	}
	if err := t.print(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w, "Events:")
	t = table{header: []string{"AGE", "OBJECT", "TYPE", "REASON", "MESSAGE"}, empty: "none"}
	for _, e := range d.Events {
		t.rows = append(t.rows, row{cells: []string{age(e.Time.Time, now), e.Object, cmp.Or(e.Type, corev1.EventTypeNormal), e.Reason,
			strings.ReplaceAll(e.Message, "\n", " ")}})
	}
	return t.print(w, wide)
}

// reported is a status as the cluster says it, "-" if there is none.
func reported(item workv1alpha2.AggregatedStatusItem) string {
	if item.Status == nil {
		return "-"
	}
	return string(item.Status.Raw)
}
