package execute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// remove deletes the objects of a Work that is being deleted, the last one first, then removes the
// finalizer of the Work.
func (t *task) remove(ctx context.Context, suppressed bool) (reconcile.Result, error) {
	if suppressed {
		return reconcile.Result{}, t.release(ctx)
	}
	// Only what identifies the objects: their annotations and the rules of their kinds may have
	// become invalid since they were applied.
	var wants []*unstructured.Unstructured
	parts := []string{}
	manifests := manifestsOf(t.work)
	for i, m := range manifests {
		if m.err == nil {
			wants, parts = append(wants, m.object), append(parts, partOf(t.work.Name, i))
		}
	}
	for _, u := range removedOf(t.work, manifests) {
		wants, parts = append(wants, u), append(parts, t.work.Name)
	}
	if cause := t.member.unavailable(); cause != "" && len(wants) > 0 {
		return t.report(ctx, outcome{kept: true, failure: unreachable(t.o.Cluster, cause)}, 0)
	}
	var left []error
	var messages []string
	for i, want := range slices.Backward(wants) {
		err := t.of(parts[i]).removeObject(ctx, want)
		if err == nil {
			continue
		}
		if errors.Is(err, errStale) || apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: minRetry}, nil
		}
		if maybeUnreachable(err) {
			if cause := t.member.verify(ctx); cause != "" {
				return t.report(ctx, outcome{kept: true, failure: unreachable(t.o.Cluster, cause)}, 0)
			}
		}
		left, messages = append(left, err), append(messages, explain(t.o.Cluster, want, err))
	}
	if len(left) == 0 {
		return reconcile.Result{}, t.release(ctx)
	}
	due := wait.Jitter(t.retries.When(t.work.Name), 0.2)
	since, silent := time.Since(t.work.DeletionTimestamp.Time), true
	for _, err := range left {
		var later retryLater
		if !errors.As(err, &later) {
			silent = false
			continue
		}
		if since < collectorTime {
			due = min(due, time.Second) // other objects have no event, and usually end by then
		}
		silent = silent && since < later.Duration
	}
	if silent { // usually finished by then, and not reported
		return reconcile.Result{RequeueAfter: due}, nil
	}
	return t.report(ctx, outcome{kept: true, failure: truncate(strings.Join(messages, "; "))}, due)
}

// removeObject deletes the object of one manifest. It returns nil once it is gone or not ours.
func (t *task) removeObject(ctx context.Context, want *unstructured.Unstructured) error {
	// The watch reports when an object with finalizers is gone.
	_, err := t.kinds.use(ctx, t.part, want.GroupVersionKind())
	if err == nil {
		err = t.deleteObject(ctx, want)
	}
	if kube.NotServed(err) {
		err = t.deleteServed(ctx, want)
	}
	return err
}

// release removes the finalizer of the Work.
func (t *task) release(ctx context.Context) error {
	if err := t.fresh(); err != nil {
		return err
	}
	before := t.work.DeepCopy()
	controllerutil.RemoveFinalizer(t.work, workv1alpha1.FinalizerExecution)
	err := t.o.Hub.Patch(ctx, t.work, kube.MergeFrom(before))
	switch {
	case apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		t.queue.AddAfter(reconcile.Request{NamespacedName: t.key()}, minRetry)
	case err != nil:
		return fmt.Errorf("remove the finalizer of Work %s: %w", t.key(), err)
	}
	return nil
}

// deleteObject deletes the object, or removes our labels and annotations if it is preserved. It
// returns nil once the object is gone or not ours.
func (t *task) deleteObject(ctx context.Context, want *unstructured.Unstructured) error {
	have, err := t.live(ctx, want)
	if err != nil || have == nil || ownerOf(have, t.o.HubID, t.key()) != oursOfWork {
		return err
	}
	switch {
	case ptr.Deref(t.work.Spec.PreserveResourcesOnDeletion, false):
		return t.unmanage(ctx, have)
	case have.GetDeletionTimestamp() != nil:
		return terminating(have)
	case isNamespace(have):
		reason, err := t.retention(ctx, have)
		if errors.Is(err, errInUse) { // the next Work of the same name owns it again
			t.o.Recorder.Eventf(t.work, corev1.EventTypeWarning, workv1alpha2.EventSyncSucceed,
				"Namespace %s stays in cluster %s: %v", have.GetName(), t.o.Cluster, err)
			return nil
		}
		if err != nil {
			return err
		}
		if reason != "" {
			if err := t.unmanage(ctx, have); err != nil {
				return err
			}
			t.o.Recorder.Eventf(t.work, corev1.EventTypeWarning, workv1alpha2.EventSyncSucceed,
				"Namespace %s stays in cluster %s: %s", have.GetName(), t.o.Cluster, reason)
			return nil
		}
	}
	if err := t.fresh(); err != nil {
		return err
	}
	err = t.member.client.Delete(ctx, have, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{
		UID: ptr.To(have.GetUID()), ResourceVersion: ptr.To(have.GetResourceVersion()),
	})
	count(t.o.Metrics.delete, t.o.Cluster, want, client.IgnoreNotFound(err))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	again, err := t.live(ctx, want)
	if err != nil || again == nil || again.GetUID() != have.GetUID() {
		return err
	}
	return terminating(again)
}

