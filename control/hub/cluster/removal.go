package cluster

import (
	"cmp"
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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// remove removes a member in order: its Works, whose finalizers are removed after their objects in
// the member; the execution namespace; the bindings that name it; the credential; the finalizer. An
// unreachable member blocks the removal.
func (r *reconciler) remove(ctx context.Context, c *clusterv1alpha1.Cluster) (time.Duration, error) {
	if !joined(c) {
		return 0, nil
	}
	reason, message, err := r.blocker(ctx, c)
	switch {
	case err != nil:
		return 0, fmt.Errorf("remove cluster %s: %w", c.Name, err)
	case reason != "":
		eventType := corev1.EventTypeNormal
		if reason == clusterv1alpha1.ReasonWaitingForCluster {
			eventType = corev1.EventTypeWarning
		}
		return r.Every, r.report(ctx, c, metav1.Condition{
			Type: clusterv1alpha1.ConditionRemoved, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		}, eventType, clusterv1alpha1.EventRemovalWaits)
	}
	if err := Forget(ctx, r.live, r.client, c.Name); err != nil {
		return 0, fmt.Errorf("remove cluster %s: %w", c.Name, err)
	}
	next := c.DeepCopy()
	controllerutil.RemoveFinalizer(next, clusterv1alpha1.FinalizerCluster)
	if err := r.client.Patch(ctx, next, kube.MergeFrom(c)); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("remove the finalizer from Cluster %s: %w", c.Name, err)
	}
	return 0, nil
}

// Forget deletes the credential of a cluster that `pelago join` created at the hub. Secrets of
// other origin stay.
func Forget(ctx context.Context, live client.Reader, hub client.Client, cluster string) error {
	s, key := &corev1.Secret{}, client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: cluster}
	err := live.Get(ctx, key, s)
	if err == nil && s.Labels[pelagov1alpha1.LabelManagedBy] == pelagov1alpha1.ManagedBy {
		err = hub.Delete(ctx, s, kube.Exactly(s))
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Secret %s, the credential of cluster %s: %w", key, cluster, err)
	}
	return nil
}

// blocker does the next step of a removal and returns what blocks it: reason and message of the
// condition Removed. An empty reason: nothing.
func (r *reconciler) blocker(ctx context.Context, c *clusterv1alpha1.Cluster) (reason, message string, err error) {
	works, err := r.deleteWorks(ctx, c)
	if err != nil {
		return "", "", err
	}
	if works > 0 {
		reason, message = waitForWorks(c, works)
		return reason, message, nil
	}
	if gone, err := r.deleteNamespace(ctx, c); err != nil || !gone {
		return clusterv1alpha1.ReasonWaitingForWorks, fmt.Sprintf("namespace %s is being removed", workv1alpha2.ExecutionNamespace(c.Name)), err
	}
	var bindings []string
	err = binding.Each(ctx, r.client, func(b binding.Binding) {
		if slices.ContainsFunc(b.Spec.Clusters, func(t workv1alpha2.TargetCluster) bool { return t.Name == c.Name }) {
			bindings = append(bindings, b.String())
		}
	})
	if err != nil {
		return "", "", err
	}
	if len(bindings) > 0 {
		return clusterv1alpha1.ReasonWaitingForBindings, fmt.Sprintf("cluster %s is still named by %s", c.Name, few(bindings)), nil
	}
	return "", "", nil
}

// waitForWorks is the reason and message of a removal that waits for Works. The message has their
// number only while the member is not ready: then it does not change.
func waitForWorks(c *clusterv1alpha1.Cluster, works int) (reason, message string) {
	ready := c.Ready()
	if ready != nil && ready.Status == metav1.ConditionTrue {
		return clusterv1alpha1.ReasonWaitingForWorks, fmt.Sprintf("what the hub has put into cluster %s is being removed", c.Name)
	}
	state := "has not reported yet"
	if ready != nil {
		state = fmt.Sprintf("is not ready (%s)", cmp.Or(ready.Reason, "no reason"))
	}
	return clusterv1alpha1.ReasonWaitingForCluster, fmt.Sprintf("%d Works wait for cluster %s, which %s: "+
		"what they put there is removed when it is ready again; if it will not come back, `pelago unjoin --force` gives it up "+
		"and lists what stays behind", works, c.Name, state)
}

