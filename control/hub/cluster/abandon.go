package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Abandon gives up what the hub has put into a cluster that will not come back: the finalizers of its Works are taken off, so
// that its removal goes on. It returns the objects that stay behind in the cluster, as `Deployment default/nginx (apps/v1)`,
// sorted, also with an error. The Cluster must be being deleted, or gone: else the hub would put the objects there again.
//
// hub must know the kinds Cluster and Work.
func Abandon(ctx context.Context, hub client.Client, cluster string) (left []string, err error) {
	c := &clusterv1alpha1.Cluster{}
	switch err := hub.Get(ctx, client.ObjectKey{Name: cluster}, c); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("read Cluster %s: %w", cluster, err)
	case c.DeletionTimestamp == nil:
		return nil, fmt.Errorf("abandon cluster %s: its Cluster is not being deleted: delete it first", cluster)
	}
	var works workv1alpha1.WorkList
	if err := hub.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(cluster))); err != nil {
		return nil, fmt.Errorf("list the Works of cluster %s: %w", cluster, err)
	}
	for i := range works.Items {
		w := &works.Items[i]
		next := w.DeepCopy()
		if !controllerutil.RemoveFinalizer(next, workv1alpha1.FinalizerExecution) {
			continue
		}
		if failed := patch(ctx, hub, w, next); client.IgnoreNotFound(failed) != nil {
			err = errors.Join(err, fmt.Errorf("take the finalizer from Work %s/%s: run it again: %w", w.Namespace, w.Name, failed))
			continue
		}
		left = append(left, objects(w)...)
	}
	slices.Sort(left)
	return slices.Compact(left), err
}

// objects names what a Work has put into its cluster.
func objects(w *workv1alpha1.Work) []string {
	var all []string
	for _, m := range w.Spec.Workload.Manifests {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(m.Raw, &o); err != nil {
			all = append(all, fmt.Sprintf("what Work %s/%s holds, which cannot be read: %v", w.Namespace, w.Name, err))
			continue
		}
		name := o.Name
		if o.Namespace != "" {
			name = o.Namespace + "/" + name
		}
		all = append(all, fmt.Sprintf("%s %s (%s)", o.Kind, name, o.APIVersion))
	}
	return all
}
