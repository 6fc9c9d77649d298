package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/scheduler/affinity"
)

// Item is one applied rule, in the form that the annotations of a Work keep.
type OverrideItem struct {
	PolicyName string                    `json:"policyName"`
	Overriders policyv1alpha1.Overriders `json:"overriders"`
}

// AppliedOverrides are the rules that were applied, in order: of cluster-wide policies, then of those of the namespace.
type AppliedOverrides struct {
	Cluster, Namespaced []OverrideItem
	// Skipped are the rules whose path the object lacks.
	Skipped []SkippedRule
}

// SkippedRule is a rule of an override policy that was not applied to an object.
type SkippedRule struct {
	Namespace, Policy string // Namespace is empty for a ClusterOverridePolicy
	Reason            string // names rule, object and path
}

func (s SkippedRule) String() string {
	if s.Namespace == "" {
		return fmt.Sprintf("ClusterOverridePolicy %s skips a rule for %s", s.Policy, s.Reason)
	}
	return fmt.Sprintf("OverridePolicy %s/%s skips a rule for %s", s.Namespace, s.Policy, s.Reason)
}

// Annotations of a Work that record the applied rules; none if no rule was applied.
func (a AppliedOverrides) Annotations() (map[string]string, error) {
	out := map[string]string{}
	for key, items := range map[string][]OverrideItem{
		policyv1alpha1.AnnotationAppliedClusterOverrides: a.Cluster, policyv1alpha1.AnnotationAppliedOverrides: a.Namespaced,
	} {
		if len(items) == 0 {
			continue
		}
		raw, err := json.Marshal(items)
		if err != nil {
			return nil, fmt.Errorf("note the applied overrides: %w", err)
		}
		out[key] = string(raw)
	}
	return out, nil
}

// OverridePolicies are the override policies of the hub.
type OverridePolicies struct {
	Cluster    []policyv1alpha1.ClusterOverridePolicy
	Namespaced []policyv1alpha1.OverridePolicy
}

// overridePolicy is one of either kind.
type overridePolicy struct {
	title, name, namespace string
	spec                   policyv1alpha1.OverrideSpec
	precision              Precision
}

// ApplyOverrides returns a copy of the object as a cluster gets it, and what was applied. Cluster-wide policies are applied before
// those of the namespace, less precise ones before more precise ones, then by name: the most precise and last one wins. A rule of a
// policy that does not select the object explicitly is skipped if the object lacks its path. An error names policy, rule and field.
func ApplyOverrides(obj *unstructured.Unstructured, cluster *clusterv1alpha1.Cluster, all OverridePolicies) (*unstructured.Unstructured, AppliedOverrides, error) {
	var wide, own []overridePolicy
	for i := range all.Cluster {
		p := &all.Cluster[i]
		wide = append(wide, overridePolicy{title: "ClusterOverridePolicy " + p.Name, name: p.Name, spec: p.Spec})
	}
	for i := range all.Namespaced {
		if p := &all.Namespaced[i]; p.Namespace == obj.GetNamespace() && p.Namespace != "" {
			own = append(own, overridePolicy{title: "OverridePolicy " + p.Namespace + "/" + p.Name, name: p.Name, namespace: p.Namespace, spec: p.Spec})
		}
	}
	out := obj.DeepCopy()
	var applied AppliedOverrides
	var err error
	if applied.Cluster, err = applied.apply(out, obj, cluster, wide); err != nil {
		return nil, AppliedOverrides{}, err
	}
	if applied.Namespaced, err = applied.apply(out, obj, cluster, own); err != nil {
		return nil, AppliedOverrides{}, err
	}
	return out, applied, nil
}

