package view

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Explanation is the reason of a template's clusters, and its form in -o json and -o yaml.
type Explanation struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Policy has claimed the template.
	Policy *explainedPolicy `json:"policy,omitempty"`
	// OtherPolicies select it, too.
	OtherPolicies []explainedPolicy `json:"otherPolicies,omitempty"`
	Binding       string            `json:"binding,omitempty"`
	Decision      *explainedAttempt `json:"decision,omitempty"`
	Near          *explainedNear    `json:"near,omitempty"`
	// Scores of all clusters, the best first, if the policy weighs any.
	Scores []explainedScore `json:"scores,omitempty"`
	// Problem is the reason why there is no policy, no binding or no decision, and the remedy.
	Problem  string                   `json:"problem,omitempty"`
	Clusters []explainedCluster       `json:"clusters,omitempty"`
	Rejected []workv1alpha2.Rejection `json:"rejected,omitempty"`
}

// explainedAttempt is the last attempt to decide.
type explainedAttempt struct {
	Reason  string           `json:"reason"`
	Message string           `json:"message,omitempty"`
	Time    metav1.MicroTime `json:"time"`
	// AffinityGroup is the one that fitted.
	AffinityGroup string `json:"affinityGroup,omitempty"`
	// Current is false if the binding has changed since.
	Current bool `json:"current"`
	// Failover reports why it stays in a cluster that it should leave, Failback to which clusters
	// it returns, and when.
	Failover string `json:"failover,omitempty"`
	Failback string `json:"failback,omitempty"`
}

// explainedCluster is a cluster that has the template, or is to have it.
type explainedCluster struct {
	Cluster  string `json:"cluster"`
	Replicas int32  `json:"replicas"`
	// Why it is one of them.
	Why string `json:"why"`
	// Work is the name of the Work, State its state.
	Work      string   `json:"work,omitempty"`
	State     string   `json:"state"`
	Health    string   `json:"health,omitempty"`
	Overrides []string `json:"overrides,omitempty"`
	// Problems are causes and remedies.
	Problems []string `json:"problems,omitempty"`
}

// States of explainedCluster.
const (
	stateNoWork    = "not sent"
	stateSuspended = "suspended"
	stateLeaving   = "being removed"
	stateWaiting   = "not applied yet"
	stateFailed    = "failed"
	stateApplied   = "applied"
)

// Explain makes the explanation; it is pure.
func (f *Subject) Explain() Explanation {
	t := f.template
	out := Explanation{Kind: t.GetKind(), Namespace: t.GetNamespace(), Name: t.GetName()}
	out.Policy, out.OtherPolicies = f.explainPolicies()
	out.Problem = f.problem(out.Policy, out.OtherPolicies)
	if !f.binding.Exists() {
		return out
	}
	out.Binding = f.binding.GetName()
	if d := workv1alpha2.ReadDecision(f.binding.GetAnnotations()); d != nil {
		hash, err := workv1alpha2.SpecHash(f.binding.Spec)
		out.Decision = &explainedAttempt{d.Reason, d.Message, d.Time, d.Term, err == nil && hash == d.For, d.Held,
			ptr.Deref(d.Failback, workv1alpha2.Failback{}).Message}
		out.Rejected = d.Rejected
	}
	out.Near, out.Scores = f.near, f.scores
	out.Clusters = f.explainClusters()
	return out
}

