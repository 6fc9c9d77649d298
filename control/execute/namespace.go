package execute

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

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
