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
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/scheduler"
)

// OverrideItem is one applied rule, in the form that the annotations of a Work keep.
type OverrideItem struct {
	PolicyName string                    `json:"policyName"`
	Overriders policyv1alpha1.Overriders `json:"overriders"`
}

// AppliedOverrides are the rules that were applied, in order: of cluster-wide policies, then of
// those of the namespace.
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
	initContainers         bool // their images are changed, too
}

// ApplyOverrides returns a copy of the object as a cluster gets it, and what was applied.
// Cluster-wide policies are applied before those of the namespace, less precise ones before more
// precise ones, then by name: the most precise and last one wins. A rule of a policy that does not
// select the object explicitly is skipped if the object lacks its path. An error names policy, rule
// and field.
func ApplyOverrides(obj *unstructured.Unstructured, cluster *clusterv1alpha1.Cluster, all OverridePolicies) (*unstructured.Unstructured, AppliedOverrides, error) {
	var wide, own []overridePolicy
	for i := range all.Cluster {
		p := &all.Cluster[i]
		wide = append(wide, overridePolicy{title: "ClusterOverridePolicy " + p.Name, name: p.Name, spec: p.Spec, initContainers: initContainers(p)})
	}
	for i := range all.Namespaced {
		if p := &all.Namespaced[i]; p.Namespace == obj.GetNamespace() && p.Namespace != "" {
			own = append(own, overridePolicy{title: "OverridePolicy " + p.Namespace + "/" + p.Name, name: p.Name, namespace: p.Namespace,
				spec: p.Spec, initContainers: initContainers(p)})
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
			targets, err := scheduler.ParseAffinity(rule.TargetCluster)
			if err != nil {
				return nil, fmt.Errorf("%s: overrideRules[%d].targetCluster: %w", p.title, i, err)
			}
			if !targets.Matches(cluster) {
				continue
			}
			next, explicit := out, p.explicit(template)
			if !explicit || out.GroupVersionKind().Group == rbacv1.GroupName {
				next = out.DeepCopy() // a rule is applied as a whole or not at all
			}
			kept, err := overrideInitContainers(next, rule.Overriders.ImageOverrider, p.initContainers)
			if err == nil {
				err = override(next, &rule.Overriders)
			}
			if kept != "" && err == nil {
				a.Skipped = append(a.Skipped, SkippedRule{p.namespace, p.name, fmt.Sprintf("%s: overrideRules[%d]: %s", nameOf(template), i, kept)})
			}
			if err != nil {
				err = fmt.Errorf("overrideRules[%d].overriders.%w", i, err)
			} else if p.namespace != "" {
				err = unescalated(i, out, next)
			}
			switch {
			case err != nil && pathMissing(err) && !explicit:
				a.Skipped = append(a.Skipped, SkippedRule{p.namespace, p.name, fmt.Sprintf("%s: %v", nameOf(template), err)})
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

// nameOf is kind and name of an object in messages.
func nameOf(obj *unstructured.Unstructured) string {
	return obj.GetKind() + " " + strings.TrimPrefix(obj.GetNamespace()+"/"+obj.GetName(), "/")
}

// unescalated returns an error if a rule of a namespace's policy changes what a Role or RoleBinding
// grants: the API server checks that its author has these rights, and would not check what the hub
// writes into members.
func unescalated(rule int, before, after *unstructured.Unstructured) error {
	if before.GroupVersionKind().Group != rbacv1.GroupName {
		return nil
	}
	for _, field := range []string{"rules", "aggregationRule", "roleRef", "subjects"} {
		if !equality.Semantic.DeepEqual(before.Object[field], after.Object[field]) {
			return fmt.Errorf("overrideRules[%d] changes %s of the %s, and with it what it grants: use a ClusterOverridePolicy", rule, field,
				before.GetKind())
		}
	}
	return nil
}

// explicit reports whether the policy names the object: its kind or more in a resource selector. A
// Namespace goes to all members without a PropagationPolicy, so that its kind alone does not name
// it.
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

// override applies one rule: images, commands, arguments, labels, annotations, fields, then the
// patch over all.
func override(obj *unstructured.Unstructured, o *policyv1alpha1.Overriders) error {
	list := func(field string) func(policyv1alpha1.CommandArgsOverrider) error {
		return func(x policyv1alpha1.CommandArgsOverrider) error { return overrideList(obj, field, x) }
	}
	metadata := func(field string) func(policyv1alpha1.LabelAnnotationOverrider) error {
		return func(x policyv1alpha1.LabelAnnotationOverrider) error { return overrideMap(obj, field, x) }
	}
	for _, step := range []func() error{
		each("imageOverrider", o.ImageOverrider, func(x policyv1alpha1.ImageOverrider) error { return overrideImages(obj, x) }),
		each("commandOverrider", o.CommandOverrider, list("command")),
		each("argsOverrider", o.ArgsOverrider, list("args")),
		each("labelsOverrider", o.LabelsOverrider, metadata("labels")),
		each("annotationsOverrider", o.AnnotationsOverrider, metadata("annotations")),
		each("fieldOverrider", o.FieldOverrider, func(x policyv1alpha1.FieldOverrider) error { return overrideField(obj, x) }),
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if err := overridePlain(obj, o.Plaintext); err != nil {
		return fmt.Errorf("plaintext: %w", err)
	}
	return nil
}

// each is a step that applies the overriders of one field of a rule until one fails.
func each[T any](field string, all []T, apply func(T) error) func() error {
	return func() error {
		for i, x := range all {
			if err := apply(x); err != nil {
				return fmt.Errorf("%s[%d]: %w", field, i, err)
			}
		}
		return nil
	}
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

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    policyv1alpha1.OverriderOperator `json:"op"`
	Path  string                           `json:"path"`
	Value *apiextensionsv1.JSON            `json:"value,omitempty"`
}

func newOperation(op policyv1alpha1.OverriderOperator, path string, value apiextensionsv1.JSON) operation {
	o := operation{Op: op, Path: path}
	if op != policyv1alpha1.OverriderOpRemove {
		o.Value = &value
	}
	return o
}

// patch applies operations to a document. Adding a field below a parent that does not exist is an
// error (RFC 6902, section 4.1).
func patch(document []byte, operations []operation) ([]byte, error) {
	raw, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	p, err := jsonpatch.DecodePatch(raw)
	if err != nil {
		return nil, err
	}
	return p.Apply(document)
}

// overridePlain applies a JSON patch to the whole object.
func overridePlain(obj *unstructured.Unstructured, all []policyv1alpha1.PlaintextOverrider) error {
	if len(all) == 0 {
		return nil
	}
	var operations []operation
	for _, x := range all {
		operations = append(operations, newOperation(x.Operator, x.Path, x.Value))
	}
	raw, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	if raw, err = patch(raw, operations); err != nil {
		return err
	}
	changed := &unstructured.Unstructured{}
	if err := changed.UnmarshalJSON(raw); err != nil {
		return fmt.Errorf("the result is no object: %w", err)
	}
	if changed.GroupVersionKind() != obj.GroupVersionKind() || changed.GetNamespace() != obj.GetNamespace() || changed.GetName() != obj.GetName() {
		return fmt.Errorf("the result is another object: apiVersion, kind, name and namespace cannot be overridden")
	}
	obj.Object = changed.Object
	return nil
}

// overrideField patches the JSON or YAML document that a string field holds.
func overrideField(obj *unstructured.Unstructured, o policyv1alpha1.FieldOverrider) error {
	parent, key, err := walk(obj.Object, o.FieldPath)
	if err != nil {
		return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
	}
	text, ok := parent[key].(string)
	switch {
	case parent[key] == nil:
		return fmt.Errorf("fieldPath %s: %w", o.FieldPath, errPathMissing)
	case !ok:
		return fmt.Errorf("fieldPath %s is no string", o.FieldPath)
	}
	all, isYAML := o.JSON, len(o.YAML) > 0
	document := []byte(text)
	if isYAML {
		all = o.YAML
		if document, err = yaml.YAMLToJSON(document); err != nil {
			return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
		}
	}
	var operations []operation
	for _, x := range all {
		operations = append(operations, newOperation(x.Operator, x.SubPath, x.Value))
	}
	if document, err = patch(document, operations); err != nil {
		return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
	}
	if isYAML {
		if document, err = yaml.JSONToYAML(document); err != nil {
			return fmt.Errorf("fieldPath %s: %w", o.FieldPath, err)
		}
	}
	parent[key] = string(document)
	return nil
}

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

// Match returns the precision of the selector that selects the object most precisely. A policy with
// a namespace selects in it alone. The version of a kind does not matter: an object has one at the
// hub, whichever policies name.
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
	gvk := obj.GroupVersionKind()
	of, err := schema.ParseGroupVersion(s.APIVersion)
	switch {
	case err != nil, of.Group != gvk.Group, s.Kind != gvk.Kind, namespace != "" && namespace != obj.GetNamespace():
		return NoMatch, nil
	case s.Name != "":
		if s.Name != obj.GetName() {
			return NoMatch, nil
		}
		return Name, nil
	case s.LabelSelector == nil:
		return Kind, nil
	}
	for k, v := range s.LabelSelector.MatchLabels { // to parse them takes much longer
		if have, ok := obj.GetLabels()[k]; !ok || have != v {
			return NoMatch, nil
		}
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

// longestMessage is that of a condition's message, in bytes.
const longestMessage = 32768

// accept sets the condition Accepted from the result of Validate. It reports whether that changed
// anything.
func accept(status *policyv1alpha1.PolicyStatus, generation int64, found field.ErrorList) (changed bool) {
	c := metav1.Condition{
		Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		ObservedGeneration: generation,
	}
	if len(found) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, policyv1alpha1.ReasonInvalid
		c.Message = message(found)
	}
	return meta.SetStatusCondition(&status.Conditions, c)
}

// message lists fields and reasons.
func message(found field.ErrorList) string {
	var parts []string
	for _, err := range found {
		parts = append(parts, err.Error())
	}
	return clip(strings.Join(parts, "; "))
}

// clip cuts a text to the length that a condition's message may have.
func clip(text string) string {
	if len(text) > longestMessage {
		text = strings.ToValidUTF8(text[:longestMessage], "")
	}
	return text
}

// kindsOf are the kinds that selectors name, each once.
func kindsOf(selectors []policyv1alpha1.ResourceSelector) []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	seen := map[schema.GroupVersionKind]bool{}
	for _, s := range selectors {
		gvk := schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
		if !seen[gvk] {
			seen[gvk] = true
			out = append(out, gvk)
		}
	}
	return out
}