// problem is the reason why there is no decision, "" if there is one.
func (f *Subject) problem(claimed *explainedPolicy, others []explainedPolicy) string {
	switch {
	case workv1alpha2.ReservedNamespace(f.template.GetNamespace()):
		return fmt.Sprintf("namespace %s is the system's: nothing in it is sent to clusters. Put the object into another one.",
			f.template.GetNamespace())
	case !f.binding.Exists() && claimed == nil && len(others) == 0:
		return "no policy selects it: make a PropagationPolicy, or send it with `pelago apply -f FILE --all-clusters`"
	case !f.binding.Exists() && claimed == nil:
		return "a policy selects it, but it is not claimed: does pelago-hub run?"
	case !f.binding.Exists():
		return "it is claimed, but there is no binding: does pelago-hub run? Events of the object may say more."
	case f.binding.Spec.Placement != nil && workv1alpha2.ReadDecision(f.binding.GetAnnotations()) == nil:
		if s := f.binding.Spec.SchedulerName; s != "" && s != policyv1alpha1.DefaultSchedulerName {
			return fmt.Sprintf("nothing is recorded of a decision: that is up to the scheduler %q", s)
		}
		if s := f.binding.Spec.Suspension; s != nil && ptr.Deref(s.Scheduling, false) {
			return "scheduling is suspended: remove spec.suspension.scheduling of the binding"
		}
		return "nothing is decided yet: does pelago-hub run?"
	}
	return ""
}

// explainClusters has a row for each cluster that is wanted or has a Work.
func (f *Subject) explainClusters() []explainedCluster {
	rows := map[string]*explainedCluster{}
	row := func(name, why string) *explainedCluster {
		if rows[name] == nil {
			rows[name] = &explainedCluster{Cluster: name, Why: why, State: stateNoWork}
		}
		return rows[name]
	}
	spec := f.binding.Spec
	for _, c := range spec.Clusters {
		row(c.Name, "chosen").Replicas = c.Replicas
	}
	for _, t := range spec.GracefulEvictionTasks {
		if r := row(t.FromCluster, ""); r.Why == "" {
			r.Why = "being left: " + t.Message
		} else {
			r.Why += ", keeps its former replicas: " + t.Message
		}
	}
	for _, by := range spec.RequiredBy {
		for _, c := range by.Clusters {
			row(c.Name, "required by the template of binding "+by.Name)
		}
	}
	for i := range f.works {
		w := &f.works[i]
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok {
			f.explainWork(row(cluster, "not wanted any more"), w)
		}
	}
	var out []explainedCluster
	for _, r := range rows {
		f.explainCluster(r)
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b explainedCluster) int { return strings.Compare(a.Cluster, b.Cluster) })
	return out
}

// explainWork fills in the state of a Work.
func (f *Subject) explainWork(r *explainedCluster, w *workv1alpha1.Work) {
	r.Work = w.Name
	if reported := w.Status.ManifestStatuses; len(reported) > 0 {
		r.Health = string(reported[0].Health)
	}
	applied := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied)
	switch {
	case w.DeletionTimestamp != nil:
		r.State = stateLeaving
	case ptr.Deref(w.Spec.SuspendDispatching, false):
		r.State = stateSuspended
	case applied == nil || applied.ObservedGeneration < w.Generation:
		r.State = stateWaiting
	case applied.Status != metav1.ConditionTrue:
		r.State = stateFailed
		r.Problems = append(r.Problems, withRemedy(cmp.Or(applied.Message, applied.Reason), r.Cluster))
	default:
		r.State = stateApplied
	}
}

// explainCluster adds problems of the cluster itself, and the overrides for it.
func (f *Subject) explainCluster(r *explainedCluster) {
	i := slices.IndexFunc(f.clusters, func(c clusterv1alpha1.Cluster) bool { return c.Name == r.Cluster })
	if i < 0 {
		r.Problems = append(r.Problems, "the hub has no cluster of this name: join it again, or it is about to be forgotten")
		return
	}
	cluster := &f.clusters[i]
	if ready := meta.FindStatusCondition(cluster.Status.Conditions, clusterv1alpha1.ConditionReady); r.State != stateApplied &&
		(ready == nil || ready.Status != metav1.ConditionTrue) {
		why := "it has never reported"
		if ready != nil {
			why = cmp.Or(strings.TrimSpace(ready.Reason+" "+ready.Message), "no reason")
		}
		r.Problems = append(r.Problems, fmt.Sprintf("the cluster is not ready: %s. See `kubectl describe clusters.%s %s`",
			why, clusterv1alpha1.GroupVersion.Group, r.Cluster))
	}
	_, applied, err := policy.ApplyOverrides(f.template, cluster, f.acceptedOverrides())
	if err != nil {
		r.Problems = append(r.Problems, fmt.Sprintf("%v. Correct this policy: the cluster gets no change until then", err))
	}
	for _, s := range applied.Skipped {
		r.Problems = append(r.Problems, fmt.Sprintf("%v. Correct it, or select the objects that have this path", s))
	}
	for _, o := range applied.Cluster {
		r.Overrides = append(r.Overrides, "ClusterOverridePolicy "+o.PolicyName)
	}
	for _, o := range applied.Namespaced {
		r.Overrides = append(r.Overrides, "OverridePolicy "+o.PolicyName)
	}
	r.Overrides = slices.Compact(r.Overrides) // of several rules of one policy
}

