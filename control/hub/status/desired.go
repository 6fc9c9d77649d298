package status

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// maxItemStatus bounds the status of one cluster in bytes: with a larger one the binding could
// exceed what the API server stores, and no cluster's status would be written any more.
const maxItemStatus = 64 << 10

// maxStatus bounds those of all clusters together, of the 1.5 MiB that an object may have.
const maxStatus = 768 << 10

// Bounds of the message of FullyApplied.
const (
	namedClusters  = 5   // the others are counted
	messagePerName = 300 // bytes for each cluster
)

// Desired is the status of a binding. works are all of the binding, in no order; unready says of a
// cluster why it is not ready, "" if it is, and is asked only where that matters; unmade is that of
// binding.Unmade. Conditions of other types stay.
func Desired(
	b binding.Binding, works []*workv1alpha1.Work, unmade map[string]string, unready func(cluster string) string, now metav1.Time,
) (workv1alpha2.ResourceBindingStatus, error) {
	out := *b.Status.DeepCopy()
	if err := schedule(&out, b); err != nil {
		return out, err
	}
	out.AggregatedStatus = items(b, works, unready)
	problems := append(purging(b.Spec, works, unready), outstanding(b.Spec, out.AggregatedStatus, unmade)...)
	condition := metav1.Condition{
		Type: workv1alpha2.ConditionFullyApplied, Status: metav1.ConditionTrue, Reason: workv1alpha2.ReasonFullyAppliedSuccess,
		Message:            fmt.Sprintf("applied in %d clusters", len(out.AggregatedStatus)),
		ObservedGeneration: b.GetGeneration(), LastTransitionTime: now,
	}
	if len(problems) > 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, workv1alpha2.ReasonFullyAppliedFailed
		condition.Message = listed(problems)
	}
	meta.SetStatusCondition(&out.Conditions, condition)
	rollout(&out, b, now)
	return out, nil
}

// rollout sets the condition of a rollout that has not reached all clusters.
func rollout(out *workv1alpha2.ResourceBindingStatus, b binding.Binding, now metav1.Time) {
	r := workv1alpha2.ReadRollout(b.GetAnnotations())
	if r == nil || r.Reason == "" {
		meta.RemoveStatusCondition(&out.Conditions, workv1alpha2.ConditionRollout)
		return
	}
	meta.SetStatusCondition(&out.Conditions, metav1.Condition{Type: workv1alpha2.ConditionRollout, Status: metav1.ConditionFalse,
		Reason: r.Reason, Message: r.Message, LastTransitionTime: now, ObservedGeneration: b.GetGeneration()})
}

// purging names the clusters whose copy purge mode Directly removes before anything is written
// elsewhere.
func purging(spec *workv1alpha2.ResourceBindingSpec, works []*workv1alpha1.Work, unready func(cluster string) string) (out []string) {
	for _, task := range spec.GracefulEvictionTasks {
		there := slices.ContainsFunc(works, func(w *workv1alpha1.Work) bool {
			cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace)
			return cluster == task.FromCluster && w.DeletionTimestamp != nil
		})
		if !there || task.PurgeMode.Current() != policyv1alpha1.PurgeModeDirectly || slices.Contains(wanted(spec), task.FromCluster) {
			continue
		}
		why := "it is being removed"
		if not := unready(task.FromCluster); not != "" {
			why = "the cluster " + not
		}
		out = append(out, fmt.Sprintf("%s: purge mode Directly removes this copy before anything is written elsewhere, and %s", task.FromCluster, why))
	}
	return out
}

// interpreted lists the rules of the kind that fail: on the members' objects (as reported in their
// Works) and on the template.
func interpreted(out *workv1alpha2.ResourceBindingStatus, b binding.Binding, works []*workv1alpha1.Work, failure error, now metav1.Time) {
	var problems []string
	for _, w := range works {
		c := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionInterpreted)
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok && w.DeletionTimestamp == nil && c != nil && c.Status == metav1.ConditionFalse {
			problems = append(problems, cluster+": "+c.Message)
		}
	}
	slices.Sort(problems)
	if failure != nil {
		problems = append([]string{failure.Error()}, problems...)
	}
	if len(problems) == 0 {
		meta.RemoveStatusCondition(&out.Conditions, workv1alpha1.ConditionInterpreted)
		return
	}
	meta.SetStatusCondition(&out.Conditions, metav1.Condition{
		Type: workv1alpha1.ConditionInterpreted, Status: metav1.ConditionFalse, Reason: workv1alpha1.ReasonRuleFailed,
		Message: listed(problems), ObservedGeneration: b.GetGeneration(), LastTransitionTime: now,
	})
}