// deleteServed deletes the object in another version than that of the manifest, which the member
// does not serve. A kind that it serves in no version has no objects.
func (t *task) deleteServed(ctx context.Context, want *unstructured.Unstructured) error {
	kind := want.GroupVersionKind().GroupKind()
	version, err := kube.ServedVersion(ctx, t.member.discovery, kind)
	if err != nil || version == "" {
		return err
	}
	want.SetGroupVersionKind(kind.WithVersion(version))
	return t.deleteObject(ctx, want)
}

// terminating is the error of an object whose finalizers delay its deletion.
func terminating(have *unstructured.Unstructured) error {
	return retryLater{5 * time.Second, fmt.Sprintf("it is deleted, but not gone yet; its finalizers: %v", have.GetFinalizers())}
}

// Labels and annotations that unmanage removes.
var (
	managedLabels = []string{
		workv1alpha1.LabelManaged, workv1alpha1.LabelWorkID, workv1alpha2.LabelBindingID, workv1alpha2.LabelClusterBindingID,
		policyv1alpha1.LabelPropagationPolicyID, policyv1alpha1.LabelClusterPropagationPolicyID,
	}
	managedAnnotations = []string{
		workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName, workv1alpha1.AnnotationConflictResolution,
		workv1alpha1.AnnotationAppliedHash, workv1alpha1.AnnotationAppliedReferences, workv1alpha1.AnnotationCreatedNamespace,
		workv1alpha2.AnnotationBindingNamespace, workv1alpha2.AnnotationBindingName, workv1alpha2.AnnotationClusterBindingName,
		workv1alpha2.AnnotationTemplateUID, workv1alpha2.AnnotationTemplateGeneration,
		workv1alpha2.AnnotationManagedLabels, workv1alpha2.AnnotationManagedAnnotations,
		policyv1alpha1.AnnotationPropagationPolicyNamespace, policyv1alpha1.AnnotationPropagationPolicyName,
		policyv1alpha1.AnnotationClusterPropagationPolicyName, policyv1alpha1.AnnotationMemberOwned,
		pelagov1alpha1.AnnotationHubID,
	}
)

// unmanage removes our labels and annotations from an object that is preserved.
func (t *task) unmanage(ctx context.Context, have *unstructured.Unstructured) error {
	none := func(keys []string, present map[string]string) map[string]any {
		out := map[string]any{}
		for _, key := range keys {
			if _, ok := present[key]; ok {
				out[key] = nil
			}
		}
		return out
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": have.GetUID(), "resourceVersion": have.GetResourceVersion(),
		"labels": none(managedLabels, have.GetLabels()), "annotations": none(managedAnnotations, have.GetAnnotations()),
	}})
	if err != nil {
		return fmt.Errorf("remove labels and annotations: %w", err)
	}
	if err := t.fresh(); err != nil {
		return err
	}
	err = t.member.client.Patch(ctx, have, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	return client.IgnoreNotFound(err)
}

const (
	// collectorTime is how long objects whose owner was deleted may remain until the member's
	// garbage collector removes them.
	collectorTime = time.Minute
	// discoveryTime is how long the deletion of a Namespace waits for groups that do not answer
	// discovery, such as an aggregated API that restarts.
	discoveryTime = 10 * time.Minute
	// pageSize bounds the objects of one list request.
	pageSize = 500
	// maxNames bounds the objects that a message names.
	maxNames = 5
)

// derived are kinds of objects that controllers generate.
var derived = map[schema.GroupKind]bool{
	{Kind: "Event"}: true, {Group: "events.k8s.io", Kind: "Event"}: true, {Kind: "Endpoints"}: true,
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: true, {Group: "coordination.k8s.io", Kind: "Lease"}: true,
	{Group: "metrics.k8s.io", Kind: "PodMetrics"}: true,
}

// derivedGroups are groups all of whose kinds are computed from other objects. Their servers are
// often unavailable.
var derivedGroups = map[string]bool{"metrics.k8s.io": true, "custom.metrics.k8s.io": true, "external.metrics.k8s.io": true}

// generated reports whether controllers generate an object in each namespace.
func generated(kind schema.GroupKind, name string) bool {
	return derived[kind] || kind == schema.GroupKind{Kind: "ServiceAccount"} && name == "default" ||
		kind == schema.GroupKind{Kind: "ConfigMap"} && name == "kube-root-ca.crt"
}

// errInUse is the error of a Namespace that was recreated at the hub before it was gone in the
// member: Works created since then have objects in it.
var errInUse = errors.New("it holds objects of Works")

