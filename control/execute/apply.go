package execute

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

const (
	// maxDrops bounds the attempts with fewer fields: the server does not name all unknown fields
	// at once.
	maxDrops = 5
	// minRevert and maxRevert bound the exponential backoff of reverting changes that a controller
	// of the member makes repeatedly. It is reset after quietRevert.
	minRevert, maxRevert, quietRevert = 100 * time.Millisecond, 30 * time.Second, 5 * time.Minute
)

// create creates the object. It was just read as absent; one created meanwhile is not overwritten.
// One that was settled has been deleted by others: its creation is a revert.
func (t *task) create(ctx context.Context, want *desired) (*unstructured.Unstructured, error) {
	known := t.state.settled != ""
	if known {
		if err := t.mayRevert(); err != nil {
			return nil, err
		}
	}
	made, err := t.write(ctx, want, nil, false)
	count(t.o.Metrics.created, t.o.Cluster, want.object, err)
	if err != nil {
		return nil, err
	}
	t.state.changedAt = time.Now()
	if known {
		t.reverted(want, "was deleted")
	}
	return made, t.settle(want, made)
}

// update brings an object of ours to its desired state.
func (t *task) update(ctx context.Context, want *desired, have *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	now, err := digest(want.object, have)
	if err != nil {
		return nil, err
	}
	scaled, err := t.scaled(ctx, want.object)
	if err != nil {
		return nil, err
	}
	if now == t.state.settled && scaled == t.state.scaled {
		return have, nil
	}
	if !scaled {
		if scaled, err = t.scaledMeanwhile(ctx, want.object, have); err != nil {
			return nil, err
		}
	}
	if err := headless(want.object, have); err != nil {
		return t.recreate(ctx, want, have, err)
	}
	hash, put := applied(have)
	// this manifest was applied before
	same := hash == want.hash && ownerOf(have, t.o.HubID, t.key()) == oursOfWork
	if same {
		t.state.put = t.state.put || put
		set, err := t.set(want, have, scaled)
		if err != nil {
			return nil, err
		}
		if contains(withoutPreconditions(set), have.Object) {
			t.state.settled, t.state.scaled = now, scaled
			return have, nil
		}
		if err := t.mayRevert(); err != nil {
			return nil, err
		}
	}
	if put && !t.state.put && hash != want.hash { // apply does not remove fields that PUT owns
		live, err := t.live(ctx, want.object)
		if err != nil || live == nil {
			return nil, orRetry(err)
		}
		if have, err = t.adopt(ctx, live, anyManager); err != nil {
			return nil, err
		}
	}
	made, err := t.write(ctx, want, have, scaled)
	if immutable(err) {
		return t.recreate(ctx, want, have, err)
	}
	if err != nil {
		count(t.o.Metrics.updated, t.o.Cluster, want.object, err)
		return nil, err
	}
	known := t.state.settled != ""
	t.state.scaled = scaled
	if made.GetResourceVersion() == have.GetResourceVersion() {
		return made, t.settle(want, made)
	}
	count(t.o.Metrics.updated, t.o.Cluster, want.object, nil)
	t.state.changedAt = time.Now()
	if same && known {
		t.reverted(want, "changed")
	}
	return made, t.settle(want, made)
}

// settle records the object as our write left it.
func (t *task) settle(want *desired, made *unstructured.Unstructured) error {
	t.objects.put(t.part, made)
	t.objectVersions.Expect(t.part, made.GetResourceVersion(), time.Now())
	var err error
	t.state.settled, err = digest(want.object, made)
	return err
}

// reverted records that a change by others was reverted.
func (t *task) reverted(want *desired, what string) {
	t.o.Recorder.Eventf(t.work, corev1.EventTypeNormal, workv1alpha2.EventSyncSucceed,
		"%s %s in the cluster %s, and applied again", describe(want.object), what, t.o.Cluster)
	t.state.reverts++
	t.state.revertedAt = t.state.changedAt
}

// mayRevert returns retryLater during the backoff of reverts.
func (t *task) mayRevert() error {
	if t.state.reverts == 0 {
		return nil
	}
	since := time.Since(t.state.revertedAt)
	if since > quietRevert {
		t.state.reverts = 0
		return nil
	}
	backoff := min(minRevert<<min(t.state.reverts-1, 10), maxRevert)
	if since < backoff {
		return retryLater{backoff - since, "is changed or deleted in the cluster again and again"}
	}
	return nil
}

// withoutPreconditions removes the fields that only state a precondition.
func withoutPreconditions(set *unstructured.Unstructured) map[string]any {
	set = set.DeepCopy()
	unstructured.RemoveNestedField(set.Object, "metadata", "resourceVersion")
	unstructured.RemoveNestedField(set.Object, "metadata", "uid")
	return set.Object
}

