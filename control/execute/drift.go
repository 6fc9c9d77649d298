package execute

import (
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
)

// digest is the hash of what decides whether an object in the member is as it should be: all of it but the status, and of the
// metadata our labels and annotations. Equal digests of one object need no look into it.
func digest(set, have *unstructured.Unstructured) (string, error) {
	view := maps.Clone(have.Object)
	delete(view, "metadata")
	delete(view, "status")
	ours := func(of, all map[string]string) map[string]string {
		out := map[string]string{}
		for key := range of {
			if value, ok := all[key]; ok {
				out[key] = value
			}
		}
		return out
	}
	view["labels"] = ours(set.GetLabels(), have.GetLabels())
	view["annotations"] = ours(set.GetAnnotations(), have.GetAnnotations())
	raw, err := json.Marshal(view)
	if err != nil {
		return "", err
	}
	return string(have.GetUID()) + hashOf(raw), nil
}

// exact says whether a field is a map that server-side apply replaces as a whole in the kinds of Kubernetes (selectors and
// references); another key in it is drift.
func exact(field string) bool {
	field = strings.ToLower(field)
	return strings.HasSuffix(field, "selector") || strings.HasSuffix(field, "ref") || field == "matchlabels"
}

// contains says whether all that is wanted is there; more may be there, such as defaults. In doubt it says no: then an apply is
// made, which changes nothing if nothing is to change. want may hold a resourceVersion or uid only if they are equal.
func contains(want, have any) bool {
	switch w := want.(type) {
	case nil:
		return true
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok {
			return false
		}
		for key, value := range w {
			theirs, found := h[key]
			if !found && value != nil || !contains(value, theirs) {
				return false
			}
			if m, ok := value.(map[string]any); ok && exact(key) {
				if t, ok := theirs.(map[string]any); ok && len(t) != len(m) {
					return false
				}
			}
		}
		return true
	case []any:
		h, ok := have.([]any)
		if !ok || len(h) != len(w) {
			return false
		}
		for i := range w {
			if !contains(w[i], h[i]) {
				return false
			}
		}
		return true
	}
	return want == have
}