// deleteWorks deletes the cluster's Works one by one and returns how many still exist. The deletion
// of the namespace would first remove the Role with which a pull member finalizes its Works.
func (r *reconciler) deleteWorks(ctx context.Context, c *clusterv1alpha1.Cluster) (int, error) {
	var works workv1alpha1.WorkList
	if err := r.client.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(c.Name))); err != nil {
		return 0, fmt.Errorf("list its Works: %w", err)
	}
	if len(works.Items) == 0 { // the cache may be stale, and the next steps cannot be undone
		if err := r.live.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(c.Name))); err != nil {
			return 0, fmt.Errorf("list its Works: %w", err)
		}
	}
	for i := range works.Items {
		w := &works.Items[i]
		if w.DeletionTimestamp != nil {
			continue
		}
		err := r.client.Delete(ctx, w, kube.Exactly(w))
		// the next reconcile deletes a stale one
		if client.IgnoreNotFound(err) != nil && !kube.IsStale(err) {
			return 0, fmt.Errorf("delete Work %s/%s: %w", w.Namespace, w.Name, err)
		}
	}
	return len(works.Items), nil
}

// deleteNamespace deletes the execution namespace and reports whether it is gone.
func (r *reconciler) deleteNamespace(ctx context.Context, c *clusterv1alpha1.Cluster) (gone bool, err error) {
	ns := &corev1.Namespace{}
	if err := r.live.Get(ctx, client.ObjectKey{Name: workv1alpha2.ExecutionNamespace(c.Name)}, ns); apierrors.IsNotFound(err) {
		return true, nil
	} else if err != nil {
		return false, fmt.Errorf("read Namespace %s: %w", workv1alpha2.ExecutionNamespace(c.Name), err)
	}
	if ns.DeletionTimestamp != nil {
		return false, nil
	}
	if err := r.client.Delete(ctx, ns, kube.Exactly(ns)); client.IgnoreNotFound(err) != nil {
		failed(r.events, c, clusterv1alpha1.EventRemoveExecutionSpaceFailed, "execution namespace "+ns.Name, err)
		return false, fmt.Errorf("delete Namespace %s: %w", ns.Name, err)
	}
	r.events.Eventf(c, corev1.EventTypeNormal, clusterv1alpha1.EventRemoveExecutionSpaceSucceed,
		"execution namespace %s removed", ns.Name)
	return false, nil
}

// few are the first three of a list, and the number of the others.
func few(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// Abandon removes the finalizers of the Works of a cluster that is lost, so that its removal
// continues. It returns the objects that remain in the cluster, as `Deployment default/nginx
// (apps/v1)`, sorted, also with an error. The Cluster must be being deleted or gone: else the hub
// would create the objects again.
//
// The scheme of hub must have Cluster and Work.
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
		if failed := hub.Patch(ctx, next, kube.MergeFrom(w)); client.IgnoreNotFound(failed) != nil {
			err = errors.Join(err, fmt.Errorf("remove the finalizer from Work %s/%s: repeat the command: %w", w.Namespace, w.Name, failed))
			continue
		}
		left = append(left, objects(w)...)
	}
	slices.Sort(left)
	return slices.Compact(left), err
}

// objects names the objects of a Work.
func objects(w *workv1alpha1.Work) []string {
	var all []string
	for _, m := range w.Spec.Workload.Manifests {
		var o metav1.PartialObjectMetadata
		if err := json.Unmarshal(m.Raw, &o); err != nil {
			all = append(all, fmt.Sprintf("what Work %s/%s holds, which cannot be read: %v", w.Namespace, w.Name, err))
			continue
		}
		// a cluster-scoped object has no namespace
		name := strings.TrimPrefix(client.ObjectKeyFromObject(&o).String(), "/")
		all = append(all, fmt.Sprintf("%s %s (%s)", o.Kind, name, o.APIVersion))
	}
	return all
}
