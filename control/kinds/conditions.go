package kinds

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// maxMessage is the longest message of a condition (metav1.Condition).
const maxMessage = 32768

// mergeConditions(object, items, bad): the conditions of all clusters, one of each type. It is True if all clusters say so, but for
// the types that are bad: those are True if any cluster says so.
func mergeConditions(obj *unstructured.Unstructured, all []reported, bad []string) (any, error) {
	seen, err := allCurrent(obj, all)
	if err != nil {
		return nil, err
	}
	var kinds []string
	of := map[string][]map[string]any{} // by type, for each cluster; nil: it has none
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

// oneCondition is that of all clusters: of those that decide it, the reason of the first and the latest time.
func oneCondition(t string, all []reported, of []map[string]any, bad bool) map[string]any {
	order := []string{"False", "Unknown", "True"} // the one that says most about the whole first
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
			messages = append(messages, all[i].cluster+": "+message)
		}
	}
	if out["reason"] == "" {
		out["reason"] = "NotReported"
	}
	if at := cmp.Or(decisive, latest); at != "" {
		out["lastTransitionTime"] = at
	}
	message := strings.Join(messages, "; ")
	if len(message) > maxMessage {
		message = strings.ToValidUTF8(message[:maxMessage], "")
	}
	out["message"] = message
	return out
}
