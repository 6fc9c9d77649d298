package kinds

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// conditions names the types of conditions of a kind that are aggregated.
type conditions struct {
	good []string // True if True in all clusters
	bad  []string // True if True in one
}

var (
	// what kubectl wait, kstatus (Flux, Helm) and Argo CD read
	deploymentConditions = conditions{good: []string{"Available", "Progressing"}, bad: []string{"ReplicaFailure"}}
	replicaSetConditions = conditions{bad: []string{"ReplicaFailure"}}
	podConditions        = conditions{good: []string{"ContainersReady", "Initialized", "PodScheduled", "Ready"}}
	autoscalerConditions = conditions{good: []string{"AbleToScale", "ScalingActive"}, bad: []string{"ScalingLimited"}}
	budgetConditions     = conditions{good: []string{"DisruptionAllowed"}}
)

// maxConditionMessage bounds the message of an aggregated condition, in bytes.
const maxConditionMessage = 1024

// reflect adds the conditions to a reflected status, nil if there is none. It leaves out what
// changes with each step of a rollout, and messages of what is as it should be: they would be a
// write of the Work each.
func (c conditions) reflect(status map[string]any, observed *unstructured.Unstructured) (map[string]any, error) {
	if status == nil {
		return nil, nil
	}
	list, _, err := unstructured.NestedSlice(observed.Object, "status", "conditions")
	if err != nil {
		return nil, err
	}
	var out []any
	for _, of := range list {
		m, _ := of.(map[string]any) // nil has no type
		t, _ := m["type"].(string)  // empty if it is absent
		bad := slices.Contains(c.bad, t)
		if !bad && !slices.Contains(c.good, t) {
			continue
		}
		one := map[string]any{}
		for _, field := range []string{"type", "status", "reason", "lastTransitionTime"} {
			if value, there := m[field]; there {
				one[field] = value
			}
		}
		if message, there := m["message"]; there && m["status"] != goodStatus(bad) {
			one["message"] = message
		}
		out = append(out, one)
	}
	if len(out) > 0 {
		status["conditions"] = out
	}
	return status, nil
}

func goodStatus(bad bool) string {
	if bad {
		return "False"
	}
	return "True"
}

// aggregate are the conditions of a template, none if no cluster reports one.
func (c conditions) aggregate(template *unstructured.Unstructured, all []reported) ([]any, error) {
	of := make([]reported, len(all))
	for i, r := range all {
		of[i] = reported{cluster: r.cluster}
		if r.status == nil {
			continue
		}
		list, _, err := unstructured.NestedSlice(r.status, "conditions")
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", r.cluster, err)
		}
		of[i].status = map[string]any{"conditions": slices.DeleteFunc(list, func(x any) bool {
			m, _ := x.(map[string]any) // nil has no type
			t, _ := m["type"].(string) // empty if it is absent
			return !slices.Contains(c.good, t) && !slices.Contains(c.bad, t)
		})}
	}
	merged, err := mergeConditions(template, of, c.bad)
	if err != nil {
		return nil, err
	}
	list, _ := merged.([]any) // it returns a list
	for _, x := range list {
		m, _ := x.(map[string]any)          // with entries of this type
		t, _ := m["type"].(string)          // empty if it is absent
		message, _ := m["message"].(string) // empty if it is absent
		if m["message"] = Shorten(message, maxConditionMessage); m["status"] == goodStatus(slices.Contains(c.bad, t)) {
			m["message"] = fmt.Sprintf("in all of %d clusters", len(all))
		}
	}
	return list, nil
}

// with returns the operations of counts, and of conditions beside them.
func (c counts[T]) with(of conditions) (
	func(*unstructured.Unstructured) (map[string]any, error),
	func(*unstructured.Unstructured, []workv1alpha2.AggregatedStatusItem) (map[string]any, error),
) {
	reflect := func(observed *unstructured.Unstructured) (map[string]any, error) {
		status, err := c.reflect(observed)
		if err != nil {
			return nil, err
		}
		return of.reflect(status, observed)
	}
	aggregate := func(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
		all, err := untypedReports(items)
		if err != nil {
			return nil, err
		}
		status, err := sumReports(template, all, c)
		if err != nil {
			return nil, err
		}
		list, err := of.aggregate(template, all)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			status["conditions"] = list
		}
		complete(list, all)
		out, err := typed[T](status)
		if err != nil {
			return nil, err
		}
		return untyped(out)
	}
	return reflect, aggregate
}

// complete reports in the condition Progressing of a Deployment that the new ReplicaSet is
// available only if all clusters report it: for kubectl, kstatus and Argo CD, this reason ends a
// rollout.
func complete(list []any, all []reported) {
	for _, x := range list {
		m, _ := x.(map[string]any) // aggregated
		if m["type"] != string(appsv1.DeploymentProgressing) || m["reason"] != "NewReplicaSetAvailable" {
			continue
		}
		for _, r := range all {
			of, _, _ := unstructured.NestedSlice(r.status, "conditions") // was read before
			for _, y := range of {
				// of another type it has no fields
				if c, _ := y.(map[string]any); c["type"] == m["type"] && c["status"] == m["status"] && c["reason"] != m["reason"] {
					m["reason"], m["message"] = c["reason"], r.cluster+" is not complete"
				}
			}
		}
	}
}
