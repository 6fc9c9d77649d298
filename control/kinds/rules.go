package kinds

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/cel-go/cel"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// RuleError says which rule failed, and why.
type RuleError struct {
	// Origin has the rule: "KindRules farms", or "the rules that are built in".
	Origin string
	// Rule is its field in spec.rules.
	Rule string
	// Expression is its text, shortened.
	Expression string
	Err        error
}

func (e *RuleError) Error() string {
	return fmt.Sprintf("rule %s of %s (%s): %v", e.Rule, e.Origin, e.Expression, e.Err)
}

func (e *RuleError) Unwrap() error { return e.Err }

// rule is one expression with what it is called in errors. One that does not compile fails whenever it is asked.
type rule struct {
	of      RuleError
	compile error
	*expression
}

func newRule(origin, name string, text pelagov1alpha1.Expression, result *cel.Type, vars ...cel.EnvOption) *rule {
	r := &rule{of: RuleError{Origin: origin, Rule: name, Expression: clip(string(text))}}
	r.expression, r.compile = compile(string(text), vars, result)
	return r
}

func (r *rule) failed(err error) error {
	out := r.of
	out.Err = err
	return &out
}

func (r *rule) ask(vars map[string]any) (any, error) {
	if r.compile != nil {
		return nil, r.failed(fmt.Errorf("it does not compile: %w", r.compile))
	}
	out, err := r.eval(vars)
	if err != nil {
		return nil, r.failed(err)
	}
	return out, nil
}

// askMap is ask for a map or null.
func (r *rule) askMap(vars map[string]any) (map[string]any, error) {
	v, err := r.ask(vars)
	if err != nil || v == nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, r.failed(fmt.Errorf("the result has to be a map, but is %T", v))
	}
	return m, nil
}

// compileRules makes a Kind of rules. The errors are *RuleError, one for each rule that does not compile.
func compileRules(origin string, rules pelagov1alpha1.Rules) (Kind, []error) {
	var k Kind
	var errs []error
	mapType := cel.MapType(cel.StringType, cel.DynType)
	make := func(name string, text pelagov1alpha1.Expression, result *cel.Type, vars ...cel.EnvOption) *rule {
		if text == "" {
			return nil
		}
		r := newRule(origin, name, text, result, vars...)
		if r.compile != nil {
			errs = append(errs, r.failed(r.compile))
		}
		return r
	}
	requirements := make("requirements", rules.Requirements, mapType, varObject)
	if r := make("replicas", rules.Replicas, cel.IntType, varObject); r != nil {
		k.Replicas = r.replicas(requirements)
	}
	if r := make("revise", rules.Revise, mapType, varObject, varReplicas); r != nil {
		k.Revise = r.revise
	}
	if r := make("prune", rules.Prune, mapType, varObject); r != nil {
		k.Prune = r.prune
	}
	if r := make("retain", rules.Retain, mapType, varDesired, varObserved); r != nil {
		k.Retain = r.retain
	}
	if r := make("reflect", rules.Reflect, mapType, varObserved); r != nil {
		k.Reflect = r.reflect
	}
	if r := make("aggregate", rules.Aggregate, mapType, varObject, varItems); r != nil {
		k.Aggregate = r.aggregate
	}
	if r := make("healthy", rules.Healthy, cel.BoolType, varObserved); r != nil {
		k.Healthy = r.healthy
	}
	if r := make("dependencies", rules.Dependencies, cel.ListType(cel.DynType), varObject); r != nil {
		k.Dependencies = r.dependencies
	}
	return k, errs
}

func (r *rule) replicas(requirements *rule) func(*unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
	return func(obj *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
		v, err := r.ask(map[string]any{"object": obj.Object})
		if err != nil {
			return 0, nil, err
		}
		n, ok := v.(int64)
		if !ok || n < 0 || n > math.MaxInt32 {
			return 0, nil, r.failed(fmt.Errorf("%v is no number of replicas", v))
		}
		if requirements == nil {
			return int32(n), nil, nil
		}
		m, err := requirements.askMap(map[string]any{"object": obj.Object})
		if err != nil || m == nil {
			return int32(n), nil, err
		}
		each, err := decodeStrict[workv1alpha2.ReplicaRequirements](m)
		if err != nil {
			return 0, nil, requirements.failed(err)
		}
		each.Namespace = obj.GetNamespace()
		return int32(n), each, nil
	}
}

