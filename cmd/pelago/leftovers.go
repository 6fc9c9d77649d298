package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/coredns"
	"github.com/pelago-net/pelago/control/kube"
)

// removeLeftovers deletes the objects that the agent has created outside of the system namespace. The agent must have
// stopped. Objects of users (ServiceExports, egress IPs, GlobalIngressIPs without our label) and of another hub's agent stay.
func removeLeftovers(ctx context.Context, c client.Client, hubID string) error {
	var errs []error
	for _, obj := range []client.Object{
		&pelagov1alpha1.NodeIndex{}, &pelagov1alpha1.PortBlock{}, &pelagov1alpha1.GlobalAddress{}, &pelagov1alpha1.Peer{},
	} {
		if err := c.DeleteAllOf(ctx, obj); err != nil && !meta.IsNoMatchError(err) {
			errs = append(errs, fmt.Errorf("delete all %T: %w", obj, err))
		}
	}
	ours := client.MatchingLabels{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy}
	ingress := &submarinerv1.GlobalIngressIPList{}
	if err := c.List(ctx, ingress, ours); err != nil {
		errs = append(errs, fmt.Errorf("list GlobalIngressIPs: %w", err))
	}
	for i := range ingress.Items {
		errs = append(errs, deleteOne(ctx, c, &ingress.Items[i]))
	}
	owner := kube.Owner{HubID: hubID}
	slices := &discoveryv1.EndpointSliceList{}
	if err := c.List(ctx, slices, ours); err != nil {
		errs = append(errs, fmt.Errorf("list EndpointSlices: %w", err))
	}
	for i := range slices.Items {
		if owner.Owns(&slices.Items[i]) {
			errs = append(errs, deleteOne(ctx, c, &slices.Items[i]))
		}
	}
	errs = append(errs, removeImports(ctx, c, owner), removeForward(ctx, c))
	return errors.Join(errs...)
}

// removeImports deletes the ServiceImports that the agent has created, in the version that the cluster prefers.
func removeImports(ctx context.Context, c client.Client, owner kube.Owner) error {
	mapping, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: "multicluster.x-k8s.io", Kind: "ServiceImport"})
	if err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("look for the kind ServiceImport: %w", err)
	}
	imports := &unstructured.UnstructuredList{}
	imports.SetGroupVersionKind(mapping.GroupVersionKind)
	if err := c.List(ctx, imports, client.MatchingLabels{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy}); err != nil {
		return fmt.Errorf("list ServiceImports: %w", err)
	}
	var errs []error
	for i := range imports.Items {
		if owner.Owns(&imports.Items[i]) {
			errs = append(errs, deleteOne(ctx, c, &imports.Items[i]))
		}
	}
	return errors.Join(errs...)
}

// removeForward removes our block from the configuration of CoreDNS.
func removeForward(ctx context.Context, c client.Client) error {
	key := client.ObjectKey{Namespace: "kube-system", Name: "coredns"}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cm := &corev1.ConfigMap{}
		if err := c.Get(ctx, key, cm); err != nil {
			return client.IgnoreNotFound(err)
		}
		text, err := coredns.Remove(cm.Data["Corefile"])
		if err != nil {
			return fmt.Errorf("remove the block of pelago from ConfigMap %s: %w", key, err)
		}
		if text == cm.Data["Corefile"] {
			return nil
		}
		cm.Data["Corefile"] = text
		if err := c.Update(ctx, cm); err != nil {
			return fmt.Errorf("update ConfigMap %s: %w", key, err)
		}
		return nil
	})
}

func deleteOne(ctx context.Context, c client.Client, obj client.Object) error {
	if err := client.IgnoreNotFound(c.Delete(ctx, obj)); err != nil {
		return fmt.Errorf("delete %s %s/%s: %w", obj.GetObjectKind().GroupVersionKind().Kind, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}
