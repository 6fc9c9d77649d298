package kinds

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// What a reflected status says besides the status: whether the member's controller has seen the object, and of which generation of
// the template the object is.
const (
	fieldObservedGeneration = "observedGeneration"
	fieldGeneration         = "generation"
	fieldTemplateGeneration = "resourceTemplateGeneration"
)

func wholeStatus(observed *unstructured.Unstructured) (map[string]any, error) {
	status, _, err := unstructured.NestedMap(observed.Object, "status")
	return status, err
}

// fields reflects the named fields of the status.
func fields(names ...string) func(*unstructured.Unstructured) (map[string]any, error) {
	return func(observed *unstructured.Unstructured) (map[string]any, error) {
		status, err := wholeStatus(observed)
		if err != nil || status == nil {
			return nil, err
		}
		out := map[string]any{}
		for _, name := range names {
			if value, there := status[name]; there {
				out[name] = value
			}
		}
		return out, nil
	}
}

// reflect returns the counts, and what observedGeneration needs.
func (c counts[T]) reflect(observed *unstructured.Unstructured) (map[string]any, error) {
	out, err := fields(append([]string{fieldObservedGeneration}, c...)...)(observed)
	if err != nil || out == nil {
		return nil, err
	}
	out[fieldGeneration] = observed.GetGeneration()
	if text, there := observed.GetAnnotations()[workv1alpha2.AnnotationTemplateGeneration]; there {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", workv1alpha2.AnnotationTemplateGeneration, err)
		}
		out[fieldTemplateGeneration] = n
	}
	return out, nil
}

// reflectBudget: the counts, and the pods that are about to go.
func reflectBudget(observed *unstructured.Unstructured) (map[string]any, error) {
	out, err := budgetCounts.reflect(observed)
	if err != nil || out == nil {
		return nil, err
	}
	pods, err := fields("disruptedPods")(observed)
	if err != nil {
		return nil, err
	}
	for k, v := range pods {
		out[k] = v
	}
	return out, nil
}