func (r *rule) revise(obj *unstructured.Unstructured, n int32) error {
	return r.patch(obj, map[string]any{"object": obj.Object, "replicas": int64(n)})
}

func (r *rule) prune(obj *unstructured.Unstructured) error {
	return r.patch(obj, map[string]any{"object": obj.Object})
}

func (r *rule) retain(desired, observed *unstructured.Unstructured) error {
	return r.patch(desired, map[string]any{"desired": desired.Object, "observed": observed.Object})
}

// patch changes an object as the rule says. What names it stays.
func (r *rule) patch(obj *unstructured.Unstructured, vars map[string]any) error {
	m, err := r.askMap(vars)
	if err != nil {
		return err
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if _, there := m[field]; there {
			return r.failed(fmt.Errorf("%s cannot be changed", field))
		}
	}
	meta, there := m["metadata"]
	if in, ok := meta.(map[string]any); there && !ok {
		return r.failed(fmt.Errorf("metadata cannot be removed"))
	} else if ok {
		for _, field := range []string{"name", "namespace", "uid", "resourceVersion"} {
			if _, there := in[field]; there {
				return r.failed(fmt.Errorf("metadata.%s cannot be changed", field))
			}
		}
	}
	mergePatch(obj.Object, m)
	return nil
}

// mergePatch applies a merge patch (RFC 7386): null removes, maps are merged, all else is put in the place of what is there.
func mergePatch(into, patch map[string]any) {
	for key, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(into, key)
		case map[string]any:
			child, ok := into[key].(map[string]any)
			if !ok {
				child = map[string]any{}
			}
			mergePatch(child, v)
			into[key] = child
		default:
			into[key] = v
		}
	}
}

func (r *rule) reflect(observed *unstructured.Unstructured) (map[string]any, error) {
	m, err := r.askMap(map[string]any{"observed": observed.Object})
	return present(m), err
}

// present is a status without the fields that are null: no API server takes those, and they spare the rules conditions.
func present(m map[string]any) map[string]any {
	for key, v := range m {
		if v == nil {
			delete(m, key)
		}
	}
	return m
}

func (r *rule) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	list := []any{}
	for i := range items {
		item := map[string]any{"clusterName": items[i].ClusterName, "applied": items[i].Applied, "health": string(items[i].Health)}
		status, err := decode[map[string]any](&items[i])
		if err != nil {
			return nil, err
		}
		if status != nil {
			item["status"] = *status
		}
		list = append(list, item)
	}
	m, err := r.askMap(map[string]any{"object": template.Object, "items": list})
	return present(m), err
}

func (r *rule) healthy(observed *unstructured.Unstructured) (bool, error) {
	v, err := r.ask(map[string]any{"observed": observed.Object})
	if err != nil {
		return false, err
	}
	yes, ok := v.(bool)
	if !ok {
		return false, r.failed(fmt.Errorf("the result has to be true or false, but is %v", v))
	}
	return yes, nil
}

func (r *rule) dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	v, err := r.ask(map[string]any{"object": template.Object})
	if err != nil {
		return nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, r.failed(fmt.Errorf("the result has to be a list, but is %T", v))
	}
	var out []DependentReference
	for _, x := range list {
		m, ok := x.(map[string]any)
		if !ok {
			return nil, r.failed(fmt.Errorf("a reference has to be a map, but is %v", x))
		}
		ref, err := decodeStrict[DependentReference](m)
		if err != nil {
			return nil, r.failed(err)
		}
		if _, there := m["namespace"]; !there {
			ref.Namespace = template.GetNamespace()
		}
		if ref.APIVersion == "" || ref.Kind == "" || (ref.Name == "") == (ref.LabelSelector == nil) {
			return nil, r.failed(fmt.Errorf("the reference %v needs apiVersion, kind, and either name or labelSelector", m))
		}
		out = append(out, *ref)
	}
	slices.SortFunc(out, func(a, b DependentReference) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(selectorText(a), selectorText(b)))
	})
	return slices.CompactFunc(out, func(a, b DependentReference) bool {
		return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name &&
			selectorText(a) == selectorText(b)
	}), nil
}

func selectorText(d DependentReference) string {
	if d.LabelSelector == nil {
		return ""
	}
	return metav1.FormatLabelSelector(d.LabelSelector)
}

// decodeStrict reads a Go type; a field that it has not is an error.
func decodeStrict[T any](m map[string]any) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(m, out, true); err != nil {
		return nil, err
	}
	return out, nil
}
