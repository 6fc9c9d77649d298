package work

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
)

// Overrides reads from a cache the override policies that select an object and are valid. The
// others stop nothing: control/hub/policy reports those that are not valid.
func Overrides(ctx context.Context, cache client.Reader, obj *unstructured.Unstructured) (policy.OverridePolicies, error) {
	var out policy.OverridePolicies
	var wide policyv1alpha1.ClusterOverridePolicyList
	// they are only read
	if err := cache.List(ctx, &wide, client.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("list ClusterOverridePolicies: %w", err)
	}
	for _, p := range wide.Items {
		if applies(p.Spec, "", obj) {
			out.Cluster = append(out.Cluster, p)
		}
	}
	if obj.GetNamespace() == "" {
		return out, nil
	}
	var own policyv1alpha1.OverridePolicyList
	if err := cache.List(ctx, &own, client.InNamespace(obj.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("list the OverridePolicies of namespace %s: %w", obj.GetNamespace(), err)
	}
	for _, p := range own.Items {
		if applies(p.Spec, p.Namespace, obj) {
			out.Namespaced = append(out.Namespaced, p)
		}
	}
	return out, nil
}

// applies reports whether an override policy selects an object and is valid. Without selectors it
// selects everything.
func applies(spec policyv1alpha1.OverrideSpec, namespace string, obj policy.Object) bool {
	if len(spec.ResourceSelectors) > 0 {
		precision, err := policy.Match(spec.ResourceSelectors, namespace, obj)
		if err != nil || precision == policy.NoMatch { // an error is one that Validate finds, too
			return false
		}
	}
	return len(spec.Validate(namespace)) == 0
}
