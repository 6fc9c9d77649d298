package broker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Approve accepts or rejects a cluster for the network, and sets labels of its submariner.io Cluster
// at the hub, by which services are exported to it. found is false if it is no member of the network.
func Approve(ctx context.Context, hub client.Client, id string, approved bool, labels map[string]string) (found bool, err error) {
	var mark any // null removes it
	if !approved {
		mark = "true"
	}
	change := map[string]any{"annotations": map[string]any{pelagov1alpha1.AnnotationUnapproved: mark}}
	if len(labels) > 0 { // null would remove all
		change["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return false, fmt.Errorf("change Cluster %s: %w", id, err)
	}
	cluster := &submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: id}}
	err = hub.Patch(ctx, cluster, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, wrap(err, "change Cluster %s/%s", manifests.BrokerNamespace, id)
}

// Export creates the ServiceExport, or changes the annotations of the one that exists; nil removes
// one. It prints to which clusters the service is exported.
func Export(ctx context.Context, c client.Client, key client.ObjectKey, annotations map[string]*string, out io.Writer) error {
	service := &corev1.Service{}
	if err := c.Get(ctx, key, service); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("export Service %s: there is no such Service: name one of `kubectl -n %s get services`", key, key.Namespace)
		}
		return fmt.Errorf("get Service %s: %w", key, err)
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return fmt.Errorf("export Service %s: a Service of type ExternalName has no endpoints to export (KEP-1645): export one with a selector", key)
	}
	export, err := ServiceExport(c, key)
	if err != nil {
		return fmt.Errorf("export Service %s: %w", key, err)
	}
	given := map[string]string{}
	for name, value := range annotations {
		if value != nil {
			given[name] = *value
		}
	}
	export.SetAnnotations(given)
	done := "is exported to"
	switch err := c.Create(ctx, export); {
	case apierrors.IsAlreadyExists(err) && len(annotations) > 0:
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
		if err != nil {
			return fmt.Errorf("annotate ServiceExport %s: %w", key, err)
		}
		if err := c.Patch(ctx, export, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return fmt.Errorf("annotate ServiceExport %s: %w", key, err)
		}
		done = "was exported before; its ServiceExport is updated: it is exported to"
	case apierrors.IsAlreadyExists(err):
		if err := c.Get(ctx, key, export); err != nil {
			return fmt.Errorf("get ServiceExport %s: %w", key, err)
		}
		done = "was exported before, to"
	case err != nil:
		return fmt.Errorf("create ServiceExport %s: %w", key, err)
	}
	fmt.Fprintf(out, "Service %s %s %s\n", key, done, cmp.Or(export.GetAnnotations()[pelagov1alpha1.AnnotationExportTo], "all clusters"))
	return nil
}

// Unexport deletes the ServiceExport of a Service.
func Unexport(ctx context.Context, c client.Client, key client.ObjectKey, out io.Writer) error {
	export, err := ServiceExport(c, key)
	if err != nil {
		return fmt.Errorf("unexport Service %s: %w", key, err)
	}
	err = c.Delete(ctx, export)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("unexport Service %s: it is not exported: name one of `kubectl -n %s get serviceexports`", key, key.Namespace)
	}
	if err != nil {
		return fmt.Errorf("delete ServiceExport %s: %w", key, err)
	}
	fmt.Fprintf(out, "Service %s is no longer exported\n", key)
	return nil
}

// ServiceExport is a ServiceExport without content, of the version that the cluster prefers.
func ServiceExport(c client.Client, key client.ObjectKey) (*unstructured.Unstructured, error) {
	mapping, err := c.RESTMapper().RESTMapping(schema.GroupKind{Group: "multicluster.x-k8s.io", Kind: "ServiceExport"})
	if meta.IsNoMatchError(err) {
		return nil, errors.New("this cluster has no kind ServiceExport: join it first with `pelago join`")
	}
	if err != nil {
		return nil, fmt.Errorf("find kind ServiceExport: %w", err)
	}
	export := &unstructured.Unstructured{}
	export.SetGroupVersionKind(mapping.GroupVersionKind)
	export.SetNamespace(key.Namespace)
	export.SetName(key.Name)
	return export, nil
}
