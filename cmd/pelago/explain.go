package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/deploy"
)

func explainCommand() *cobra.Command {
	return aboutCommand(&cobra.Command{
		Use:   "explain KIND NAME",
		Short: "Explain why a workload runs in these clusters and not in others",
		Long: `explain shows which policy has claimed an object of the hub and why the others have not, which
clusters were chosen and why the others were not, which overrides apply to each cluster, and the
state of the object there.`,
		Example: `  pelago explain deployment nginx
  pelago explain deploy/nginx -n shop -o json`,
	}, func(f *subject) any { return f.explain() }, func(w io.Writer, f *subject, wide bool, now time.Time) error {
		return printExplanation(w, f.explain(), wide, now)
	})
}

// aboutCommand is a command about one object of the hub.
func aboutCommand(
	cmd *cobra.Command, object func(*subject) any, text func(io.Writer, *subject, bool, time.Time) error,
) *cobra.Command {
	var flags hubFlags
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.ValidArgsFunction = flags.completeObject
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kindName, name, err := kindAndName(args)
		if err != nil {
			return err
		}
		h, err := flags.open()
		if err != nil {
			return err
		}
		f, err := h.subject(cmd.Context(), kindName, flags.namespace, name)
		if err != nil {
			return err
		}
		switch flags.output {
		case "json", "yaml":
			return encode(cmd.OutOrStdout(), flags.output, object(f))
		}
		return text(cmd.OutOrStdout(), f, flags.output == "wide", time.Now())
	}
	flags.addNamespaced(cmd)
	addOutputFlag(cmd, &flags.output)
	return cmd
}

// printExplanation writes it as text.
func printExplanation(w io.Writer, e explanation, wide bool, now time.Time) error {
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
	if err := t.print(w, wide); err != nil {
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

func clusterTable(clusters []explainedCluster) table {
	t := table{
		header: []string{"CLUSTER", "REPLICAS", "STATE", "HEALTH", "OVERRIDES", "WHY"}, wide: []string{"WORK"},
		empty: "In no cluster.",
	}
	for _, c := range clusters {
		t.rows = append(t.rows, row{
			cells: []string{c.Cluster, strconv.Itoa(int(c.Replicas)), c.State, cmp.Or(c.Health, "-"),
				cmp.Or(strings.Join(c.Overrides, ", "), "-"), c.Why},
			wide: []string{cmp.Or(c.Work, "-")},
		})
	}
	return t
}

// recentEvents bounds the Events of a description.
const recentEvents = 10

// description is the form of describe in -o json and -o yaml.
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
		Short: "Show the policy, binding, Works, status and events of a workload",
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

// printDescription writes it as text.
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
		t.add(c.Type, string(c.Status), c.Reason, age(c.LastTransitionTime.Time, now),
			cmp.Or(c.Message, "-"))
	}
	if err := t.print(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w, "Reported by clusters:")
	t = table{header: []string{"CLUSTER", "APPLIED", "HEALTH", "STATUS"}, empty: "nothing"}
	for _, r := range d.Reports {
		t.add(r.ClusterName, yesNo(r.Applied), string(r.Health), reported(r))
	}
	if err := t.print(w, wide); err != nil {
		return err
	}
	fmt.Fprintln(w, "Events:")
	t = table{header: []string{"AGE", "OBJECT", "TYPE", "REASON", "MESSAGE"}, empty: "none"}
	for _, e := range d.Events {
		t.add(age(e.Time.Time, now), e.Object, cmp.Or(e.Type, corev1.EventTypeNormal), e.Reason,
			strings.ReplaceAll(e.Message, "\n", " "))
	}
	return t.print(w, wide)
}

// reported is the status of a cluster, "-" if there is none.
func reported(item workv1alpha2.AggregatedStatusItem) string {
	if item.Status == nil {
		return "-"
	}
	return string(item.Status.Raw)
}
