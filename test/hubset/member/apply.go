package member

import (
	"errors"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/applyconfigurations"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// schemas are those of Kubernetes' own kinds: which list is a map, and which fields there are.
var schemas = applyconfigurations.NewTypeConverter(clientgoscheme.Scheme)

type managerKey struct {
	resource    *resource
	subresource string
}

// fieldManager keeps managedFields and merges what is applied, by the code that real API servers
// run.
func (m *Member) fieldManager(r *resource, subresource string) (*managedfields.FieldManager, error) {
	k := managerKey{r, subresource}
	if f := m.managers[k]; f != nil {
		return f, nil
	}
	f, err := managedfields.NewDefaultFieldManager(schemas, oneVersion{}, oneVersion{}, oneVersion{}, r.gvk(),
		r.gvk().GroupVersion(), subresource, nil)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	m.managers[k] = f
	return f, nil
}

// manage records in managedFields who has changed what.
func (m *Member) manage(r *resource, subresource string, old, o *unstructured.Unstructured,
	manager string) (*unstructured.Unstructured, error) {
	f, err := m.fieldManager(r, subresource)
	if err != nil {
		return nil, err
	}
	if old == nil {
		old = blank(r.gvk())
	}
	managed, err := f.Update(old.DeepCopy(), o, manager)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return managed.(*unstructured.Unstructured), nil
}

// apply merges a configuration into an object, which it makes if none exists; created reports it.
func (m *Member) apply(r *resource, name types.NamespacedName, subresource string, patch *unstructured.Unstructured,
	manager string, force bool,
) (result *unstructured.Unstructured, created bool, err error) {
	if manager == "" {
		return nil, false, apierrors.NewBadRequest("fieldManager is required for apply patch")
	}
	if len(patch.GetManagedFields()) > 0 {
		return nil, false, apierrors.NewBadRequest("metadata.managedFields must be nil")
	}
	old, exists := m.sets[r].objects[name]
	if !exists {
		if subresource != "" {
			return nil, false, apierrors.NewNotFound(r.groupResource(), name.Name)
		}
		old = blank(r.gvk())
	}
	if r.status && subresource == "" {
		delete(patch.Object, "status")
	}
	f, err := m.fieldManager(r, subresource)
	if err != nil {
		return nil, false, err
	}
	merged, err := f.Apply(old.DeepCopy(), patch, manager, force)
	if err != nil {
		return nil, false, asStatus(err)
	}
	o := merged.(*unstructured.Unstructured)
	if exists {
		if err := m.preserve(r, old, o, subresource); err != nil {
			return nil, false, err
		}
		return m.settle(r, old, o), false, nil
	}
	if uid := o.GetUID(); uid != "" {
		return nil, false, apierrors.NewConflict(r.groupResource(), name.Name, failed{"UID", string(uid), ""})
	}
	if o.GetResourceVersion() != "" {
		return nil, false, apierrors.NewNotFound(r.groupResource(), name.Name)
	}
	if err := m.roomFor(r, o); err != nil {
		return nil, false, err
	}
	o.SetName(name.Name)
	o.SetNamespace(name.Namespace)
	m.begin(r, o)
	m.put(r, o)
	return o, true, nil
}

// asStatus is what a client sees of an error of the merge: conflicts have their status already.
func asStatus(err error) error {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return err
	}
	return bare(err.Error())
}

func blank(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(gvk)
	return o
}

// oneVersion converts nothing, defaults nothing and makes empty objects: every kind has one version
// here.
type oneVersion struct{}

func (oneVersion) Convert(in, out, context any) error { return nil }

func (oneVersion) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	return in, nil
}

func (oneVersion) ConvertFieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

func (oneVersion) Default(runtime.Object) {}

func (oneVersion) New(kind schema.GroupVersionKind) (runtime.Object, error) { return blank(kind), nil }
