package kinds

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// counts names the fields of a status, whose Go type is T, that are summed up over the clusters.
type counts[T any] []string

// aggregate returns the sums, with observedGeneration.
func (c counts[T]) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	sums := map[string]int64{}
	caughtUp := true
	for i := range items {
		status, err := decode[map[string]any](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			caughtUp = false
			continue
		}
		for _, name := range c {
			n, _, err := unstructured.NestedInt64(*status, name)
			if err != nil {
				return nil, fmt.Errorf("cluster %s: %w", items[i].ClusterName, err)
			}
			sums[name] += n
		}
		seen, err := current(*status, template.GetGeneration())
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", items[i].ClusterName, err)
		}
		caughtUp = caughtUp && seen
	}
	out := map[string]any{}
	for _, name := range c {
		out[name] = sums[name]
	}
	generation := template.GetGeneration()
	if !caughtUp {
		generation, _, _ = unstructured.NestedInt64(template.Object, "status", fieldObservedGeneration) // 0 where there is none
	}
	if generation != 0 {
		out[fieldObservedGeneration] = generation
	}
	return canonical[T](out)
}

// current says whether a reflected status is of this generation of the template, and the member's controller has seen that.
func current(status map[string]any, generation int64) (bool, error) {
	var n [3]int64
	for i, name := range []string{fieldObservedGeneration, fieldGeneration, fieldTemplateGeneration} {
		var err error
		if n[i], err = generationAt(status, name); err != nil {
			return false, err
		}
	}
	return n[0] >= n[1] && n[2] >= generation, nil
}

// decode reads what a cluster reflects; nil if it has not yet.
func decode[T any](item *workv1alpha2.AggregatedStatusItem) (*T, error) {
	if item.Status == nil || len(item.Status.Raw) == 0 {
		return nil, nil
	}
	out := new(T)
	if err := json.Unmarshal(item.Status.Raw, out); err != nil {
		return nil, fmt.Errorf("status of cluster %s: %w", item.ClusterName, err)
	}
	return out, nil
}

// canonical brings a status into the form in which the API server returns it: zero fields are there or not as its type says.
func canonical[T any](status map[string]any) (map[string]any, error) {
	t, err := typed[T](status)
	if err != nil {
		return nil, err
	}
	return untyped(t)
}

func untyped(status any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(status)
}

// aggregateBudget adds the pods that are about to go, each as cluster/pod.
func aggregateBudget(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	out, err := budgetCounts.aggregate(template, items)
	if err != nil {
		return nil, err
	}
	pods := map[string]any{}
	for i := range items {
		status, err := decode[policyv1.PodDisruptionBudgetStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		for name, at := range status.DisruptedPods {
			pods[items[i].ClusterName+"/"+name] = at.ToUnstructured()
		}
	}
	if len(pods) > 0 {
		out["disruptedPods"] = pods
	}
	return out, nil
}

// aggregateService lists the addresses of all load balancers. One without a host name gets its cluster's, to tell whose it is.
func aggregateService(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	kind, _, err := unstructured.NestedString(template.Object, "spec", "type")
	if err != nil {
		return nil, err
	}
	var out corev1.ServiceStatus
	if kind != string(corev1.ServiceTypeLoadBalancer) {
		return untyped(&out)
	}
	for i := range items {
		status, err := decode[corev1.ServiceStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		for _, in := range status.LoadBalancer.Ingress {
			if in.Hostname == "" {
				in.Hostname = items[i].ClusterName
			}
			out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, in)
		}
	}
	return untyped(&out)
}

// aggregateIngress does the same for an Ingress.
func aggregateIngress(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	var out networkingv1.IngressStatus
	for i := range items {
		status, err := decode[networkingv1.IngressStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		for _, in := range status.LoadBalancer.Ingress {
			if in.Hostname == "" {
				in.Hostname = items[i].ClusterName
			}
			out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, in)
		}
	}
	return untyped(&out)
}
