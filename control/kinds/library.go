package kinds

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// ownFunctions are the functions that this package adds to CEL. The built-in operations share their
// implementations.
func ownFunctions() []cel.EnvOption {
	object, names, items := cel.DynType, cel.ListType(cel.StringType), cel.ListType(cel.DynType)
	fn := func(name string, result *cel.Type, do func(a []ref.Val) (any, error), args ...*cel.Type) cel.EnvOption {
		return cel.Function(name, cel.Overload(name, args, result, cel.FunctionBinding(func(a ...ref.Val) ref.Val {
			out, err := do(a)
			if err != nil {
				return types.NewErr("%s: %v", name, err)
			}
			return types.DefaultTypeAdapter.NativeToValue(out)
		})))
	}
	return []cel.EnvOption{
		fn("statusOf", cel.DynType, ofObject(statusOf), object, names),
		fn("counted", cel.DynType, ofObject(counted), object, names),
		fn("caughtUp", cel.BoolType, ofReports(caughtUp), object, items),
		fn("sums", cel.DynType, ofReports(sums), object, items, names),
		fn("mergeConditions", cel.DynType, ofReports(mergeConditions), object, items, names),
		fn("worst", cel.DynType, worst, items, cel.StringType, names),
		fn("agreed", cel.DynType, agreed, items, names),
		fn("addUp", cel.DynType, addUp, items),
		fn("earliest", cel.DynType, earliest, items, cel.StringType),
		fn("latest", cel.DynType, latest, items, cel.StringType),
		fn("podRequirements", cel.DynType, requirementsOfPod, cel.DynType),
		fn("podReferences", items, referencesOfPod, cel.DynType),
		cel.Function("merge", cel.MemberOverload("map_merge", []*cel.Type{cel.DynType, cel.DynType}, cel.DynType,
			cel.BinaryBinding(func(a, b ref.Val) ref.Val {
				out, err := mergeMaps(a, b)
				if err != nil {
					return types.NewErr("merge: %v", err)
				}
				return types.DefaultTypeAdapter.NativeToValue(out)
			}))),
	}
}

// objectAt is an input object of the rule, not one that the expression constructed.
func objectAt(v ref.Val) (*unstructured.Unstructured, error) {
	m, ok := v.Value().(map[string]any)
	if !ok {
		return nil, errors.New("the first argument has to be object, desired or observed")
	}
	return &unstructured.Unstructured{Object: m}, nil
}

func namesAt(v ref.Val) ([]string, error) {
	list, ok := v.(traits.Lister)
	if !ok {
		return nil, errors.New("the names have to be a list")
	}
	out := make([]string, length(list))
	for i := range out {
		name, ok := list.Get(types.Int(i)).(types.String)
		if !ok {
			return nil, errors.New("the names have to be strings")
		}
		out[i] = string(name)
	}
	return out, nil
}

// reported is the status that one cluster reflects; nil before its first report.
type reported struct {
	cluster string
	status  map[string]any
}

func reportsAt(v ref.Val) ([]reported, error) {
	list, ok := v.(traits.Lister)
	if !ok {
		return nil, errors.New("the second argument has to be items")
	}
	out := make([]reported, length(list))
	for i := range out {
		m, ok := list.Get(types.Int(i)).Value().(map[string]any)
		if !ok {
			return nil, errors.New("the second argument has to be items, or some of them")
		}
		out[i].cluster, _ = m["clusterName"].(string)   // always set in items
		out[i].status, _ = m["status"].(map[string]any) // nil: it has not reported
	}
	return out, nil
}

// ofObject adapts a function of an object and names.
func ofObject(do func(obj *unstructured.Unstructured, names []string) (any, error)) func([]ref.Val) (any, error) {
	return func(a []ref.Val) (any, error) {
		obj, err := objectAt(a[0])
		if err != nil {
			return nil, err
		}
		names, err := namesAt(a[1])
		if err != nil {
			return nil, err
		}
		return do(obj, names)
	}
}

// ofReports adapts a function of an object, the reports of clusters and, if declared, names.
func ofReports(do func(obj *unstructured.Unstructured, all []reported, names []string) (any, error)) func([]ref.Val) (any, error) {
	return func(a []ref.Val) (any, error) {
		obj, err := objectAt(a[0])
		if err != nil {
			return nil, err
		}
		all, err := reportsAt(a[1])
		if err != nil {
			return nil, err
		}
		var names []string
		if len(a) > 2 {
			if names, err = namesAt(a[2]); err != nil {
				return nil, err
			}
		}
		return do(obj, all, names)
	}
}

// statusOf(object, names): the named fields of its status; null if it has none.
func statusOf(obj *unstructured.Unstructured, names []string) (any, error) {
	out, err := fields(names...)(obj)
	if out == nil {
		return nil, err
	}
	return out, err
}