// set returns the body of the request that would be written over have.
func (t *task) set(want *desired, have *unstructured.Unstructured, scaled bool) (*unstructured.Unstructured, error) {
	if t.state.put {
		return putSet(t.o.Interpreter, want, have, scaled)
	}
	return applySet(t.o.Interpreter, want, have, t.state.dropped, scaled)
}

// write applies the object, without the fields that the member does not know; with duplicate list
// keys it is written by PUT.
func (t *task) write(
	ctx context.Context, want *desired, have *unstructured.Unstructured, scaled bool,
) (*unstructured.Unstructured, error) {
	for range maxDrops {
		set, err := t.set(want, have, scaled)
		if err != nil {
			return nil, err
		}
		if err := t.fresh(); err != nil {
			return nil, err
		}
		switch {
		case t.state.put && have == nil:
			err = t.member.client.Create(ctx, set, client.FieldOwner(fieldOwner))
			return set, err
		case t.state.put:
			err = t.member.client.Update(ctx, set, client.FieldOwner(fieldOwner))
			return set, err
		}
		options := []client.ApplyOption{client.FieldOwner(fieldOwner)}
		if have != nil {
			options = append(options, client.ForceOwnership)
		}
		err = t.member.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(set), options...)
		switch paths := undeclared(err); {
		case duplicates(err):
			t.state.put = true
			continue
		case len(paths) > 0:
			probe, dropped := want.object.DeepCopy(), slices.Clone(t.state.dropped)
			for _, path := range dropped {
				dropField(probe.Object, path)
			}
			for _, path := range paths {
				if dropField(probe.Object, path) {
					dropped = append(dropped, path)
				}
			}
			if len(dropped) > len(t.state.dropped) {
				t.state.dropped = dropped
				continue
			}
		}
		return set, err
	}
	return nil, fmt.Errorf("the schema of the cluster lacks more than these of its fields: %v", t.state.dropped)
}

// adopt moves the fields of an object's former managers to ours.
func (t *task) adopt(ctx context.Context, have *unstructured.Unstructured, from func(manager string) bool) (*unstructured.Unstructured, error) {
	fields, moved, err := adopted(have.GetManagedFields(), from)
	if err != nil || !moved {
		return have, err
	}
	patch, err := json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": fields},
		// precondition
		{"op": "replace", "path": "/metadata/resourceVersion", "value": have.GetResourceVersion()},
	})
	if err != nil {
		return nil, fmt.Errorf("move the fields of former managers: %w", err)
	}
	if err := t.fresh(); err != nil {
		return nil, err
	}
	made := ofKind(have.GroupVersionKind())
	made.SetNamespace(have.GetNamespace())
	made.SetName(have.GetName())
	err = t.member.client.Patch(ctx, made, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(fieldOwner))
	if err != nil {
		return nil, err
	}
	return made, nil
}

// orRetry returns retryLater for an object that was deleted meanwhile.
func orRetry(err error) error {
	if err == nil {
		return retryLater{minRetry, "has gone meanwhile"}
	}
	return err
}

// owner is the owner of an object in the member.
type owner int

const (
	unmanaged owner = iota
	oursOfWork
	oursOfOther // another Work of this hub
	otherHub
)

// ownerOf reads the owner from the annotations. The hub id decides: an object with it and without
// the label karmada.io/managed is ours, changed in the member.
func ownerOf(have *unstructured.Unstructured, hubID string, work types.NamespacedName) owner {
	a := have.GetAnnotations()
	switch id := a[pelagov1alpha1.AnnotationHubID]; id {
	case hubID:
	case "":
		return unmanaged
	default:
		return otherHub
	}
	if a[workv1alpha1.AnnotationWorkNamespace] == work.Namespace && a[workv1alpha1.AnnotationWorkName] == work.Name {
		return oursOfWork
	}
	return oursOfOther
}

// overwrites reports whether the template may take over an unmanaged object.
func overwrites(want *unstructured.Unstructured) bool {
	resolution := want.GetAnnotations()[workv1alpha1.AnnotationConflictResolution]
	return strings.EqualFold(resolution, workv1alpha1.ConflictResolutionOverwrite)
}

// propagated reports whether an unmanaged object is Karmada's copy of the template that want is
// made of. Karmada notes the UID of the template, which no other hub has.
func propagated(want, have *unstructured.Unstructured) bool {
	uid := have.GetAnnotations()[workv1alpha2.AnnotationTemplateUID]
	return have.GetLabels()[workv1alpha1.LabelManaged] == "true" && uid != "" && uid == want.GetAnnotations()[workv1alpha2.AnnotationTemplateUID]
}

