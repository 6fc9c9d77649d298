package member

import (
	"fmt"
	"maps"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	utiluuid "k8s.io/apimachinery/pkg/util/uuid"
)

// create stores a new object. What a client has no say in is set here.
func (m *Member) create(r *resource, o *unstructured.Unstructured, manager string) (*unstructured.Unstructured, error) {
	if o.GetName() == "" && o.GetGenerateName() != "" {
		o.SetName(o.GetGenerateName() + rand.String(5))
	}
	if o.GetName() == "" {
		return nil, apierrors.NewBadRequest("metadata.name is missing")
	}
	if o.GetResourceVersion() != "" {
		return nil, bare("resourceVersion should not be set on objects to be created")
	}
	if err := m.roomFor(r, o); err != nil {
		return nil, err
	}
	if _, exists := m.sets[r].objects[key(o)]; exists {
		return nil, apierrors.NewAlreadyExists(r.groupResource(), o.GetName())
	}
	m.begin(r, o)
	made, err := m.manage(r, "", nil, o, manager)
	if err != nil {
		return nil, err
	}
	m.put(r, made)
	return made, nil
}

// roomFor refuses what is to be made in a namespace that does not exist, or goes.
func (m *Member) roomFor(r *resource, o *unstructured.Unstructured) error {
	if r.cluster {
		return nil
	}
	ns, err := m.get(namespaces, types.NamespacedName{Name: o.GetNamespace()})
	if err != nil {
		return err
	}
	if ns.GetDeletionTimestamp() != nil {
		return apierrors.NewForbidden(r.groupResource(), o.GetName(),
			fmt.Errorf("unable to create new content in namespace %s because it is being terminated", ns.GetName()))
	}
	return nil
}

// begin sets the metadata of a new object.
func (m *Member) begin(r *resource, o *unstructured.Unstructured) {
	o.SetUID(utiluuid.NewUUID())
	o.SetCreationTimestamp(metav1.NewTime(time.Now().UTC().Truncate(time.Second)))
	o.SetDeletionTimestamp(nil)
	o.SetDeletionGracePeriodSeconds(nil)
	o.SetSelfLink("")
	o.SetGeneration(0)
	if r.generation {
		o.SetGeneration(1)
	}
	if r.status {
		delete(o.Object, "status")
	}
	if r == namespaces {
		o.Object["spec"] = map[string]any{"finalizers": []any{"kubernetes"}}
		o.Object["status"] = map[string]any{"phase": "Active"}
	}
}

// replace puts a changed copy of an object in its place. Unchanged, it is left as it is; without
// its last finalizer, an object that is being deleted goes.
func (m *Member) replace(r *resource, old, o *unstructured.Unstructured, subresource, manager string) (*unstructured.Unstructured,
	error) {
	if err := m.preserve(r, old, o, subresource); err != nil {
		return nil, err
	}
	changed, err := m.manage(r, subresource, old, o, manager)
	if err != nil {
		return nil, err
	}
	return m.settle(r, old, changed), nil
}

// settle stores what replace or an apply has made of old.
func (m *Member) settle(r *resource, old, o *unstructured.Unstructured) *unstructured.Unstructured {
	if same(old, o) {
		return old
	}
	if o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0 && r != namespaces {
		m.remove(r, o)
		return o
	}
	m.put(r, o)
	return o
}

// same reports whether a write changes nothing; the times of managedFields do not count.
func same(a, b *unstructured.Unstructured) bool {
	if !maps.EqualFunc(a.Object, b.Object, func(x, y any) bool { return equality.Semantic.DeepEqual(x, y) }) {
		x, y := a.DeepCopy(), b.DeepCopy()
		for _, o := range []*unstructured.Unstructured{x, y} {
			fields := o.GetManagedFields()
			for i := range fields {
				fields[i].Time = nil
			}
			o.SetManagedFields(fields)
		}
		return equality.Semantic.DeepEqual(x.Object, y.Object)
	}
	return true
}

// preserve checks the preconditions that o carries and gives it what a client cannot change.
func (m *Member) preserve(r *resource, old, o *unstructured.Unstructured, subresource string) error {
	if v := o.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return conflict(r, old)
	}
	if uid := o.GetUID(); uid != "" && uid != old.GetUID() {
		return apierrors.NewConflict(r.groupResource(), old.GetName(), failed{"UID", string(uid), string(old.GetUID())})
	}
	if o.GetName() != old.GetName() || o.GetNamespace() != old.GetNamespace() {
		return apierrors.NewBadRequest("the name or namespace of the object does not match that of the request")
	}
	switch {
	case subresource == "status": // nothing but the status changes
		status, fields := o.Object["status"], o.GetManagedFields()
		o.Object = old.DeepCopy().Object
		o.SetManagedFields(fields)
		assign(o, "status", status)
	case r.status:
		assign(o, "status", old.DeepCopy().Object["status"])
	}
	o.SetUID(old.GetUID())
	o.SetResourceVersion(old.GetResourceVersion())
	o.SetCreationTimestamp(old.GetCreationTimestamp())
	o.SetDeletionTimestamp(old.GetDeletionTimestamp())
	o.SetDeletionGracePeriodSeconds(old.GetDeletionGracePeriodSeconds())
	o.SetGenerateName(old.GetGenerateName())
	o.SetGeneration(old.GetGeneration())
	if r.generation && specChanged(old, o) {
		o.SetGeneration(old.GetGeneration() + 1)
	}
	return nil
}

