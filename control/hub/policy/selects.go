package policy

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Precision is how precisely an object is selected; the more precise policy goes first.
type Precision int

const (
	NoMatch Precision = iota
	Kind              // all of its kind, or everything
	Labels            // by its labels
	Name              // by its name
)

// Object is what is selected.
type Object interface {
	metav1.Object
	GroupVersionKind() schema.GroupVersionKind
}

// By returns the precision of the selector that selects the object most precisely. A policy with a namespace selects in it alone.
func Match(selectors []policyv1alpha1.ResourceSelector, namespace string, obj Object) (Precision, error) {
	best := NoMatch
	for i := range selectors {
		p, err := by(&selectors[i], namespace, obj)
		if err != nil {
			return NoMatch, fmt.Errorf("resourceSelectors[%d]: %w", i, err)
		}
		best = max(best, p)
	}
	return best, nil
}

func by(s *policyv1alpha1.ResourceSelector, namespace string, obj Object) (Precision, error) {
	if namespace == "" {
		namespace = s.Namespace
	}
	apiVersion, kind := obj.GroupVersionKind().ToAPIVersionAndKind()
	switch {
	case s.APIVersion != apiVersion, s.Kind != kind, namespace != "" && namespace != obj.GetNamespace():
		return NoMatch, nil
	case s.Name != "":
		if s.Name != obj.GetName() {
			return NoMatch, nil
		}
		return Name, nil
	case s.LabelSelector == nil:
		return Kind, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s.LabelSelector)
	if err != nil {
		return NoMatch, fmt.Errorf("labelSelector: %w", err)
	}
	if !selector.Matches(labels.Set(obj.GetLabels())) {
		return NoMatch, nil
	}
	return Labels, nil
}
