package kinds

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// worst(items, field, order): the status of the cluster whose field, a path with dots, has the
// first value of the order. The value is "" where the field, or any status, is missing. Generations
// are removed, as they are the cluster's own. null if no cluster has a value of the order.
func worst(a []ref.Val) (any, error) {
	all, err := reportsAt(a[0])
	if err != nil {
		return nil, err
	}
	field, _ := a[1].(types.String) // by its declaration
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

// agreed(items, names): the named fields that are equal in all clusters.
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

// addUp(list of maps): a map with the sums of their integers, also in nested maps; other values are
// omitted.
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
			n, _ := into[key].(int64) // 0 if none exists yet
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

// timesAt are the times (RFC 3339, UTC) that clusters report in a field.
func timesAt(a []ref.Val) ([]string, error) {
	all, err := reportsAt(a[0])
	if err != nil {
		return nil, err
	}
	field, _ := a[1].(types.String) // by its declaration
	var out []string
	for _, r := range all {
		if at, _ := r.status[string(field)].(string); at != "" {
			out = append(out, at)
		}
	}
	return out, nil
}

// earliest(items, field): the first of the times; null if none exists.
func earliest(a []ref.Val) (any, error) {
	all, err := timesAt(a)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return slices.Min(all), nil
}

// latest(items, field): the last of the times; null if none exists.
func latest(a []ref.Val) (any, error) {
	all, err := timesAt(a)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return slices.Max(all), nil
}

// MaxMessage is the longest message of a condition (metav1.Condition).
const MaxMessage = 32768

// mergeConditions(object, items, bad): the conditions of all clusters, one of each type. It is True
// if it is in all clusters; a bad type is True if it is in any cluster.
func mergeConditions(obj *unstructured.Unstructured, all []reported, bad []string) (any, error) {
	seen, err := allCurrent(obj, all)
	if err != nil {
		return nil, err
	}
	var kinds []string
	of := map[string][]map[string]any{} // by type, an entry for each cluster; nil: none
	for i, r := range all {
		list, _, err := unstructured.NestedSlice(r.status, "conditions")
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", r.cluster, err)
		}
		for _, c := range list {
			m, _ := c.(map[string]any) // nil has no type
			t, _ := m["type"].(string)
			if t == "" {
				continue
			}
			if of[t] == nil {
				kinds = append(kinds, t)
				of[t] = make([]map[string]any, len(all))
			}
			of[t][i] = m
		}
	}
	slices.Sort(kinds)
	out := []any{}
	for _, t := range kinds {
		c := oneCondition(t, all, of[t], slices.Contains(bad, t))
		if seen && slices.ContainsFunc(of[t], func(m map[string]any) bool { return m[fieldObservedGeneration] != nil }) {
			c[fieldObservedGeneration] = obj.GetGeneration()
		}
		out = append(out, c)
	}
	return out, nil
}

// oneCondition aggregates a condition: among clusters with the aggregate's status, the first reason
// and the latest time.
func oneCondition(t string, all []reported, of []map[string]any, bad bool) map[string]any {
	order := []string{"False", "Unknown", "True"} // by precedence
	if bad {
		order = []string{"True", "Unknown", "False"}
	}
	var have, messages []string
	for _, c := range of {
		s, _ := c["status"].(string)
		if c == nil || s == "" {
			s = "Unknown"
			if bad && c == nil {
				s = "False"
			}
		}
		have = append(have, s)
	}
	status := cmp.Or(foremost(order, have), "Unknown")
	out := map[string]any{"type": t, "status": status, "reason": ""}
	var decisive, latest string
	for i, c := range of {
		at, _ := c["lastTransitionTime"].(string) // RFC 3339 in UTC sorts as text
		latest = max(latest, at)
		if have[i] != status {
			continue
		}
		decisive = max(decisive, at)
		if reason, _ := c["reason"].(string); out["reason"] == "" {
			out["reason"] = reason
		}
		message, _ := c["message"].(string)
		if c == nil {
			message = "has not reported"
		}
		if c != nil || !bad {
			messages = append(messages, strings.TrimSuffix(all[i].cluster+": "+message, ": "))
		}
	}
	if out["reason"] == "" {
		out["reason"] = "NotReported"
	}
	if at := cmp.Or(decisive, latest); at != "" {
		out["lastTransitionTime"] = at
	}
	message := strings.Join(messages, "; ")
	if len(message) > MaxMessage {
		message = strings.ToValidUTF8(message[:MaxMessage], "")
	}
	out["message"] = message
	return out
}
