package propagate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/scheduler"
)

// brokerNamespace is the namespace of the hub in which members publish what they export.
const brokerNamespace = "submariner-k8s-broker"

// contributionKind is watched if a policy wants to be near to a service.
var contributionKind = pelagov1alpha1.GroupVersion.WithKind("ServiceContribution")

// near are the round-trip times by which a binding is placed; nil: they do not bear on it.
func (r *reconciler) near(ctx context.Context, b binding.Binding) (*scheduler.Near, error) {
	n, err := policyv1alpha1.NearOf(b.GetAnnotations())
	if n == nil || err != nil {
		return nil, err
	}
	targets := []string{n.Cluster}
	if n.Service != "" {
		if targets, err = r.exporters(ctx, n.Service); err != nil {
			return nil, err
		}
	}
	return r.rtts.Load().To(n, targets), nil
}

// scores are those by which a binding is placed; nil: none bear on it. One that expires changes the
// next decision only.
func (r *reconciler) scores(ctx context.Context, b binding.Binding) ([]scheduler.Score, error) {
	weights, err := policyv1alpha1.ScoresOf(b.GetAnnotations())
	if weights == nil || err != nil {
		return nil, err
	}
	var list pelagov1alpha1.PlacementScoreList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list PlacementScores: %w", err)
	}
	return scheduler.ScoresAt(weights, list.Items, time.Now()), nil
}

// exporters are the clusters that export a service; none if the hub is not the broker.
func (r *reconciler) exporters(ctx context.Context, service string) ([]string, error) {
	all, err := r.kinds.list(ctx, contributionKind, brokerNamespace, labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list the exports of service %s: %w", service, err)
	}
	var out []string
	for i := range all {
		spec, _, _ := unstructured.NestedMap(all[i].Object, "spec") // the schema requires it
		if fmt.Sprintf("%v/%v", spec["namespace"], spec["service"]) == service {
			out = append(out, fmt.Sprint(spec["cluster"]))
		}
	}
	slices.Sort(out)
	return out, nil
}

// nearer are the clusters that a template leaves for nearer ones, with the reasons. None while it
// is leaving one.
func (r *reconciler) nearer(b binding.Binding, n *scheduler.Near) map[string]string {
	before := recorded(b)
	if n == nil || len(b.Spec.Clusters) == 0 || len(b.Spec.GracefulEvictionTasks) > 0 || !scheduled(b, before) {
		return nil
	}
	req, _ := request(b, before)
	req.Near, req.Fresh = n, true
	req.Evicted = append(req.Evicted, placement.FailedIn(b, before)...)
	fresh, err := r.Capacity.Try(capacityKey(b), req)
	if err != nil {
		fresh.Clusters = nil
	}
	return n.Leaves(b.Spec.Clusters, fresh.Clusters)
}

// onContribution reports whether an event is of a service export, and has what is placed near to
// services decided.
func (r *reconciler) onContribution(before, after client.Object) bool {
	o := after
	if o == nil {
		o = before
	}
	if o.GetObjectKind().GroupVersionKind().GroupKind() != contributionKind.GroupKind() {
		return false
	}
	if before == nil || after == nil {
		r.exports.Store(true)
		r.clustersChanged(false)
	}
	return true
}

// addNear enqueues the templates that are placed by round-trip time.
func (r *reconciler) addNear(b binding.Binding) {
	if b.GetAnnotations()[policyv1alpha1.AnnotationNear] != "" {
		r.addTemplate(b)
	}
}
