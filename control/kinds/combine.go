package kinds

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// worst(items, field, order): the status of the cluster whose field, a path with dots, has the value that comes first in the order.
// One that has not reported, or not that, has the value "". Without the generations, which are the cluster's; null if no cluster
// that has a value of the order has reported.
func worst(a []ref.Val) (any, error) {
	all, err := reportsAt(a[0])
	if err != nil {
		return nil, err
	}
	field, _ := a[1].(types.String) // declared so
	order, err := namesAt(a[2])
	if err != nil {
		return nil, err
	}
	path := strings.Split(string(field), ".")
	for _, value := range order {
		for _, r := range all {
			have, _, err := unstructured.NestedString(r.status, path...)
			if err != nil {
				return nil, fmt.Errorf("cluster %s: %w", r.cluster, err)
			}
			if have != value {
				continue
			}
			out := map[string]any{}
			for k, v := range r.status {
				if k != fieldGeneration && k != fieldTemplateGeneration && k != fieldObservedGeneration {
					out[k] = v
				}
			}
			return out, nil
		}
	}
	return nil, nil
}

// agreed(items, names): the named fields that are the same in all clusters.
func agreed(a []ref.Val) (any, error) {
	all, err := reportsAt(a[0])
	if err != nil {
		return nil, err
	}
	names, err := namesAt(a[1])
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, name := range names {
		for i, r := range all {
			v, there := r.status[name]
			if !there || i > 0 && !reflect.DeepEqual(v, out[name]) {
				delete(out, name)
				break
			}
			out[name] = v
		}
	}
	return out, nil
}

// addUp(list of maps): a map with the sums of the numbers in them, also in maps in them; what is no number is left out.
func addUp(a []ref.Val) (any, error) {
	list, ok := a[0].(traits.Lister)
	if !ok {
		return nil, errors.New("the argument has to be a list of maps")
	}
	out := map[string]any{}
	for i := range length(list) {
		m, err := mapAt(list.Get(types.Int(i)))
		if err != nil {
			return nil, err
		}
		add(out, m)
	}
	return out, nil
}

func add(into, from map[string]any) {
	for key, v := range from {
		switch v := v.(type) {
		case int64:
			n, _ := into[key].(int64) // 0 if there is none yet
			into[key] = n + v
		case map[string]any:
			child, ok := into[key].(map[string]any)
			if !ok {
				child = map[string]any{}
			}
			add(child, v)
			into[key] = child
		}
	}
}

// timesAt are the times, in RFC 3339 and UTC, that clusters report in a field.
func timesAt(a []ref.Val) ([]string, error) {
	all, err := reportsAt(a[0])
	if err != nil {
		return nil, err
	}
	field, _ := a[1].(types.String) // declared so
	var out []string
	for _, r := range all {
		if at, _ := r.status[string(field)].(string); at != "" {
			out = append(out, at)
		}
	}
	return out, nil
}

// earliest(items, field): the first of the times; null if there is none.
func earliest(a []ref.Val) (any, error) {
	all, err := timesAt(a)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return slices.Min(all), nil
}

// latest(items, field): the last of the times; null if there is none.
func latest(a []ref.Val) (any, error) {
	all, err := timesAt(a)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return slices.Max(all), nil
}

// largest(list of requirements): for pods of several forms, the most that one of them asks for of each resource, on nodes and with
// the priority of the first.
func largest(a []ref.Val) (any, error) {
	list, ok := a[0].(traits.Lister)
	if !ok {
		return nil, errors.New("the argument has to be a list of requirements")
	}
	var out *workv1alpha2.ReplicaRequirements
	for i := range length(list) {
		if list.Get(types.Int(i)) == types.NullValue {
			continue
		}
		m, err := mapAt(list.Get(types.Int(i)))
		if err != nil {
			return nil, err
		}
		r, err := decodeStrict[workv1alpha2.ReplicaRequirements](m)
		if err != nil {
			return nil, err
		}
		if out == nil {
			out = r
			continue
		}
		for name, q := range r.ResourceRequest {
			have, there := out.ResourceRequest[name]
			if out.ResourceRequest == nil {
				out.ResourceRequest = r.ResourceRequest
			} else if !there || q.Cmp(have) > 0 {
				out.ResourceRequest[name] = q
			}
		}
	}
	if out == nil {
		return nil, nil
	}
	return untyped(out)
}