// retention returns why a Namespace must be preserved; "" if it may be deleted. It returns
// retryLater while the Namespace has objects of other Works of ours, of Works just deleted, or
// objects that the member's garbage collector is about to remove; and errInUse if a Work that was
// made since the Namespace's was deleted has an object after collectorTime.
func (t *task) retention(ctx context.Context, ns *unstructured.Unstructured) (string, error) {
	if ns.GetAnnotations()[workv1alpha1.AnnotationCreatedNamespace] != "true" {
		return "the hub did not create it; its labels and annotations are removed", nil
	}
	all, unseen, err := t.contents(ctx, ns.GetName())
	if err != nil {
		return "", err
	}
	if unseen != "" {
		return "what is in it cannot be seen: " + unseen, nil
	}
	present := map[types.UID]bool{}
	for _, o := range all {
		present[o.UID] = true
	}
	var left, collected, ours []string
	used := false
	for _, o := range all {
		name := o.Kind + " " + o.Name
		exists, since := t.workOf(ctx, &o)
		switch {
		case o.DeletionTimestamp != nil:
			collected = append(collected, name)
		case generated(o.GroupVersionKind().GroupKind(), o.Name):
		case exists:
			ours = append(ours, name)
			used = used || since
		case slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return present[r.UID] }):
			// Its owner, which is in the list, decides.
		case (len(o.OwnerReferences) > 0 || t.ours(&o)) && time.Since(t.work.DeletionTimestamp.Time) < collectorTime:
			// an object of ours, and its Work, may have been deleted since the list
			collected = append(collected, name)
		default:
			left = append(left, name)
		}
	}
	switch {
	case len(left) > 0:
		return "it holds what is not the hub's: " + abbreviated(left), nil
	case used && time.Since(t.work.DeletionTimestamp.Time) >= collectorTime:
		return "", errInUse
	case len(ours)+len(collected) > 0:
		return "", retryLater{collectorTime, "waits for what is still in it: " + abbreviated(append(ours, collected...))}
	}
	return "", nil
}

// ours reports whether an object belongs to a Work of this cluster.
func (t *task) ours(o *metav1.PartialObjectMetadata) bool {
	a := o.Annotations
	return a[pelagov1alpha1.AnnotationHubID] == t.o.HubID && a[workv1alpha1.AnnotationWorkNamespace] == t.namespace
}

// workOf reports whether an object is ours and its Work exists, and whether that Work was created
// after the deletion of this one and is not being deleted itself. A Work that cannot be read counts
// as an older one: the Namespace waits.
func (t *task) workOf(ctx context.Context, o *metav1.PartialObjectMetadata) (exists, since bool) {
	if !t.ours(o) {
		return false, false
	}
	work, err := t.o.Works.get(ctx, types.NamespacedName{Namespace: t.namespace, Name: o.Annotations[workv1alpha1.AnnotationWorkName]})
	if err != nil {
		return !apierrors.IsNotFound(err), false
	}
	return true, work.DeletionTimestamp.IsZero() && !work.CreationTimestamp.Time.Before(t.work.DeletionTimestamp.Time)
}

// contents lists all objects of a namespace; unseen names kinds that cannot be listed.
func (t *task) contents(ctx context.Context, namespace string) (all []metav1.PartialObjectMetadata, unseen string, err error) {
	lists, err := t.member.discovery.ServerPreferredNamespacedResourcesWithContext(ctx)
	var partly *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &partly):
		maps.DeleteFunc(partly.Groups, func(gv schema.GroupVersion, _ error) bool { return derivedGroups[gv.Group] })
		switch since := time.Since(t.work.DeletionTimestamp.Time); {
		case len(partly.Groups) == 0:
		case since < discoveryTime:
			return nil, "", retryLater{collectorTime, "waits until all kinds in it can be seen: " + partly.Error()}
		default:
			return nil, partly.Error(), nil
		}
	case err != nil:
		return nil, "", fmt.Errorf("list the kinds of cluster %s: %w", t.o.Cluster, err)
	}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, "", fmt.Errorf("list the kinds of cluster %s: %w", t.o.Cluster, err)
		}
		for _, resource := range list.APIResources {
			if derived[schema.GroupKind{Group: gv.Group, Kind: resource.Kind}] {
				continue
			}
			found, err := t.list(ctx, gv.WithKind(resource.Kind), namespace)
			switch {
			case apierrors.IsForbidden(err):
				return nil, err.Error(), nil
			case kube.NotServed(err): // removed meanwhile
			case err != nil:
				return nil, "", err
			}
			all = append(all, found...)
		}
	}
	return all, "", nil
}

func (t *task) list(ctx context.Context, kind schema.GroupVersionKind, namespace string) ([]metav1.PartialObjectMetadata, error) {
	var all []metav1.PartialObjectMetadata
	list := &metav1.PartialObjectMetadataList{}
	for {
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		err := t.member.client.List(ctx, list, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(list.Continue))
		if err != nil {
			return nil, fmt.Errorf("list %s in namespace %s: %w", kind.Kind, namespace, err)
		}
		for _, o := range list.Items {
			o.SetGroupVersionKind(kind)
			all = append(all, o)
		}
		if list.Continue == "" {
			return all, nil
		}
	}
}

// abbreviated joins the first maxNames names.
func abbreviated(names []string) string {
	if len(names) > maxNames {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), len(names)-maxNames)
	}
	return strings.Join(names, ", ")
}
