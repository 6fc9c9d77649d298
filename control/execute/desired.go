package execute

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
)

// desired is what a Work wants in the member: the object, and the hash of it.
type desired struct {
	object *unstructured.Unstructured
	hash   string
	owned  []string // RFC 6901 pointers of pelago.io/member-owned
}

// wanted reads the manifest of a Work. The marks by which an object is known as ours are set here again, whatever the manifest
// says: deletion relies on them.
func wanted(work *workv1alpha1.Work, hubID string, in *kinds.Interpreter) (*desired, error) {
	manifests := work.Spec.Workload.Manifests
	if len(manifests) != 1 {
		return nil, fmt.Errorf("the Work holds %d manifests; it must be one", len(manifests))
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(manifests[0].Raw); err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	if u.GetName() == "" || u.IsList() {
		return nil, fmt.Errorf("the manifest, a %s, is no object with a name", u.GetKind())
	}
	if err := in.Prune(u); err != nil {
		return nil, err
	}
	mark(u, workv1alpha1.AnnotationWorkNamespace, work.Namespace)
	mark(u, workv1alpha1.AnnotationWorkName, work.Name)
	mark(u, pelagov1alpha1.AnnotationHubID, hubID)
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[workv1alpha1.LabelManaged] = "true"
	u.SetLabels(labels)

	d := &desired{object: u}
	if list := u.GetAnnotations()[policyv1alpha1.AnnotationMemberOwned]; list != "" {
		for pointer := range strings.SplitSeq(list, ",") {
			pointer = strings.TrimSpace(pointer)
			if !strings.HasPrefix(pointer, "/") {
				return nil, fmt.Errorf("annotation %s: %q is no RFC 6901 pointer; it begins with /",
					policyv1alpha1.AnnotationMemberOwned, pointer)
			}
			d.owned = append(d.owned, pointer)
		}
	}
	raw, err := json.Marshal(u.Object) // keys are sorted
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	d.hash = hashOf(raw)
	return d, nil
}

func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:12])
}

func mark(u *unstructured.Unstructured, key, value string) {
	a := u.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[key] = value
	u.SetAnnotations(a)
}

// putPrefix before the hash says that the object was written by PUT, so its fields have another owner than by server-side apply.
const putPrefix = "put-"

// applied says which manifest an object was made of last; byPut: not by server-side apply.
func applied(have *unstructured.Unstructured) (hash string, byPut bool) {
	return strings.CutPrefix(have.GetAnnotations()[workv1alpha1.AnnotationAppliedHash], putPrefix)
}

// isNamespace says whether an object is a Namespace.
func isNamespace(u *unstructured.Unstructured) bool {
	return u.GetKind() == "Namespace" && u.GroupVersionKind().Group == ""
}

// applySet is what is sent to the member's server-side apply: the desired object less the fields dropped, and with the member's
// value in each field that is the member's. Those are sent, not left out, since leaving out a field that nobody else owns removes
// it; the resourceVersion makes sure that the value is not an old one. have is nil if there is no object; the result is new.
func applySet(
	in *kinds.Interpreter, want *desired, have *unstructured.Unstructured, dropped []string, scaled bool,
) (*unstructured.Unstructured, error) {
	out := want.object.DeepCopy()
	for _, path := range dropped {
		dropField(out.Object, path)
	}
	if have == nil {
		if isNamespace(out) {
			mark(out, workv1alpha1.AnnotationCreatedNamespace, "true")
		}
		mark(out, workv1alpha1.AnnotationAppliedHash, want.hash)
		return out, nil
	}
	labels, annotations := out.GetLabels(), out.GetAnnotations()
	out, err := in.Retain(out, have)
	if err != nil {
		return nil, err
	}
	// Others' labels, annotations, finalizers and owners are nothing to apply: they stay because they are not sent.
	out.SetLabels(labels)
	out.SetAnnotations(annotations)
	unstructured.RemoveNestedField(out.Object, "metadata", "finalizers")
	unstructured.RemoveNestedField(out.Object, "metadata", "ownerReferences")
	leave(out, have, want, scaled)
	remark(out, have, want)
	mark(out, workv1alpha1.AnnotationAppliedHash, want.hash)
	out.SetUID(have.GetUID())
	return out, nil
}

