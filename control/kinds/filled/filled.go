// Package filled finds the fields of a template that the hub's API server and controllers have set,
// not its user: ports, addresses, a default storage class, aggregated rules. Each member sets its
// own. The source are the managed fields: allocators and admission own no fields, controllers the
// ones that they write. The hub's cache reduces managed fields to the result
// (Reduce), package kinds removes these fields from what members get. It has no client.
package filled

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/kubernetes/scheme"
)

// manager of the one entry that Reduce leaves.
const manager = "pelago.io/filled-in"

// controllers of Kubernetes write fields of templates that are not the user's.
var controllers = []string{"kube-controller-manager", "clusterrole-aggregation-controller", "kube-scheduler", "kubelet", "cloud-controller-manager"}

// whole are the kinds of which no field is dropped: those with pod templates, since fields that
// mutating webhooks of the hub have added have no owner either (a Job's own fields are pruned by
// the rule of its kind); and Secrets, since data applied as stringData have no owner.
var whole = []schema.GroupKind{
	{Kind: "Secret"},
	{Group: "apps", Kind: "Deployment"}, {Group: "apps", Kind: "ReplicaSet"}, {Group: "apps", Kind: "StatefulSet"}, {Group: "apps", Kind: "DaemonSet"},
	{Group: "batch", Kind: "Job"}, {Group: "batch", Kind: "CronJob"}, {Kind: "ReplicationController"}, {Kind: "PodTemplate"},
}

// fields is a set of fields in the form of FieldsV1: of a field all, if its set is empty.
type fields = map[string]any

// granular are the fields of pods and containers whose empty set stands for an empty value, in
// which admission may set others.
var granular = []string{"f:resources", "f:securityContext"}

