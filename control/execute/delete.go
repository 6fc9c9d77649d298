package execute

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
)

// remove takes the object of a Work that is being deleted out of the member, then the finalizer from the Work.
func (t *task) remove(ctx context.Context, suppressed bool) (reconcile.Result, error) {
	want, err := wanted(t.work, t.o.HubID, t.o.Interpreter)
	if suppressed || err != nil {
		// Of a manifest that cannot be read nothing was made.
		return reconcile.Result{}, t.release(ctx)
	}
	if cause := t.member.absence(); cause != "" {
		return t.report(ctx, outcome{want: want, kept: true, failure: unreachable(t.o.Cluster, cause)}, 0)
	}
	// The watch tells when an object that takes its time is gone.
	if _, err = t.kinds.use(ctx, t.work.Name, want.object.GroupVersionKind()); err == nil {
		err = t.takeAway(ctx, want.object)
	}
	if err == nil || notServed(err) { // without its kind it cannot be there
		return reconcile.Result{}, t.release(ctx)
	}
	if errors.Is(err, errStale) || apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: minRetry}, nil
	}
	if onTheWay(err) {
		if cause := t.member.confirm(ctx); cause != "" {
			return t.report(ctx, outcome{want: want, kept: true, failure: unreachable(t.o.Cluster, cause)}, 0)
		}
	}
	due := wait.Jitter(t.retries.When(t.work.Name), 0.2)
	var pause waiting
	if errors.As(err, &pause) {
		if due = min(due, time.Second); time.Since(t.work.DeletionTimestamp.Time) < pause.Duration {
			return reconcile.Result{RequeueAfter: due}, nil // usually it goes by itself
		}
	}
	return t.report(ctx, outcome{want: want, kept: true, failure: explain(t.o.Cluster, want.object, err)}, due)
}