// putSet is what replaces the member's object where server-side apply cannot be used.
func putSet(
	in *kinds.Interpreter, want *desired, have *unstructured.Unstructured, scaled bool,
) (*unstructured.Unstructured, error) {
	if have == nil {
		out, err := applySet(in, want, nil, nil, false)
		if err == nil {
			mark(out, workv1alpha1.AnnotationAppliedHash, putPrefix+want.hash)
		}
		return out, err
	}
	out, err := in.Retain(want.object, have)
	if err != nil {
		return nil, err
	}
	leave(out, have, want, scaled)
	remark(out, have, want)
	mark(out, workv1alpha1.AnnotationAppliedHash, putPrefix+want.hash)
	out.SetUID(have.GetUID())
	return out, nil
}

// leave gives the fields that controllers of the member own the values that they have there.
func leave(out, have *unstructured.Unstructured, want *desired, scaled bool) {
	pointers := want.owned
	if scaled {
		pointers = append([]string{"/spec/replicas"}, pointers...)
	}
	for _, pointer := range pointers {
		keep(out.Object, have.Object, strings.Split(strings.TrimPrefix(pointer, "/"), "/"))
	}
}

// remark sets what no pointer may take away, and keeps the mark of a Namespace that we made.
func remark(out, have *unstructured.Unstructured, want *desired) {
	for _, key := range []string{
		workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName, pelagov1alpha1.AnnotationHubID,
	} {
		mark(out, key, want.object.GetAnnotations()[key])
	}
	labels := maps.Clone(out.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[workv1alpha1.LabelManaged] = "true"
	out.SetLabels(labels)
	if made := have.GetAnnotations()[workv1alpha1.AnnotationCreatedNamespace]; made != "" {
		mark(out, workv1alpha1.AnnotationCreatedNamespace, made)
	}
}

// keep makes the field at a pointer (its reference tokens, RFC 6901 section 4) as it is in the member, also not there. An index of
// a list means the desired element; in the member it is the element of the same name, if it has one, as others may be before it.
func keep(out, have map[string]any, tokens []string) {
	token := strings.NewReplacer("~1", "/", "~0", "~").Replace(tokens[0])
	theirs, found := have[token]
	if len(tokens) == 1 {
		if found {
			out[token] = theirs // only read from here on
		} else {
			delete(out, token)
		}
		return
	}
	switch theirs := theirs.(type) {
	case map[string]any:
		ours, ok := out[token].(map[string]any)
		if !ok {
			ours = map[string]any{}
		}
		keep(ours, theirs, tokens[1:])
		if len(ours) > 0 {
			out[token] = ours
		}
	case []any:
		if ours, ok := out[token].([]any); ok {
			keepIn(ours, theirs, tokens[1:])
		}
	}
}

// keepIn does it for the element of a list.
func keepIn(ours, theirs []any, tokens []string) {
	for i, o := range ours {
		if fmt.Sprint(i) != tokens[0] {
			continue
		}
		t := counterpart(o, i, theirs)
		if t == nil {
			return
		}
		if len(tokens) == 1 {
			ours[i] = t
			return
		}
		om, ok := o.(map[string]any)
		tm, ok2 := t.(map[string]any)
		if ok && ok2 {
			keep(om, tm, tokens[1:])
		}
	}
}

func counterpart(of any, i int, theirs []any) any {
	if m, ok := of.(map[string]any); ok && m["name"] != nil {
		for _, t := range theirs {
			if tm, ok := t.(map[string]any); ok && tm["name"] == m["name"] {
				return t
			}
		}
		return nil
	}
	if i < len(theirs) {
		return theirs[i]
	}
	return nil
}

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