// schedule sets the fields that come from the record of the decision. A binding without placement
// is a dependent's and has no decision. Without a record everything stays unchanged: it may be
// another scheduler's.
func schedule(out *workv1alpha2.ResourceBindingStatus, b binding.Binding) error {
	if b.Spec.Placement == nil {
		meta.RemoveStatusCondition(&out.Conditions, workv1alpha2.ConditionScheduled)
		out.SchedulerObservedGeneration, out.SchedulerObservedAffinityName, out.LastScheduledTime = 0, "", nil
		return nil
	}
	d := workv1alpha2.ReadDecision(b.GetAnnotations())
	if d == nil {
		return nil
	}
	hash, err := workv1alpha2.SpecHash(b.Spec)
	if err != nil {
		return err
	}
	condition := metav1.Condition{
		Type: workv1alpha2.ConditionScheduled, Status: metav1.ConditionFalse, Reason: d.Reason, Message: d.Message,
		LastTransitionTime: *seconds(d.Time),
	}
	if d.Reason == workv1alpha2.ReasonSuccess {
		condition.Status = metav1.ConditionTrue
	}
	if d.For == hash {
		out.SchedulerObservedGeneration = b.GetGeneration()
	}
	condition.ObservedGeneration = out.SchedulerObservedGeneration
	meta.SetStatusCondition(&out.Conditions, condition)
	pending := func(kind, reason, message string) {
		if message == "" {
			meta.RemoveStatusCondition(&out.Conditions, kind)
			return
		}
		meta.SetStatusCondition(&out.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			LastTransitionTime: *seconds(d.Time), ObservedGeneration: out.SchedulerObservedGeneration})
	}
	pending(workv1alpha2.ConditionFailover, workv1alpha2.ReasonHeld, d.Held)
	pending(workv1alpha2.ConditionFailback, workv1alpha2.ReasonAwaited, ptr.Deref(d.Failback, workv1alpha2.Failback{}).Message)
	out.SchedulerObservedAffinityName = d.Term
	out.LastScheduledTime = nil
	if !d.Scheduled.IsZero() {
		out.LastScheduledTime = seconds(d.Scheduled)
	}
	return nil
}

// seconds is the time as a status keeps it.
func seconds(t metav1.MicroTime) *metav1.Time { return ptr.To(metav1.NewTime(t.Truncate(time.Second))) }

// items is one for each wanted cluster, and one for each other whose Work is not being deleted, in
// the order of the clusters.
func items(b binding.Binding, works []*workv1alpha1.Work, unready func(cluster string) string) []workv1alpha2.AggregatedStatusItem {
	var out []workv1alpha2.AggregatedStatusItem
	for _, w := range works {
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok && w.DeletionTimestamp == nil {
			out = append(out, item(b, w, cluster, unready))
		}
	}
	slices.SortFunc(out, func(a, b workv1alpha2.AggregatedStatusItem) int {
		return cmp.Or(cmp.Compare(a.ClusterName, b.ClusterName), compareBool(a.Applied, b.Applied))
	})
	// A cluster may have two Works if a taken name has become free. The one that is not applied yet
	// counts.
	out = slices.CompactFunc(out, func(a, b workv1alpha2.AggregatedStatusItem) bool { return a.ClusterName == b.ClusterName })
	there := out
	for _, cluster := range wanted(b.Spec) {
		if _, ok := slices.BinarySearchFunc(there, cluster, byCluster); !ok {
			out = append(out, workv1alpha2.AggregatedStatusItem{
				ClusterName: cluster, Health: workv1alpha2.ResourceUnknown, AppliedMessage: waiting(b.Spec, cluster, unready),
			})
		}
	}
	slices.SortFunc(out, func(a, b workv1alpha2.AggregatedStatusItem) int { return byCluster(a, b.ClusterName) })
	return out
}

