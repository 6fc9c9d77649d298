package execute

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
)

// desired is the desired state of a Work's object in the member.
type desired struct {
	object *unstructured.Unstructured
	hash   string   // of the object
	owned  []string // RFC 6901 pointers of pelago.io/member-owned
}

// manifest is one of a Work, which identifies its object in the member. One with an error was never
// applied.
type manifest struct {
	object *unstructured.Unstructured
	err    error
}

// manifestsOf reads the manifests of a Work: the hub writes one, users may write several. A second
// one of the same object is an error.
func manifestsOf(work *workv1alpha1.Work) []manifest {
	out := make([]manifest, len(work.Spec.Workload.Manifests))
	first := map[objectKey]int{}
	for i, m := range work.Spec.Workload.Manifests {
		u, err := manifestOf(m)
		if err == nil {
			if j, again := first[keyOf(u)]; again {
				err = fmt.Errorf("%s is manifest %d as well; remove one of the two", describe(u), j)
			} else {
				first[keyOf(u)] = i
			}
		}
		out[i] = manifest{u, err}
	}
	return out
}

func manifestOf(m workv1alpha1.Manifest) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(m.Raw); err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	if u.GetName() == "" || u.IsList() {
		return nil, fmt.Errorf("the manifest, a %s, is no object with a name", u.GetKind())
	}
	return u, nil
}

// removedOf are the objects that the status of a Work reports and that it no longer holds.
func removedOf(work *workv1alpha1.Work, manifests []manifest) (out []*unstructured.Unstructured) {
	held := map[objectKey]bool{}
	for _, m := range manifests {
		if m.err == nil {
			held[keyOf(m.object)] = true
		}
	}
	for _, s := range work.Status.ManifestStatuses {
		id := s.Identifier
		u := ofKind(schema.GroupVersionKind{Group: id.Group, Version: id.Version, Kind: id.Kind})
		u.SetNamespace(id.Namespace)
		u.SetName(id.Name)
		if id.Kind != "" && id.Version != "" && id.Name != "" && !held[keyOf(u)] {
			out = append(out, u)
		}
	}
	return out
}

