package kinds

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds/filled"
)

// Kind holds the operations of one kind. A nil operation is looked up in the next source; the
// method of Interpreter states its default. Only Revise, Prune and Retain change an object, Retain
// its first one.
type Kind struct {
	Replicas     func(template *unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error)
	Components   func(template *unstructured.Unstructured) ([]workv1alpha2.Component, error)
	Revise       func(obj *unstructured.Unstructured, replicas int32) error
	Prune        func(obj *unstructured.Unstructured) error
	Retain       func(desired, observed *unstructured.Unstructured) error
	Reflect      func(observed *unstructured.Unstructured) (map[string]any, error)
	Aggregate    func(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error)
	Healthy      func(observed *unstructured.Unstructured) (bool, error)
	Dependencies func(template *unstructured.Unstructured) ([]DependentReference, error)
}

// or sets the operations that k lacks.
func (k Kind) or(next Kind) Kind {
	into, from := reflect.ValueOf(&k).Elem(), reflect.ValueOf(next)
	for i := range into.NumField() {
		if into.Field(i).IsNil() {
			into.Field(i).Set(from.Field(i))
		}
	}
	return k
}

// operations are the names of those that k has, as in KindRules.
func (k Kind) operations() (out []string) {
	of := reflect.ValueOf(k)
	for i := range of.NumField() {
		if !of.Field(i).IsNil() {
			out = append(out, strings.ToLower(of.Type().Field(i).Name))
		}
	}
	return out
}

// withBuiltIn adds the built-in operations that k lacks. Components take precedence over replicas,
// but built-in ones not over replicas that a user defined.
func (k Kind) withBuiltIn(gvk schema.GroupVersionKind) Kind {
	next := builtIn(gvk)
	if k.Replicas != nil {
		next.Components = nil
	}
	return k.or(next)
}

// Source returns the operations that it has for a kind.
type Source func(schema.GroupVersionKind) Kind