// acceptedOverrides leaves out the policies that are not applied because they are not valid.
func (f *Subject) acceptedOverrides() policy.OverridePolicies {
	refused := func(s policyv1alpha1.PolicyStatus) bool {
		return meta.IsStatusConditionFalse(s.Conditions, policyv1alpha1.ConditionAccepted)
	}
	return policy.OverridePolicies{
		Cluster: slices.DeleteFunc(slices.Clone(f.overrides.Cluster),
			func(p policyv1alpha1.ClusterOverridePolicy) bool { return refused(p.Status) }),
		Namespaced: slices.DeleteFunc(slices.Clone(f.overrides.Namespaced),
			func(p policyv1alpha1.OverridePolicy) bool { return refused(p.Status) }),
	}
}

const installKind = "Install the CustomResourceDefinition in cluster %s, or send that with a policy of its own."

// remedies are for messages of the members' API servers; ours contain their remedies.
var remedies = []struct{ message, remedy string }{
	{"forbidden: exceeded quota", "Raise the ResourceQuota in cluster %s, or ask for less."},
	{"forbidden", "Give the account by which the hub writes cluster %s the right to it, by `pelago join` again."},
	{"no matches for kind", installKind},
	{"could not find the requested resource", installKind},
	{"namespaces", "Make the namespace in cluster %s, or take it off the ones that are not sent."},
	{"field is immutable", "Delete the object in cluster %s, so that it is created again, or revert the change."},
	{"is invalid", "Correct the template, or the override for cluster %s that makes it so."},
	{"denied the request", "An admission webhook of cluster %s refuses it: ask who runs it."},
}

// withRemedy adds the remedy to a message of a member's API server.
func withRemedy(message, cluster string) string {
	for _, r := range remedies {
		if strings.Contains(strings.ToLower(message), r.message) {
			return message + ". " + fmt.Sprintf(r.remedy, cluster)
		}
	}
	return message
}

// PrintExplanation writes it as text.
func PrintExplanation(w io.Writer, e Explanation, wide bool, now time.Time) error {
	fmt.Fprintf(w, "%s %s\n\n", e.Kind, manifests.Title(client.ObjectKey{Namespace: e.Namespace, Name: e.Name}))
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
		if d.Failover != "" {
			fmt.Fprintf(w, "Failover:  %s\n", d.Failover)
		}
		if d.Failback != "" {
			fmt.Fprintf(w, "Failback:  %s\n", d.Failback)
		}
	}
	if e.Near != nil {
		e.Near.print(w)
	}
	printScores(w, e.Scores)
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
	t := Table{Header: []string{"CLUSTER", "REPLICAS", "STATE", "HEALTH", "OVERRIDES", "WHY"}, Wide: []string{"WORK"}, Empty: "In no cluster."}
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
	if f.binding.Exists() {
		d.Conditions, d.Reports = f.binding.Status.Conditions, f.binding.Status.AggregatedStatus
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

// reported is the status of a cluster, "-" if none exists.
func reported(item workv1alpha2.AggregatedStatusItem) string {
	if item.Status == nil {
		return "-"
	}
	return string(item.Status.Raw)
}