// desiredOf computes the desired state from the manifest of a Work, which it changes. It sets the
// labels and annotations by which objects are ours, which deletion relies on, whatever the manifest
// has.
func desiredOf(u *unstructured.Unstructured, work *workv1alpha1.Work, hubID string, in *kinds.Interpreter) (*desired, error) {
	if err := in.Prune(u); err != nil {
		return nil, err
	}
	kinds.NoteReferences(u)
	annotate(u, workv1alpha1.AnnotationWorkNamespace, work.Namespace)
	annotate(u, workv1alpha1.AnnotationWorkName, work.Name)
	annotate(u, pelagov1alpha1.AnnotationHubID, hubID)
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

func annotate(u *unstructured.Unstructured, key, value string) {
	a := u.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	a[key] = value
	u.SetAnnotations(a)
}

// putPrefix of the hash marks objects written by PUT, whose fields are not owned by server-side
// apply.
const putPrefix = "put-"

// applied returns the hash of the manifest that an object was last written from, and whether it was
// written by PUT.
func applied(have *unstructured.Unstructured) (hash string, byPut bool) {
	return strings.CutPrefix(have.GetAnnotations()[workv1alpha1.AnnotationAppliedHash], putPrefix)
}

// isNamespace reports whether an object is a Namespace.
func isNamespace(u *unstructured.Unstructured) bool {
	return u.GetKind() == "Namespace" && u.GroupVersionKind().Group == ""
}

// applySet returns the body of a server-side apply: the desired object without the dropped fields,
// and with the observed value of each member-owned field. Those are sent because apply removes an
// omitted field that has no other manager; the resourceVersion is the precondition that the value
// is current. have is nil if there is no object; the result is new.
func applySet(
	in *kinds.Interpreter, want *desired, have *unstructured.Unstructured, dropped []string, scaled bool,
) (*unstructured.Unstructured, error) {
	out := want.object.DeepCopy()
	for _, path := range dropped {
		dropField(out.Object, path)
	}
	if have == nil {
		if isNamespace(out) {
			annotate(out, workv1alpha1.AnnotationCreatedNamespace, "true")
		}
		annotate(out, workv1alpha1.AnnotationAppliedHash, want.hash)
		return out, nil
	}
	labels, annotations := out.GetLabels(), out.GetAnnotations()
	out, err := in.Retain(out, have)
	if err != nil {
		return nil, err
	}
	// Labels, annotations, finalizers and owners of others are retained by not applying them.
	out.SetLabels(labels)
	out.SetAnnotations(annotations)
	unstructured.RemoveNestedField(out.Object, "metadata", "finalizers")
	unstructured.RemoveNestedField(out.Object, "metadata", "ownerReferences")
	setMemberOwned(out, have, want, scaled)
	setOwner(out, have, want)
	annotate(out, workv1alpha1.AnnotationAppliedHash, want.hash)
	out.SetUID(have.GetUID())
	return out, nil
}

// putSet returns the body of a PUT, for objects that server-side apply refuses.
func putSet(
	in *kinds.Interpreter, want *desired, have *unstructured.Unstructured, scaled bool,
) (*unstructured.Unstructured, error) {
	if have == nil {
		out, err := applySet(in, want, nil, nil, false)
		if err == nil {
			annotate(out, workv1alpha1.AnnotationAppliedHash, putPrefix+want.hash)
		}
		return out, err
	}
	out, err := in.Retain(want.object, have)
	if err != nil {
		return nil, err
	}
	setMemberOwned(out, have, want, scaled)
	setOwner(out, have, want)
	annotate(out, workv1alpha1.AnnotationAppliedHash, putPrefix+want.hash)
	out.SetUID(have.GetUID())
	return out, nil
}

// setMemberOwned sets member-owned fields to their observed values.
func setMemberOwned(out, have *unstructured.Unstructured, want *desired, scaled bool) {
	pointers := want.owned
	if scaled {
		pointers = append([]string{"/spec/replicas"}, pointers...)
	}
	for _, pointer := range pointers {
		copyPointer(out.Object, have.Object, strings.Split(strings.TrimPrefix(pointer, "/"), "/"))
	}
}

// setOwner sets the labels and annotations that no member-owned pointer may remove, and keeps the
// annotation of a Namespace that we created.
func setOwner(out, have *unstructured.Unstructured, want *desired) {
	for _, key := range []string{
		workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName, pelagov1alpha1.AnnotationHubID,
	} {
		annotate(out, key, want.object.GetAnnotations()[key])
	}
	labels := maps.Clone(out.GetLabels())
	if labels == nil {
		labels = map[string]string{}
	}
	labels[workv1alpha1.LabelManaged] = "true"
	out.SetLabels(labels)
	if made := have.GetAnnotations()[workv1alpha1.AnnotationCreatedNamespace]; made != "" {
		annotate(out, workv1alpha1.AnnotationCreatedNamespace, made)
	}
}

// copyPointer sets the field at a pointer (its reference tokens, RFC 6901 section 4) to its
// observed value, or removes it. An index refers to the desired list; the observed element is the
// one of the same name, if it has a name.
func copyPointer(out, have map[string]any, tokens []string) {
	token := strings.NewReplacer("~1", "/", "~0", "~").Replace(tokens[0])
	theirs, found := have[token]
	if len(tokens) == 1 {
		if found {
			out[token] = theirs // not modified afterwards
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
		copyPointer(ours, theirs, tokens[1:])
		if len(ours) > 0 {
			out[token] = ours
		}
	case []any:
		if ours, ok := out[token].([]any); ok {
			copyElement(ours, theirs, tokens[1:])
		}
	}
}

// copyElement does the same for an element of a list.
func copyElement(ours, theirs []any, tokens []string) {
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
			copyPointer(om, tm, tokens[1:])
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

// digest is the hash of the fields that the desired state depends on: all but the status, and of
// the metadata only our labels and annotations. An object with the digest of its last settled state
// needs no comparison.
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

// exact reports whether a field is an atomic map in the kinds of Kubernetes (selectors and
// references): another key in it is drift.
func exact(field string) bool {
	field = strings.ToLower(field)
	return strings.HasSuffix(field, "selector") || strings.HasSuffix(field, "ref") || field == "matchlabels"
}

// contains reports whether have has all values of want, and possibly others, such as defaults. It
// may be false for equal states: then an apply that changes nothing follows.
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