// specChanged reports whether anything but metadata and status differs.
func specChanged(a, b *unstructured.Unstructured) bool {
	rest := func(o *unstructured.Unstructured) map[string]any {
		c := maps.Clone(o.Object)
		delete(c, "metadata")
		delete(c, "status")
		return c
	}
	return !equality.Semantic.DeepEqual(rest(a), rest(b))
}

func assign(o *unstructured.Unstructured, field string, value any) {
	if value == nil {
		delete(o.Object, field)
		return
	}
	o.Object[field] = value
}

// bare is the error without a reason that real API servers answer where they did not expect one.
func bare(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
		Message: message}}
}

// failed is a precondition that does not hold, in the API server's words.
type failed struct{ field, want, have string }

func (f failed) Error() string {
	return fmt.Sprintf("Precondition failed: %[1]s in precondition: %[2]s, %[1]s in object meta: %[3]s", f.field, f.want, f.have)
}

func conflict(r *resource, o *unstructured.Unstructured) error {
	return apierrors.NewConflict(r.groupResource(), o.GetName(),
		fmt.Errorf("the object has been modified; please apply your changes to the latest version and try again"))
}

// erase deletes an object or, while it has finalizers, only marks it for deletion; gone reports
// which. Dependents stay: garbage collection is not simulated, so every propagation policy acts
// like Background without a garbage collector. The objects of a namespace go with it.
func (m *Member) erase(r *resource, name types.NamespacedName, o metav1.DeleteOptions) (last *unstructured.Unstructured, gone bool,
	err error) {
	old, err := m.get(r, name)
	if err != nil {
		return nil, false, err
	}
	if p := o.Preconditions; p != nil {
		if p.UID != nil && *p.UID != old.GetUID() {
			return nil, false, apierrors.NewConflict(r.groupResource(), name.Name, failed{"UID", string(*p.UID), string(old.GetUID())})
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion() {
			return nil, false, apierrors.NewConflict(r.groupResource(), name.Name,
				failed{"ResourceVersion", *p.ResourceVersion, old.GetResourceVersion()})
		}
	}
	if len(old.GetFinalizers()) == 0 && r != namespaces {
		m.remove(r, old)
		return old, true, nil
	}
	if old.GetDeletionTimestamp() != nil {
		return old, false, nil
	}
	marked := old.DeepCopy()
	now, none := metav1.NewTime(time.Now().UTC().Truncate(time.Second)), int64(0)
	marked.SetDeletionTimestamp(&now)
	if r == namespaces {
		marked.Object["status"] = map[string]any{"phase": "Terminating"}
		m.put(r, marked)
		return marked, m.empty(name.Name), nil
	}
	marked.SetDeletionGracePeriodSeconds(&none)
	if r.generation {
		marked.SetGeneration(marked.GetGeneration() + 1)
	}
	m.put(r, marked)
	return marked, false, nil
}

// empty deletes all in a namespace that is to go, then the namespace, and reports whether it is
// gone.
func (m *Member) empty(namespace string) bool {
	left := 0
	for i := range resources {
		r := &resources[i]
		if r.cluster {
			continue
		}
		for name := range maps.Clone(m.sets[r].objects) {
			if name.Namespace != namespace {
				continue
			}
			// it exists: we have the lock
			if _, gone, err := m.erase(r, name, metav1.DeleteOptions{}); err == nil && !gone {
				left++
			}
		}
	}
	ns, err := m.get(namespaces, types.NamespacedName{Name: namespace})
	if err != nil || left > 0 || len(ns.GetFinalizers()) > 0 {
		return err != nil
	}
	m.remove(namespaces, ns)
	return true
}

// removed finishes the deletion of a namespace when what it waited for has gone.
func (m *Member) removed(r *resource, o *unstructured.Unstructured) {
	if t := m.timers[o.GetUID()]; t != nil {
		t.Stop()
		delete(m.timers, o.GetUID())
	}
	if r.cluster || len(o.GetFinalizers()) == 0 && o.GetDeletionTimestamp() == nil {
		return // the deletion of a namespace itself removes the latter
	}
	if ns, err := m.get(namespaces, types.NamespacedName{Name: o.GetNamespace()}); err == nil && ns.GetDeletionTimestamp() != nil {
		m.empty(ns.GetName())
	}
}
