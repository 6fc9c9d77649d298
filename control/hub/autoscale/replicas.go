package autoscale

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// replicasReconciler is the deploymentReplicasSyncer: it sets the replicas of a Deployment at the
// hub to the sum of those that autoscalers have set in the members.
type replicasReconciler struct {
	client client.Client
	live   client.Reader
	events record.EventRecorder
}

func setupReplicas(mgr ctrl.Manager) error {
	r := &replicasReconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), events: kube.EventRecorder(mgr, "pelago-hub")}
	do, err := kube.Reconciler("deploymentreplicas", r.events, r.reconcile)
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("deploymentreplicas").For(&workv1alpha2.ResourceBinding{}).
		WithOptions(kube.HubControllerOptions(workers)).Complete(do)
}

func (r *replicasReconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	b := &workv1alpha2.ResourceBinding{}
	if err := r.client.Get(ctx, req.NamespacedName, b); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("read the ResourceBinding %s: %w", req, err))
	}
	n, generation, ok := running(b)
	if !ok || n == b.Spec.Replicas {
		return 0, nil
	}
	ref := b.Spec.Resource
	t := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: ref.APIVersion, Kind: ref.Kind}}
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, t); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("read the %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err))
	}
	if t.Labels[workv1alpha2.LabelRetainReplicas] != "true" || t.Generation != generation || t.DeletionTimestamp != nil {
		return 0, nil
	}
	s, err := readScale(ctx, r.client, ref.Namespace, autoscalingv2.CrossVersionObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Name: ref.Name})
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if s.replicas != b.Spec.Replicas {
		return 0, nil // the next event of the binding comes with the change
	}
	// its status was written in between, of which the binding has no event
	if s.version != t.ResourceVersion {
		return time.Second, nil
	}
	if err := s.set(ctx, r.client, n); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	r.events.Eventf(b, corev1.EventTypeNormal, "ReplicasSynced", "Deployment %s has %d replicas in the clusters, so at the hub, after %d", ref.Name, n, s.replicas)
	return 0, nil
}

// running is how many replicas the clusters run, and the generation of the template that they have.
// ok is false unless the template is a divided Deployment and every cluster has applied it, with
// all pods of that version: while one rolls out, it has more pods than replicas. A cluster without
// pods has not created them yet: an assigned cluster and an autoscaler have one replica at least.
func running(b *workv1alpha2.ResourceBinding) (n int32, generation int64, ok bool) {
	ref := b.Spec.Resource
	if ref.APIVersion != "apps/v1" || ref.Kind != "Deployment" || b.DeletionTimestamp != nil || len(b.Spec.GracefulEvictionTasks) > 0 ||
		len(b.Spec.Clusters) == 0 || !b.Spec.Placement.Divided() {
		return 0, 0, false
	}
	statuses := map[string]workv1alpha2.AggregatedStatusItem{}
	for _, i := range b.Status.AggregatedStatus {
		statuses[i.ClusterName] = i
	}
	var assigned int32
	for _, t := range b.Spec.Clusters {
		var s struct {
			Replicas, UpdatedReplicas                                  int32
			Generation, ObservedGeneration, ResourceTemplateGeneration int64
		}
		i, reported := statuses[t.Name]
		if !reported || !i.Applied || i.Status == nil || json.Unmarshal(i.Status.Raw, &s) != nil {
			return 0, 0, false
		}
		if s.Replicas == 0 || s.Generation != s.ObservedGeneration || s.Replicas != s.UpdatedReplicas || generation != 0 && generation != s.ResourceTemplateGeneration {
			return 0, 0, false
		}
		n, assigned, generation = n+s.Replicas, assigned+t.Replicas, s.ResourceTemplateGeneration
	}
	return n, generation, assigned == b.Spec.Replicas && generation != 0
}
