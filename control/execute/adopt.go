package execute

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/csaupgrade"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// owner says whose an object in the member is.
type owner int

const (
	unmanaged owner = iota
	oursOfWork
	oursOfOther // another Work of this hub
	otherHub
)

// ownerOf reads the marks. The hub id decides; without the label, as long as the id is there, somebody has changed our object.
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

// overwrites says whether the template may take over an object that is not managed.
func overwrites(want *unstructured.Unstructured) bool {
	resolution := want.GetAnnotations()[workv1alpha1.AnnotationConflictResolution]
	return strings.EqualFold(resolution, workv1alpha1.ConflictResolutionOverwrite)
}

// controllers of Kubernetes that write fields of objects which others made. They go on writing them, so they keep them.
var controllers = sets.New("kube-controller-manager", "kube-scheduler", "kubelet", "cloud-controller-manager")

// adopted moves the fields of all former managers to ours, so that a field which the template no longer has goes away. Who manages
// a subresource (status, scale) and the controllers of Kubernetes keep theirs. Former managers by server-side apply count like
// those by update (csaupgrade knows the latter only). It returns false if nothing is to be moved.
func adopted(fields []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, bool, error) {
	former := sets.New[string]()
	entries := make([]metav1.ManagedFieldsEntry, len(fields))
	for i, entry := range fields {
		ours := entry.Manager == fieldOwner && entry.Operation == metav1.ManagedFieldsOperationApply
		if entry.Subresource == "" && !ours && !controllers.Has(entry.Manager) {
			entry.Operation = metav1.ManagedFieldsOperationUpdate
			// One name, so that each is united with ours however many entries there are.
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