// DependentReference names a dependency of a template, in the form of the annotation
// resourcebinding.karmada.io/dependencies. Either Name or LabelSelector is set.
type DependentReference struct {
	APIVersion    string                `json:"apiVersion"`
	Kind          string                `json:"kind"`
	Namespace     string                `json:"namespace,omitempty"`
	Name          string                `json:"name,omitempty"`
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// Interpreter performs the operations on objects of any kind.
type Interpreter struct {
	kind   Source
	custom *Custom // nil: rules never change
}

// New returns an interpreter that takes each operation from the first of the sources that has it,
// then from the bundled rules and the built-in table.
func New(sources ...Source) *Interpreter {
	return &Interpreter{kind: func(gvk schema.GroupVersionKind) (k Kind) {
		for _, source := range sources {
			k = k.or(source(gvk))
		}
		return k.withBuiltIn(gvk)
	}}
}

// builtIn returns the bundled rules of a kind, or its row in the table; no kind has both.
func builtIn(gvk schema.GroupVersionKind) Kind {
	if kind := bundled()[gvk]; kind != nil {
		return kind()
	}
	return kinds[gvk]
}

// Follow calls f each time rules have changed, until ctx ends: results obtained with the former
// rules may be outdated. f runs in the call that replaces the rules and must not block.
func (in *Interpreter) Follow(ctx context.Context, f Changed) {
	if in.custom != nil {
		in.custom.follow(ctx, f)
	}
}

func (in *Interpreter) of(obj *unstructured.Unstructured) Kind {
	return in.kind(obj.GroupVersionKind())
}

// HasReplicas reports whether objects of this kind have replicas.
func (in *Interpreter) HasReplicas(obj *unstructured.Unstructured) bool {
	return in.of(obj).Replicas != nil
}

// Replicas returns the replicas of a template and what each requests (nil: nothing). By default
// none exist, and ok is false.
func (in *Interpreter) Replicas(template *unstructured.Unstructured) (n int32, each *workv1alpha2.ReplicaRequirements, ok bool, err error) {
	k := in.of(template)
	if k.Replicas == nil {
		return 0, nil, false, nil
	}
	if n, each, err = k.Replicas(template); err != nil {
		return 0, nil, false, failed("read the replicas of", template, err)
	}
	return n, each, true, nil
}

// Components returns the components of a template whose pods have several forms, sorted by name,
// instead of replicas. By default, none exist, and ok is false.
func (in *Interpreter) Components(template *unstructured.Unstructured) (all []workv1alpha2.Component, ok bool, err error) {
	k := in.of(template)
	if k.Components == nil {
		return nil, false, nil
	}
	if all, err = k.Components(template); err != nil {
		return nil, false, failed("read the components of", template, err)
	}
	return all, true, nil
}

// Revise sets the number of replicas of the object. By default it changes nothing.
func (in *Interpreter) Revise(obj *unstructured.Unstructured, replicas int32) error {
	if k := in.of(obj); k.Revise != nil {
		if err := k.Revise(obj, replicas); err != nil {
			return failed("set the replicas of", obj, err)
		}
	}
	return nil
}

// Prune removes the fields that are not for members: what the API server and its controllers filled
// in, by the managed fields, finalizers, owners and the status. By default that is all.
func (in *Interpreter) Prune(obj *unstructured.Unstructured) error {
	_, err := in.PruneOverridden(obj, obj)
	return err
}

// PruneOverridden is Prune for an object that was made of a template by overrides: what these have
// set stays. The template, which has the managed fields, is not changed unless it is the object. It
// returns the fields that each member fills in, as RFC 6901 pointers.
func (in *Interpreter) PruneOverridden(obj, template *unstructured.Unstructured) ([]string, error) {
	left := filled.Drop(obj, template)
	pruneCommon(obj)
	if k := in.of(obj); k.Prune != nil {
		if err := k.Prune(obj); err != nil {
			return nil, failed("prune", obj, err)
		}
	}
	return left, nil
}

// Retain returns the desired object with the fields that the member owns as observed: by default
// its resourceVersion, finalizers, owners, and the labels and annotations that are not ours.
// Neither argument is changed.
func (in *Interpreter) Retain(desired, observed *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	out := desired.DeepCopy()
	retainCommon(out, observed)
	if k := in.of(desired); k.Retain != nil {
		if err := k.Retain(out, observed); err != nil {
			return nil, failed("retain the member's fields of", desired, err)
		}
	}
	return out, nil
}

// ReflectStatus returns the part of the status of a member's object that the hub receives; nil if
// it has none. By default it is the whole status.
func (in *Interpreter) ReflectStatus(observed *unstructured.Unstructured) (*runtime.RawExtension, error) {
	reflect := in.of(observed).Reflect
	if reflect == nil {
		reflect = wholeStatus
	}
	status, err := reflect(observed)
	if err != nil {
		return nil, failed("reflect the status of", observed, err)
	}
	if status == nil {
		return nil, nil
	}
	raw, err := json.Marshal(status)
	if err != nil {
		return nil, failed("reflect the status of", observed, err)
	}
	return &runtime.RawExtension{Raw: raw}, nil
}

// AggregateStatus returns the status of a template from what its clusters reflect; nil, the
// default, leaves it unchanged. There is an item for each cluster that is expected to report, in
// the order of their names; one whose Status is nil has not reported. The result has the form in
// which the API server returns it, so a status equal to the template's needs no write.
func (in *Interpreter) AggregateStatus(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	k := in.of(template)
	if k.Aggregate == nil {
		return nil, nil
	}
	status, err := k.Aggregate(template, items)
	if err != nil {
		return nil, failed("aggregate the status of", template, err)
	}
	return status, nil
}

// Health returns the health of a member's object; an error comes with Unknown. The default is
// Healthy.
func (in *Interpreter) Health(observed *unstructured.Unstructured) (workv1alpha2.ResourceHealth, error) {
	k := in.of(observed)
	if k.Healthy == nil {
		return workv1alpha2.ResourceHealthy, nil
	}
	healthy, err := k.Healthy(observed)
	switch {
	case err != nil:
		return workv1alpha2.ResourceUnknown, failed("read the health of", observed, err)
	case healthy:
		return workv1alpha2.ResourceHealthy, nil
	}
	return workv1alpha2.ResourceUnhealthy, nil
}

// Dependencies returns the objects that a template refers to, each once, sorted by kind and name.
// By default, none exist.
func (in *Interpreter) Dependencies(template *unstructured.Unstructured) ([]DependentReference, error) {
	k := in.of(template)
	if k.Dependencies == nil {
		return nil, nil
	}
	refs, err := k.Dependencies(template)
	if err != nil {
		return nil, failed("read the dependencies of", template, err)
	}
	return refs, nil
}

func failed(action string, obj *unstructured.Unstructured, err error) error {
	name := obj.GetName()
	if ns := obj.GetNamespace(); ns != "" {
		name = ns + "/" + name
	}
	return fmt.Errorf("%s %s %s: %w", action, obj.GetKind(), name, err)
}

// ReferencesIn reads a list of references to dependencies, each once, sorted. A reference without
// namespace is in that of the template.
func ReferencesIn(v any, namespace string) ([]DependentReference, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("the result has to be a list, but is %T", v)
	}
	var out []DependentReference
	for _, x := range list {
		m, ok := x.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("a reference has to be a map, but is %v", x)
		}
		ref, err := decodeStrict[DependentReference](m)
		if err != nil {
			return nil, err
		}
		if _, there := m["namespace"]; !there {
			ref.Namespace = namespace
		}
		if ref.APIVersion == "" || ref.Kind == "" || (ref.Name == "") == (ref.LabelSelector == nil) {
			return nil, fmt.Errorf("the reference %v needs apiVersion, kind, and either name or labelSelector", m)
		}
		out = append(out, *ref)
	}
	return sortedOnce(out), nil
}

