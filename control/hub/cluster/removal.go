package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// remove lets a member go: its Works, whose finalizers end with their objects in the member; the execution namespace; the
// bindings that name it; the finalizer. Nothing is given up because the member does not answer.
func (r *reconciler) remove(ctx context.Context, c *clusterv1alpha1.Cluster) (time.Duration, error) {
	if !joined(c) {
		return 0, nil
	}
	reason, message, err := r.remains(ctx, c)
	switch {
	case err != nil:
		return 0, fmt.Errorf("remove cluster %s: %w", c.Name, err)
	case reason != "":
		return r.Every, r.wait(ctx, c, reason, message)
	}
	if err := Forget(ctx, r.live, r.client, c.Name); err != nil {
		return 0, fmt.Errorf("remove cluster %s: %w", c.Name, err)
	}
	next := c.DeepCopy()
	controllerutil.RemoveFinalizer(next, clusterv1alpha1.FinalizerCluster)
	if err := patch(ctx, r.client, c, next); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("take the finalizer from Cluster %s: %w", c.Name, err)
	}
	return 0, nil
}

// Forget deletes the credential that `pelago join` has put at the hub for a cluster. Secrets that others made are theirs.
func Forget(ctx context.Context, live client.Reader, hub client.Client, cluster string) error {
	s := &corev1.Secret{}
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: cluster}
	err := live.Get(ctx, key, s)
	if err == nil && s.Labels[pelagov1alpha1.LabelManagedBy] == pelagov1alpha1.ManagedBy {
		err = hub.Delete(ctx, s, exactly(s))
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete Secret %s, the credential of cluster %s: %w", key, cluster, err)
	}
	return nil
}

// remains does the next step and says what there is to wait for; an empty reason: nothing.
func (r *reconciler) remains(ctx context.Context, c *clusterv1alpha1.Cluster) (reason, message string, err error) {
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
	bindings, err := r.bindings(ctx, c.Name)
	if err != nil {
		return "", "", err
	}
	if len(bindings) > 0 {
		return clusterv1alpha1.ReasonWaitingForBindings, fmt.Sprintf("cluster %s is still named by %s", c.Name, few(bindings)), nil
	}
	return "", "", nil
}

// waitForWorks says why Works are still there. Their number is told only where it does not change: while nobody can remove them.
func waitForWorks(c *clusterv1alpha1.Cluster, works int) (reason, message string) {
	ready := c.Ready()
	if ready != nil && ready.Status == metav1.ConditionTrue {
		return clusterv1alpha1.ReasonWaitingForWorks, fmt.Sprintf("what the hub has put into cluster %s is being removed", c.Name)
	}
	state := "has not reported yet"
	if ready != nil {
		state = fmt.Sprintf("is not ready (%s)", ready.Reason)
	}
	return clusterv1alpha1.ReasonWaitingForCluster, fmt.Sprintf("%d Works wait for cluster %s, which %s: "+
		"what they put there is removed when it is ready again; if it will not come back, `pelago unjoin --force` gives it up "+
		"and lists what stays behind", works, c.Name, state)
}

// deleteWorks deletes the cluster's Works one by one and returns how many are still there. Not with the namespace: that would
// take a pull member's rights away before it has removed its objects.
func (r *reconciler) deleteWorks(ctx context.Context, c *clusterv1alpha1.Cluster) (int, error) {
	var works workv1alpha1.WorkList
	if err := r.client.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(c.Name))); err != nil {
		return 0, fmt.Errorf("list its Works: %w", err)
	}
	if len(works.Items) == 0 { // a cache may be behind, and what follows cannot be undone
		if err := r.live.List(ctx, &works, client.InNamespace(workv1alpha2.ExecutionNamespace(c.Name))); err != nil {
			return 0, fmt.Errorf("list its Works: %w", err)
		}
	}
	for i := range works.Items {
		w := &works.Items[i]
		if w.DeletionTimestamp != nil {
			continue
		}
		if err := r.client.Delete(ctx, w, exactly(w)); client.IgnoreNotFound(err) != nil && !kube.IsStale(err) { // a stale one is met again
			return 0, fmt.Errorf("delete Work %s/%s: %w", w.Namespace, w.Name, err)
		}
	}
	return len(works.Items), nil
}

// deleteNamespace deletes the execution namespace and says whether it is gone.
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
	if err := r.client.Delete(ctx, ns, exactly(ns)); client.IgnoreNotFound(err) != nil {
		if !kube.IsStale(err) {
			r.events.Eventf(c, corev1.EventTypeWarning, clusterv1alpha1.EventRemoveExecutionSpaceFailed,
				"execution namespace %s: %v", ns.Name, err)
		}
		return false, fmt.Errorf("delete Namespace %s: %w", ns.Name, err)
	}
	r.events.Eventf(c, corev1.EventTypeNormal, clusterv1alpha1.EventRemoveExecutionSpaceSucceed,
		"execution namespace %s removed", ns.Name)
	return false, nil
}

// bindings are those whose decision names the cluster.
func (r *reconciler) bindings(ctx context.Context, cluster string) ([]string, error) {
	var namespaced workv1alpha2.ResourceBindingList
	if err := r.client.List(ctx, &namespaced, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ResourceBindings: %w", err)
	}
	var named []string
	for i := range namespaced.Items {
		if b := &namespaced.Items[i]; targets(b.Spec.Clusters, cluster) {
			named = append(named, "ResourceBinding "+b.Namespace+"/"+b.Name)
		}
	}
	var whole workv1alpha2.ClusterResourceBindingList
	if err := r.client.List(ctx, &whole, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list ClusterResourceBindings: %w", err)
	}
	for i := range whole.Items {
		if b := &whole.Items[i]; targets(b.Spec.Clusters, cluster) {
			named = append(named, "ClusterResourceBinding "+b.Name)
		}
	}
	return named, nil
}

// wait says on the Cluster, once for each change, what its removal waits for.
func (r *reconciler) wait(ctx context.Context, c *clusterv1alpha1.Cluster, reason, message string) error {
	next := c.DeepCopy()
	if !meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: clusterv1alpha1.ConditionRemoved, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}) {
		return nil
	}
	if err := patchStatus(ctx, r.client, c, next); err != nil {
		return fmt.Errorf("say what the removal of Cluster %s waits for: %w", c.Name, err)
	}
	kind := corev1.EventTypeNormal
	if reason == clusterv1alpha1.ReasonWaitingForCluster {
		kind = corev1.EventTypeWarning
	}
	r.events.Event(next, kind, clusterv1alpha1.EventRemovalWaits, message)
	return nil
}

// few names the first three of a list, and how many there are besides.
func few(all []string) string {
	const most = 3
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

func targets(clusters []workv1alpha2.TargetCluster, name string) bool {
	return slices.ContainsFunc(clusters, func(t workv1alpha2.TargetCluster) bool { return t.Name == name })
}