// counted(observed, names): statusOf, with the generations that caughtUp and sums need.
func counted(obj *unstructured.Unstructured, names []string) (any, error) {
	out, err := counts[struct{}](names).reflect(obj)
	if out == nil {
		return nil, err
	}
	return out, err
}

// caughtUp(object, items): every cluster has reported this generation of the template, observed by
// its controller.
func caughtUp(obj *unstructured.Unstructured, all []reported, _ []string) (any, error) {
	return allCurrent(obj, all)
}

func allCurrent(obj *unstructured.Unstructured, all []reported) (bool, error) {
	for _, r := range all {
		if r.status == nil {
			return false, nil
		}
		observed, err := current(r.status, obj.GetGeneration())
		if err != nil {
			return false, fmt.Errorf("cluster %s: %w", r.cluster, err)
		}
		if !observed {
			return false, nil
		}
	}
	return true, nil
}

// current reports whether a reflected status is of this generation of the template, and observed by
// the member's controller.
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

// sums(object, items, names): the named numbers of the statuses added up, and observedGeneration:
// the template's generation once caughtUp, else its present value.
func sums(obj *unstructured.Unstructured, all []reported, names []string) (any, error) {
	return sumReports(obj, all, names)
}

func sumReports(obj *unstructured.Unstructured, all []reported, names []string) (map[string]any, error) {
	out := map[string]any{}
	for _, name := range names {
		sum := int64(0)
		for _, r := range all {
			n, _, err := unstructured.NestedInt64(r.status, name)
			if err != nil {
				return nil, fmt.Errorf("cluster %s: %w", r.cluster, err)
			}
			sum += n
		}
		out[name] = sum
	}
	observed, err := allCurrent(obj, all)
	if err != nil {
		return nil, err
	}
	generation := obj.GetGeneration()
	if !observed {
		generation, err = generationAt(obj.Object, "status", fieldObservedGeneration)
	}
	if generation != 0 {
		out[fieldObservedGeneration] = generation
	}
	return out, err
}

// generationAt reads a generation; 0 if none exists. Argo's Rollout has it as a string.
func generationAt(m map[string]any, path ...string) (int64, error) {
	v, _, err := unstructured.NestedFieldNoCopy(m, path...)
	if text, ok := v.(string); ok && err == nil {
		if text == "" {
			return 0, nil
		}
		return strconv.ParseInt(text, 10, 64)
	}
	n, _, err := unstructured.NestedInt64(m, path...)
	return n, err
}

// requirementsOfPod: podRequirements(spec), null if the pod requests nothing.
func requirementsOfPod(a []ref.Val) (any, error) {
	spec, err := podAt(a[0])
	if err != nil {
		return nil, err
	}
	r := podRequirements(spec, "")
	if r == nil {
		return nil, nil
	}
	return untyped(r)
}

// referencesOfPod: podReferences(spec or list of specs), the Secrets, ConfigMaps, claims and
// ServiceAccounts of pods.
func referencesOfPod(a []ref.Val) (any, error) {
	specs := a
	if list, ok := a[0].(traits.Lister); ok {
		specs = make([]ref.Val, length(list))
		for i := range specs {
			specs[i] = list.Get(types.Int(i))
		}
	}
	out := []any{}
	for _, s := range specs {
		spec, err := podAt(s)
		if err != nil {
			return nil, err
		}
		for _, d := range podDependencies("", spec, nil) {
			m, err := untyped(&d)
			if err != nil {
				return nil, err
			}
			out = append(out, m)
		}
	}
	return out, nil
}

func podAt(v ref.Val) (*corev1.PodSpec, error) {
	m, err := mapAt(v)
	if err != nil {
		return nil, err
	}
	return typed[corev1.PodSpec](m)
}

// mapAt copies a map, which the guard has weighed.
func mapAt(v ref.Val) (map[string]any, error) {
	if v == types.NullValue {
		return map[string]any{}, nil
	}
	x, err := result(&budget{left: workLimit}, v)
	if err != nil {
		return nil, err
	}
	m, ok := x.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is no map", v.Type().TypeName())
	}
	return m, nil
}

// mergeMaps: a.merge(b), the entries of both maps, those of b with precedence; maps in both are
// merged.
func mergeMaps(a, b ref.Val) (map[string]any, error) {
	x, err := mapAt(a)
	if err != nil {
		return nil, err
	}
	y, err := mapAt(b)
	if err != nil {
		return nil, err
	}
	unite(x, y)
	return x, nil
}

func unite(into, from map[string]any) {
	for key, v := range from {
		a, isMap := into[key].(map[string]any)
		b, too := v.(map[string]any)
		if isMap && too {
			unite(a, b)
			continue
		}
		into[key] = v
	}
}