// sortedOnce sorts references by kind, namespace and name; each is there once.
func sortedOnce(all []DependentReference) []DependentReference {
	slices.SortFunc(all, func(a, b DependentReference) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(selectorText(a), selectorText(b)))
	})
	return slices.CompactFunc(all, func(a, b DependentReference) bool {
		return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Namespace == b.Namespace && a.Name == b.Name &&
			selectorText(a) == selectorText(b)
	})
}

// maxComponentName is the maximum length of a component's name in a binding, in bytes.
const maxComponentName = 32

// ComponentsIn reads a list of components, sorted by name: the order of a map that they were made
// of is random. A longer name, which a template may have, ends with a hash of the whole.
func ComponentsIn(v any) ([]workv1alpha2.Component, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("the result has to be a list, but is %T", v)
	}
	var out []workv1alpha2.Component
	names := map[string]bool{}
	for _, x := range list {
		m, _ := x.(map[string]any) // else it has no name
		c, err := decodeStrict[workv1alpha2.Component](m)
		n, isNumber := m["replicas"].(int64)
		switch {
		case err != nil:
			return nil, fmt.Errorf("component %v: %w", m["name"], err)
		case c.Name == "" || names[c.Name]:
			return nil, fmt.Errorf("the component %v needs a name of its own", x)
		case !isNumber || n < 0 || n > math.MaxInt32:
			return nil, fmt.Errorf("component %s: %v is no number of replicas", c.Name, m["replicas"])
		}
		names[c.Name] = true
		if len(c.Name) > maxComponentName {
			h := fnv.New32a()
			_, _ = h.Write([]byte(c.Name)) // does not fail
			c.Name = fmt.Sprintf("%s-%08x", strings.ToValidUTF8(c.Name[:maxComponentName-9], ""), h.Sum32())
		}
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b workv1alpha2.Component) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

func selectorText(d DependentReference) string {
	if d.LabelSelector == nil {
		return ""
	}
	return metav1.FormatLabelSelector(d.LabelSelector)
}

// typed converts an object, or a part of one, to its Go type.
func typed[T any](from map[string]any) (*T, error) {
	out := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, out); err != nil {
		return nil, err
	}
	return out, nil
}

// int32At reads a number of replicas.
func int32At(obj *unstructured.Unstructured, otherwise int32, path ...string) (int32, error) {
	n, found, err := unstructured.NestedInt64(obj.Object, path...)
	switch {
	case err != nil:
		return 0, err
	case !found:
		return otherwise, nil
	case n < 0 || n > math.MaxInt32:
		return 0, fmt.Errorf("%v is %d, which is no number of replicas", path, n)
	}
	return int32(n), nil
}