// of returns the fields of a template that its user has not set. It is nil without such fields, and
// if the managed fields are missing or of another version than the template.
func of(u *unstructured.Unstructured) fields {
	gvk := u.GroupVersionKind()
	metadata, _ := u.Object["metadata"].(map[string]any)     // else it has no managed fields
	entries, _ := metadata["managedFields"].([]any)          // likewise
	if len(entries) == 0 || !scheme.Scheme.Recognizes(gvk) { // of other APIs the server fills in nothing
		return nil
	}
	var users, theirs []fields
	for _, e := range entries {
		entry, _ := e.(map[string]any)       // the API server has validated it
		set, _ := entry["fieldsV1"].(fields) // nil: no fields
		name, _ := entry["manager"].(string) // may be empty
		switch {
		case name == manager:
			return set
		case entry["subresource"] == "status":
		case entry["apiVersion"] != u.GetAPIVersion():
			return nil
		case slices.Contains(controllers, name):
			theirs = append(theirs, set)
		default:
			users = append(users, set)
		}
	}
	if len(users) == 0 {
		return nil
	}
	out := fields{}
	if !slices.Contains(whole, gvk.GroupKind()) {
		content := make(map[string]any, len(u.Object))
		for key, value := range u.Object {
			field := []string{"f:" + key}
			// A field without any owner may be the user's, converted by the API server.
			if key != "apiVersion" && key != "kind" && key != "metadata" && key != "status" && (owned(users, field) || owned(theirs, field)) {
				content[key] = value
			}
		}
		out = missing(content, users)
	}
	if marks := marksOf(metadata, users, theirs); len(marks) > 0 {
		if out == nil {
			out = fields{}
		}
		out["f:metadata"] = marks
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// marksOf are the labels and annotations that only controllers own. Those without an owner may be
// of a webhook of the hub.
func marksOf(metadata map[string]any, users, theirs []fields) fields {
	out := fields{}
	for _, field := range []string{"labels", "annotations"} {
		values, _ := metadata[field].(map[string]any) // else there are none
		set := fields{}
		for key := range values {
			path := []string{"f:metadata", "f:" + field, "f:" + key}
			if owned(theirs, path) && !owned(users, path) {
				set["f:"+key] = fields{}
			}
		}
		if len(set) > 0 {
			out["f:"+field] = set
		}
	}
	return out
}

func owned(sets []fields, path []string) bool {
	return slices.ContainsFunc(sets, func(set fields) bool {
		for _, step := range path {
			next, ok := set[step].(fields)
			if !ok {
				return false
			}
			set = next
		}
		return true
	})
}

// missing returns the fields of a value that no set has.
func missing(value any, sets []fields) fields {
	out := fields{}
	below := func(step string, value any) {
		var next []fields
		found := false
		for _, set := range sets {
			s, ok := set[step].(fields)
			switch {
			case ok && len(s) == 0 && !slices.Contains(granular, step):
				return // all of it
			case ok:
				next, found = append(next, s), true
			}
		}
		if !found {
			out[step] = fields{}
		} else if rest := missing(value, next); len(rest) > 0 {
			out[step] = rest
		}
	}
	switch v := value.(type) {
	case map[string]any:
		for key, of := range v {
			below("f:"+key, of)
		}
	case []any:
		steps := make([]string, len(v))
		for _, set := range sets {
			for step := range set {
				if i := indexOf(v, step); i >= 0 {
					steps[i] = step
				}
			}
		}
		for i, step := range steps {
			if step == "" {
				step = stepOf(v[i], sets)
			}
			if step != "" {
				below(step, v[i])
			}
		}
	}
	return out
}

// indexOf is the place of the element of a list that a step of FieldsV1 names, -1 if there is none.
func indexOf(list []any, step string) int {
	kind, text, _ := strings.Cut(step, ":")
	var want any
	if kind != "k" && kind != "v" || json.Unmarshal([]byte(text), &want) != nil {
		return -1
	}
	keys, _ := want.(map[string]any) // of k
	return slices.IndexFunc(list, func(element any) bool {
		if kind == "v" {
			return element == want
		}
		m, _ := element.(map[string]any) // else it has no keys
		for key, value := range keys {
			if m[key] != value {
				return false
			}
		}
		return len(keys) > 0
	})
}

// stepOf names an element that no set has, in the way in which the sets name the others of its
// list; "" if they do not.
func stepOf(element any, sets []fields) string {
	for _, set := range sets {
		for step := range set {
			kind, text, _ := strings.Cut(step, ":")
			var of any
			if json.Unmarshal([]byte(text), &of) != nil {
				continue
			}
			var name any
			keys, _ := of.(map[string]any)   // of k
			m, _ := element.(map[string]any) // nil: it has no keys
			switch {
			case kind == "v":
				name = element
			case kind == "k" && m != nil:
				values := map[string]any{}
				for key := range keys {
					values[key] = m[key]
				}
				name = values
			default:
				continue
			}
			if raw, err := json.Marshal(name); err == nil {
				return kind + ":" + string(raw)
			}
		}
	}
	return ""
}

// Reduce replaces the managed fields of a template by an entry that names what is not its user's,
// for caches: they are half of the object. An object that was reduced is not written to, since
// others may read it.
func Reduce(u *unstructured.Unstructured) {
	metadata, _ := u.Object["metadata"].(map[string]any) // else it has no managed fields
	entries, _ := metadata["managedFields"].([]any)      // likewise
	if len(entries) == 1 {
		if entry, _ := entries[0].(map[string]any); entry["manager"] == manager { // nil has none
			return
		}
	}
	set := of(u)
	u.SetManagedFields(nil)
	if len(set) > 0 {
		metadata["managedFields"] = []any{map[string]any{"manager": manager, "operation": "Update", "apiVersion": u.GetAPIVersion(),
			"fieldsType": "FieldsV1", "fieldsV1": set}}
	}
}

// Drop removes from an object that was made of a template the fields that are not the user's,
// unless they have another value than in the template, such as that of an override. It returns them
// as RFC 6901 pointers, sorted, but for elements of lists.
func Drop(obj, template *unstructured.Unstructured) []string {
	var d dropped
	if set := of(template); len(set) > 0 {
		d.drop(obj.Object, template.Object, set, "")
	}
	slices.Sort(d)
	return d
}

// dropped are pointers of dropped fields.
type dropped []string

// drop removes the fields of a set from the value at a pointer. It returns what a list becomes.
func (d *dropped) drop(value, template any, set fields, at string) any {
	switch v := value.(type) {
	case map[string]any:
		t, ok := template.(map[string]any)
		if !ok {
			return value
		}
		for step, below := range set {
			key, isField := strings.CutPrefix(step, "f:")
			now, there := v[key]
			was, known := t[key]
			if !isField || !there || !known {
				continue
			}
			pointer := at + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(key)
			if rest, _ := below.(fields); len(rest) > 0 { // nil: no fields
				v[key] = d.drop(now, was, rest, pointer)
			} else if same(now, was) {
				delete(v, key)
				*d = append(*d, pointer)
			}
		}
	case []any:
		t, ok := template.([]any)
		if !ok {
			return value
		}
		gone := make([]bool, len(v))
		for step, below := range set {
			i, j := indexOf(v, step), indexOf(t, step)
			if i < 0 || j < 0 {
				continue
			}
			if rest, _ := below.(fields); len(rest) == 0 { // nil: no fields
				gone[i] = same(v[i], t[j])
			}
		}
		out := make([]any, 0, len(v))
		for i, element := range v {
			if !gone[i] {
				out = append(out, element)
			}
		}
		for step, below := range set {
			i, j := indexOf(out, step), indexOf(t, step)
			if rest, _ := below.(fields); len(rest) > 0 && i >= 0 && j >= 0 { // nil: no fields
				out[i] = d.drop(out[i], t[j], rest, fmt.Sprintf("%s/%d", at, i))
			}
		}
		return out
	}
	return value
}

func same(a, b any) bool {
	one, err := json.Marshal(a) // keys are sorted
	if err != nil {
		return false
	}
	other, err := json.Marshal(b)
	return err == nil && string(one) == string(other)
}