// omit leaves out the largest statuses of clusters, until the others have at most so many bytes
// together. Templates are summed up from all of them before that.
func omit(items []workv1alpha2.AggregatedStatusItem, most int) {
	size := func(i int) int {
		if items[i].Status == nil {
			return 0
		}
		return len(items[i].Status.Raw)
	}
	total := 0
	order := make([]int, len(items))
	for i := range items {
		order[i] = i
		total += size(i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(b), size(a)) })
	for _, i := range order {
		if total <= most {
			return
		}
		n := size(i)
		total -= n
		items[i].Status = nil
		items[i].AppliedMessage = cmp.Or(items[i].AppliedMessage, fmt.Sprintf("the status is omitted: it has %d bytes, at most %d are kept for all clusters together; "+
			"read it in the cluster, or reduce it by a rule of its kind", n, most))
	}
}

func byCluster(it workv1alpha2.AggregatedStatusItem, cluster string) int {
	return cmp.Compare(it.ClusterName, cluster)
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// item is the entry of a Work in the aggregated status. While a member reports nothing the entry
// keeps its last report.
func item(
	b binding.Binding, w *workv1alpha1.Work, cluster string, unready func(cluster string) string,
) workv1alpha2.AggregatedStatusItem {
	out := workv1alpha2.AggregatedStatusItem{ClusterName: cluster, Health: workv1alpha2.ResourceUnknown}
	var health workv1alpha1.ResourceHealth
	// the hub puts one manifest into a Work
	if reported := w.Status.ManifestStatuses; len(reported) > 0 {
		health = reported[0].Health
		if status := reported[0].Status; status != nil && len(status.Raw) > maxItemStatus {
			out.AppliedMessage = fmt.Sprintf("the status is omitted: it has %d bytes, at most %d are kept for a cluster; read it in the cluster, "+
				"or reduce it by a rule of its kind", len(status.Raw), maxItemStatus)
		} else {
			out.Status = status.DeepCopy()
		}
	}
	applied := meta.FindStatusCondition(w.Status.Conditions, workv1alpha1.ConditionApplied)
	switch {
	case applied == nil || applied.ObservedGeneration < w.Generation || !sameBinding(b, w) || !sameTemplate(b, w):
		out.AppliedMessage = waiting(b.Spec, cluster, unready)
	case applied.Status != metav1.ConditionTrue:
		out.AppliedMessage = cmp.Or(applied.Message, applied.Reason)
	default:
		out.Applied = true
		if health != "" {
			out.Health = workv1alpha2.ResourceHealth(health)
		}
		if u := w.Status.Unschedulable; u != nil {
			out.UnschedulablePods, out.UnschedulableSince = u.Pods, u.Since.DeepCopy()
		}
	}
	return out
}

// sameBinding is false for a Work that a former binding of this name has left and that is not taken
// over yet.
func sameBinding(b binding.Binding, w *workv1alpha1.Work) bool {
	for _, label := range []string{workv1alpha2.LabelBindingID, workv1alpha2.LabelClusterBindingID} {
		if b.GetLabels()[label] != w.Labels[label] {
			return false
		}
	}
	return true
}

// sameTemplate is false for a Work rendered from another version of the template than the
// binding's: its status refers to other content.
func sameTemplate(b binding.Binding, w *workv1alpha1.Work) bool {
	return b.GetAnnotations()[workv1alpha2.AnnotationTemplate] == w.Annotations[workv1alpha2.AnnotationTemplate]
}

// waiting is the reason why nothing is known of a cluster yet.
func waiting(spec *workv1alpha2.ResourceBindingSpec, cluster string, unready func(cluster string) string) string {
	if spec.Suspension.Suspends(cluster) {
		return "not applied: dispatching is suspended"
	}
	if why := unready(cluster); why != "" {
		return "not applied yet: the cluster " + why
	}
	return "not applied yet"
}

// outstanding lists what is missing until exactly the wanted clusters have the object, as `cluster:
// what`.
func outstanding(spec *workv1alpha2.ResourceBindingSpec, items []workv1alpha2.AggregatedStatusItem, unmade map[string]string) []string {
	want := wanted(spec)
	if len(want) == 0 {
		return []string{"no cluster is chosen"}
	}
	var out []string
	if why := unmade[""]; why != "" {
		out = append(out, "all clusters: "+why)
	}
	for _, it := range items {
		_, isWanted := slices.BinarySearch(want, it.ClusterName)
		switch {
		case !isWanted:
			out = append(out, it.ClusterName+": still there, but not wanted any more")
		case unmade[it.ClusterName] != "":
			out = append(out, it.ClusterName+": "+unmade[it.ClusterName])
		case !it.Applied:
			out = append(out, it.ClusterName+": "+it.AppliedMessage)
		}
	}
	slices.Sort(out)
	return out
}

// listed joins the messages of the first clusters.
func listed(problems []string) string {
	more := len(problems) - namedClusters
	var out []string
	for _, p := range problems[:min(len(problems), namedClusters)] {
		if len(p) > messagePerName {
			p = strings.ToValidUTF8(p[:messagePerName], "") + " …"
		}
		out = append(out, p)
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(out, "; ")
}

// wanted are the clusters of the binding and of those that require it, sorted.
func wanted(spec *workv1alpha2.ResourceBindingSpec) []string {
	var out []string
	for _, c := range spec.Clusters {
		out = append(out, c.Name)
	}
	for _, by := range spec.RequiredBy {
		for _, c := range by.Clusters {
			out = append(out, c.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Answers returns the items of Desired from which the template's status is computed: those of the
// wanted clusters. The status of a cluster always counts, but the template generation in it only if
// the cluster has applied the current Work. A suspended cluster is not waited for: if it has
// reported, it counts as having this generation. Without clusters and without a successful decision
// an empty item is added, so that observedGeneration waits.
func Answers(b binding.Binding, items []workv1alpha2.AggregatedStatusItem, generation int64) ([]workv1alpha2.AggregatedStatusItem, error) {
	var out []workv1alpha2.AggregatedStatusItem
	var err error
	want := wanted(b.Spec)
	for _, it := range items {
		_, isWanted := slices.BinarySearch(want, it.ClusterName)
		switch {
		case !isWanted, b.Spec.Suspension.Suspends(it.ClusterName) && it.Status == nil:
			continue
		case b.Spec.Suspension.Suspends(it.ClusterName):
			it.Status, err = attest(it.Status, func(status map[string]any) {
				status[fieldObservedGeneration] = status[fieldGeneration]
				status[fieldTemplateGeneration] = generation
			})
		case !it.Applied:
			it.Status, err = attest(it.Status, func(status map[string]any) { delete(status, fieldTemplateGeneration) })
		}
		if err != nil {
			return nil, fmt.Errorf("read the status of cluster %s: %w", it.ClusterName, err)
		}
		out = append(out, it)
	}
	if d := workv1alpha2.ReadDecision(b.GetAnnotations()); len(want) == 0 && (d == nil || d.Reason != workv1alpha2.ReasonSuccess) {
		out = append(out, workv1alpha2.AggregatedStatusItem{})
	}
	return out, nil
}

// Generations in a reflected status, with Karmada's names: the one that the member's controller has
// observed, that of the member's object, and that of the template from which it was made.
const (
	fieldObservedGeneration = "observedGeneration"
	fieldGeneration         = "generation"
	fieldTemplateGeneration = "resourceTemplateGeneration"
)

// attest changes the generations in a reflected status. A status without generations is returned
// unchanged.
func attest(status *runtime.RawExtension, change func(map[string]any)) (*runtime.RawExtension, error) {
	if status == nil || len(status.Raw) == 0 {
		return status, nil
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(status.Raw, &fields); err != nil {
		return nil, err
	}
	if _, there := fields[fieldGeneration]; !there {
		return status, nil
	}
	changed := map[string]any{}
	for name, value := range fields {
		changed[name] = value
	}
	change(changed)
	raw, err := json.Marshal(changed)
	if err != nil {
		return nil, err
	}
	return &runtime.RawExtension{Raw: raw}, nil
}