// karmada reports whether a manager of fields is Karmada's: karmada-controller-manager,
// karmada-agent. What others have set in Karmada's copy, such as the annotation of `kubectl rollout
// restart`, stays, so that no pod is replaced.
func karmada(manager string) bool { return strings.HasPrefix(manager, "karmada-") }

func anyManager(string) bool { return true }

// controllers of Kubernetes set fields of objects of others. They keep those on adoption.
var controllers = sets.New("kube-controller-manager", "kube-scheduler", "kubelet", "cloud-controller-manager")

// adopted moves the fields of those former managers to ours, so that apply removes those which the
// template no longer has. Managers of subresources (status, scale) and controllers of Kubernetes
// keep theirs. Managers by server-side apply are treated as those by update, the only ones that
// csaupgrade moves. It returns false if there is nothing to move.
func adopted(fields []metav1.ManagedFieldsEntry, from func(manager string) bool) ([]metav1.ManagedFieldsEntry, bool, error) {
	former := sets.New[string]()
	entries := make([]metav1.ManagedFieldsEntry, len(fields))
	for i, entry := range fields {
		ours := entry.Manager == fieldOwner && entry.Operation == metav1.ManagedFieldsOperationApply
		if entry.Subresource == "" && !ours && !controllers.Has(entry.Manager) && from(entry.Manager) {
			entry.Operation = metav1.ManagedFieldsOperationUpdate
			// Names are made unique: csaupgrade merges one entry of a name.
			entry.Manager = fmt.Sprintf("%s#%d", entry.Manager, i)
			former.Insert(entry.Manager)
		}
		entries[i] = entry
	}
	if len(former) == 0 {
		return fields, false, nil
	}
	holder := &unstructured.Unstructured{Object: map[string]any{}}
	holder.SetManagedFields(entries)
	if err := csaupgrade.UpgradeManagedFields(holder, former, fieldOwner); err != nil {
		return nil, false, fmt.Errorf("move the fields of former managers: %w", err)
	}
	return holder.GetManagedFields(), true, nil
}

// Errors of server-side apply about the schema (structured-merge-diff, typed/validate.go). Paths
// have the form of fieldpath.Path.String: .spec.template.spec.containers[name="x"].field
var (
	undeclaredField = regexp.MustCompile(`(\.[^\s]*(?:\[[^\]]*\][^\s]*)*): field not declared in schema`)
	duplicateKey    = regexp.MustCompile(`duplicate entries for key`)
)

// undeclared returns the paths that are not in the member's schema.
func undeclared(err error) []string {
	if err == nil {
		return nil
	}
	var paths []string
	for _, found := range undeclaredField.FindAllStringSubmatch(err.Error(), -1) {
		paths = append(paths, found[1])
	}
	return paths
}

// duplicates reports whether a list has two elements of one key.
func duplicates(err error) bool { return err != nil && duplicateKey.MatchString(err.Error()) }

// dropField removes the field at a path and reports whether it was there. The path is matched
// against the object's keys, since keys may contain dots.
func dropField(object map[string]any, path string) bool {
	if !strings.HasPrefix(path, ".") {
		return false
	}
	for key, value := range object {
		rest, ok := strings.CutPrefix(path[1:], key)
		switch {
		case !ok:
		case rest == "":
			delete(object, key)
			return true
		case dropBelow(value, rest):
			return true
		}
	}
	return false
}

func dropBelow(value any, path string) bool {
	switch v := value.(type) {
	case map[string]any:
		return dropField(v, path)
	case []any:
		for i, element := range v {
			if rest, ok := strings.CutPrefix(path, fmt.Sprintf("[%d]", i)); ok && dropBelow(element, rest) {
				return true
			}
			m, ok := element.(map[string]any)
			if !ok || !strings.HasPrefix(path, "[") {
				continue
			}
			if rest, ok := afterKeys(m, path); ok && dropBelow(element, rest) {
				return true
			}
		}
	}
	return false
}

// afterKeys returns the path after [key="value",other=1] if the element has these keys. A missing
// key has its default and matches.
func afterKeys(element map[string]any, path string) (string, bool) {
	path = path[1:]
	for {
		key, rest, ok := strings.Cut(path, "=")
		if !ok {
			return "", false
		}
		var value any
		d := strings.NewReader(rest)
		decoder := json.NewDecoder(d)
		if err := decoder.Decode(&value); err != nil {
			return "", false
		}
		rest = rest[decoder.InputOffset():]
		if have, found := element[key]; found && fmt.Sprint(have) != fmt.Sprint(value) {
			return "", false
		}
		switch {
		case strings.HasPrefix(rest, ","):
			path = rest[1:]
		case strings.HasPrefix(rest, "]"):
			return rest[1:], true
		default:
			return "", false
		}
	}
}