// release removes the finalizer. The Work is gone then, as far as we are concerned.
func (t *task) release(ctx context.Context) error {
	if err := t.fresh(); err != nil {
		return err
	}
	before := t.work.DeepCopy()
	controllerutil.RemoveFinalizer(t.work, workv1alpha1.FinalizerExecution)
	err := t.o.Hub.Patch(ctx, t.work, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	switch {
	case apierrors.IsNotFound(err):
	case apierrors.IsConflict(err):
		t.queue.AddAfter(reconcile.Request{NamespacedName: t.key()}, minRetry)
	case err != nil:
		return fmt.Errorf("remove the finalizer of Work %s: %w", t.key(), err)
	}
	return nil
}

// takeAway deletes the object, or takes our marks from it if it is to stay. It returns nil once the object is gone or not ours.
func (t *task) takeAway(ctx context.Context, want *unstructured.Unstructured) error {
	have, err := t.live(ctx, want)
	if err != nil || have == nil || ownerOf(have, t.o.HubID, t.key()) != oursOfWork {
		return err
	}
	switch {
	case ptr.Deref(t.work.Spec.PreserveResourcesOnDeletion, false):
		return t.strip(ctx, have)
	case have.GetDeletionTimestamp() != nil:
		return t.stillThere(have)
	case isNamespace(have):
		left, err := t.leftIn(ctx, have)
		if err != nil {
			return err
		}
		if left != "" {
			if err := t.strip(ctx, have); err != nil {
				return err
			}
			t.o.Recorder.Eventf(t.work, corev1.EventTypeWarning, workv1alpha2.EventSyncSucceed,
				"Namespace %s stays in cluster %s: %s", have.GetName(), t.o.Cluster, left)
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
	return t.stillThere(again)
}

// stillThere: deleted, but something in the member holds it. A second of it is usual.
func (t *task) stillThere(have *unstructured.Unstructured) error {
	return waiting{5 * time.Second, fmt.Sprintf("it is deleted, but not gone yet; its finalizers: %v", have.GetFinalizers())}
}

// marks are what strip takes away.
var (
	markLabels = []string{
		workv1alpha1.LabelManaged, workv1alpha1.LabelWorkID, workv1alpha2.LabelBindingID, workv1alpha2.LabelClusterBindingID,
		policyv1alpha1.LabelPropagationPolicyID, policyv1alpha1.LabelClusterPropagationPolicyID,
	}
	markAnnotations = []string{
		workv1alpha1.AnnotationWorkNamespace, workv1alpha1.AnnotationWorkName, workv1alpha1.AnnotationConflictResolution,
		workv1alpha1.AnnotationAppliedHash, workv1alpha1.AnnotationCreatedNamespace,
		workv1alpha2.AnnotationBindingNamespace, workv1alpha2.AnnotationBindingName, workv1alpha2.AnnotationClusterBindingName,
		workv1alpha2.AnnotationTemplateUID, workv1alpha2.AnnotationTemplateGeneration,
		workv1alpha2.AnnotationManagedLabels, workv1alpha2.AnnotationManagedAnnotations,
		policyv1alpha1.AnnotationPropagationPolicyNamespace, policyv1alpha1.AnnotationPropagationPolicyName,
		policyv1alpha1.AnnotationClusterPropagationPolicyName, policyv1alpha1.AnnotationMemberOwned,
		pelagov1alpha1.AnnotationHubID,
	}
)

// strip takes our marks from an object that stays.
func (t *task) strip(ctx context.Context, have *unstructured.Unstructured) error {
	none := func(keys []string, there map[string]string) map[string]any {
		out := map[string]any{}
		for _, key := range keys {
			if _, ok := there[key]; ok {
				out[key] = nil
			}
		}
		return out
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": have.GetUID(), "resourceVersion": have.GetResourceVersion(),
		"labels": none(markLabels, have.GetLabels()), "annotations": none(markAnnotations, have.GetAnnotations()),
	}})
	if err != nil {
		return fmt.Errorf("take the marks off: %w", err)
	}
	if err := t.fresh(); err != nil {
		return err
	}
	err = t.member.client.Patch(ctx, have, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
	return client.IgnoreNotFound(err)
}

const (
	// collectorTime is how long what has lost its owner may wait for the member's garbage collector.
	collectorTime = time.Minute
	// page is how many objects are asked for at a time.
	page = 500
	// maxLeft bounds how many objects are named.
	maxLeft = 5
)

// derived are kinds of objects that a namespace gets by itself, or that follow from others.
var derived = map[schema.GroupKind]bool{
	{Kind: "Event"}: true, {Group: "events.k8s.io", Kind: "Event"}: true, {Kind: "Endpoints"}: true,
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: true, {Group: "coordination.k8s.io", Kind: "Lease"}: true,
	{Group: "metrics.k8s.io", Kind: "PodMetrics"}: true,
}

// byItself says whether every namespace has an object of this name.
func byItself(kind schema.GroupKind, name string) bool {
	return derived[kind] || kind == schema.GroupKind{Kind: "ServiceAccount"} && name == "default" ||
		kind == schema.GroupKind{Kind: "ConfigMap"} && name == "kube-root-ca.crt"
}

// leftIn says why a Namespace must stay: "" if it may go. It waits while objects of other Works of ours are in it, for those of
// Works that have just gone, and while the member's garbage collector is at work.
func (t *task) leftIn(ctx context.Context, ns *unstructured.Unstructured) (string, error) {
	if ns.GetAnnotations()[workv1alpha1.AnnotationCreatedNamespace] != "true" {
		return "it was there before the hub came; its marks are removed", nil
	}
	all, unseen, err := t.contents(ctx, ns.GetName())
	if err != nil {
		return "", err
	}
	if unseen != "" {
		return "what is in it cannot be seen: " + unseen, nil
	}
	there := map[types.UID]bool{}
	for _, o := range all {
		there[o.UID] = true
	}
	var left, collected, ours []string
	for _, o := range all {
		name := o.Kind + " " + o.Name
		switch {
		case o.DeletionTimestamp != nil:
			collected = append(collected, name)
		case byItself(o.GroupVersionKind().GroupKind(), o.Name):
		case t.hubs(&o) && t.alive(ctx, &o):
			ours = append(ours, name)
		case slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return there[r.UID] }):
			// It goes or stays with its owner, which is in the list itself.
		case (len(o.OwnerReferences) > 0 || t.hubs(&o)) && time.Since(t.work.DeletionTimestamp.Time) < collectorTime:
			collected = append(collected, name) // the hub's may have gone since the list was made, and then its Work
		default:
			left = append(left, name)
		}
	}
	switch {
	case len(left) > 0:
		return "it holds what is not the hub's: " + some(left), nil
	case len(ours)+len(collected) > 0:
		return "", waiting{collectorTime, "waits for what is still in it: " + some(append(ours, collected...))}
	}
	return "", nil
}

// hubs says whether an object was made by a Work of this cluster.
func (t *task) hubs(o *metav1.PartialObjectMetadata) bool {
	a := o.Annotations
	return a[pelagov1alpha1.AnnotationHubID] == t.o.HubID && a[workv1alpha1.AnnotationWorkNamespace] == t.namespace
}

// alive says whether the Work that made an object is there, even if it is being deleted.
func (t *task) alive(ctx context.Context, o *metav1.PartialObjectMetadata) bool {
	key := types.NamespacedName{Namespace: t.namespace, Name: o.Annotations[workv1alpha1.AnnotationWorkName]}
	// An error means that the Work cannot be seen: then its object counts as one that is waited for.
	_, err := t.o.Works.get(ctx, key)
	return !apierrors.IsNotFound(err)
}

// contents lists all objects of a namespace; unseen names kinds that cannot be listed.
func (t *task) contents(ctx context.Context, namespace string) (all []metav1.PartialObjectMetadata, unseen string, err error) {
	lists, err := t.member.discovery.ServerPreferredNamespacedResources()
	var partly *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &partly):
		return nil, partly.Error(), nil
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
			case notServed(err): // gone since
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
		err := t.member.client.List(ctx, list, client.InNamespace(namespace), client.Limit(page), client.Continue(list.Continue))
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

// some names the first few.
func some(names []string) string {
	if len(names) > maxLeft {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxLeft], ", "), len(names)-maxLeft)
	}
	return strings.Join(names, ", ")
}