// apply changes out by the policies that select the template, and adds the rules that it skips.
func (a *AppliedOverrides) apply(
	out, template *unstructured.Unstructured, cluster *clusterv1alpha1.Cluster, all []overridePolicy,
) (applied []OverrideItem, err error) {
	var selected []overridePolicy
	for _, p := range all {
		if p.precision = Kind; len(p.spec.ResourceSelectors) > 0 {
			if p.precision, err = Match(p.spec.ResourceSelectors, p.namespace, template); err != nil {
				return nil, fmt.Errorf("%s: %w", p.title, err)
			}
		}
		if p.precision != NoMatch {
			selected = append(selected, p)
		}
	}
	slices.SortFunc(selected, func(a, b overridePolicy) int {
		return cmp.Or(cmp.Compare(a.precision, b.precision), strings.Compare(a.name, b.name))
	})
	for _, p := range selected {
		for i, rule := range rules(p.spec) {
			targets, err := affinity.Parse(rule.TargetCluster)
			if err != nil {
				return nil, fmt.Errorf("%s: overrideRules[%d].targetCluster: %w", p.title, i, err)
			}
			if !targets.Matches(cluster) {
				continue
			}
			next, explicit := out, p.explicit(template)
			if !explicit {
				next = out.DeepCopy() // a rule is applied as a whole or not at all
			}
			err = override(next, &rule.Overriders)
			if err != nil {
				err = fmt.Errorf("overrideRules[%d].overriders.%w", i, err)
			}
			switch {
			case err != nil && pathMissing(err) && !explicit:
				name := strings.TrimPrefix(template.GetNamespace()+"/"+template.GetName(), "/")
				a.Skipped = append(a.Skipped, SkippedRule{p.namespace, p.name, fmt.Sprintf("%s %s: %v", template.GetKind(), name, err)})
				continue
			case err != nil:
				return nil, fmt.Errorf("%s: %w", p.title, err)
			}
			out.Object = next.Object
			applied = append(applied, OverrideItem{p.name, rule.Overriders})
		}
	}
	return applied, nil
}

// explicit reports whether the policy names the object: its kind or more in a resource selector. A Namespace goes to all members
// without a PropagationPolicy, so that its kind alone does not name it.
func (p *overridePolicy) explicit(obj *unstructured.Unstructured) bool {
	isNamespace := obj.GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Namespace")
	return p.precision > Kind || len(p.spec.ResourceSelectors) > 0 && !isNamespace
}

// errPathMissing: an object does not have the path of a rule.
var errPathMissing = errors.New("the object lacks this path")

func pathMissing(err error) bool {
	return errors.Is(err, errPathMissing) || errors.Is(err, jsonpatch.ErrMissing) || errors.Is(err, jsonpatch.ErrInvalidIndex)
}

// rules are those of a policy, the former form included.
func rules(s policyv1alpha1.OverrideSpec) []policyv1alpha1.RuleWithCluster {
	if len(s.OverrideRules) == 0 && s.Overriders != nil {
		return []policyv1alpha1.RuleWithCluster{{TargetCluster: s.TargetCluster, Overriders: *s.Overriders}}
	}
	return s.OverrideRules
}

// override applies one rule: images, commands, arguments, labels, annotations, fields, then the patch over all.
func override(obj *unstructured.Unstructured, o *policyv1alpha1.Overriders) error {
	for i, x := range o.ImageOverrider {
		if err := overrideImages(obj, x); err != nil {
			return fmt.Errorf("imageOverrider[%d]: %w", i, err)
		}
	}
	for i, x := range o.CommandOverrider {
		if err := overrideList(obj, "command", x); err != nil {
			return fmt.Errorf("commandOverrider[%d]: %w", i, err)
		}
	}
	for i, x := range o.ArgsOverrider {
		if err := overrideList(obj, "args", x); err != nil {
			return fmt.Errorf("argsOverrider[%d]: %w", i, err)
		}
	}
	for i, x := range o.LabelsOverrider {
		if err := overrideMap(obj, "labels", x); err != nil {
			return fmt.Errorf("labelsOverrider[%d]: %w", i, err)
		}
	}
	for i, x := range o.AnnotationsOverrider {
		if err := overrideMap(obj, "annotations", x); err != nil {
			return fmt.Errorf("annotationsOverrider[%d]: %w", i, err)
		}
	}
	for i, x := range o.FieldOverrider {
		if err := overrideField(obj, x); err != nil {
			return fmt.Errorf("fieldOverrider[%d]: %w", i, err)
		}
	}
	if err := overridePlain(obj, o.Plaintext); err != nil {
		return fmt.Errorf("plaintext: %w", err)
	}
	return nil
}

func overrideMap(obj *unstructured.Unstructured, field string, o policyv1alpha1.LabelAnnotationOverrider) error {
	m, _, err := unstructured.NestedStringMap(obj.Object, "metadata", field)
	if err != nil {
		return err
	}
	for key, value := range o.Value {
		_, there := m[key]
		switch {
		case o.Operator == policyv1alpha1.OverriderOpAdd, o.Operator == policyv1alpha1.OverriderOpReplace && there:
			if m == nil {
				m = map[string]string{}
			}
			m[key] = value
		case o.Operator == policyv1alpha1.OverriderOpRemove:
			delete(m, key)
		}
	}
	if len(m) == 0 {
		unstructured.RemoveNestedField(obj.Object, "metadata", field)
		return nil
	}
	return unstructured.SetNestedStringMap(obj.Object, m, "metadata", field)
}
