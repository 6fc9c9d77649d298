package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// taints are the taints that a cluster should have: not-ready while Ready is False or absent, unreachable while it is Unknown,
// neither while it is True; NoSchedule only, so that nothing is evicted. Other taints stay; those with NoExecute get the time from
// which toleration seconds count.
func taints(have []clusterv1alpha1.Taint, ready *metav1.Condition, now metav1.Time) []clusterv1alpha1.Taint {
	wanted := clusterv1alpha1.TaintNotReady
	switch {
	case ready == nil:
	case ready.Status == metav1.ConditionTrue:
		wanted = ""
	case ready.Status == metav1.ConditionUnknown:
		wanted = clusterv1alpha1.TaintUnreachable
	}
	var want []clusterv1alpha1.Taint
	for _, t := range have {
		ours := t.Key == clusterv1alpha1.TaintNotReady || t.Key == clusterv1alpha1.TaintUnreachable
		if ours && t.Effect == corev1.TaintEffectNoSchedule && t.Key != wanted {
			continue
		}
		if t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded == nil {
			t.TimeAdded = &now
		}
		want = append(want, t)
	}
	is := func(t clusterv1alpha1.Taint) bool { return t.Key == wanted && t.Effect == corev1.TaintEffectNoSchedule }
	if wanted != "" && !slices.ContainsFunc(want, is) {
		want = append(want, clusterv1alpha1.Taint{Key: wanted, Effect: corev1.TaintEffectNoSchedule})
	}
	return want
}

// tainter writes the taints of all Clusters.
type tainter struct {
	client client.Client
	events record.EventRecorder
}

func (r *tainter) setup(mgr ctrl.Manager) error {
	taints, err := kube.Reconciler("taints", r.events, r.reconcile)
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).Named("taints").For(&clusterv1alpha1.Cluster{}).Complete(taints)
}

func (r *tainter) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, req.NamespacedName, c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return 0, nil
	}
	want := taints(c.Spec.Taints, c.Ready(), metav1.Now())
	if apiequality.Semantic.DeepEqual(c.Spec.Taints, want) {
		return 0, nil
	}
	next := c.DeepCopy()
	next.Spec.Taints = want
	if err := r.client.Patch(ctx, next, kube.MergeFrom(c)); err != nil {
		failed(r.events, c, clusterv1alpha1.EventTaintClusterFailed, "taints of cluster "+c.Name+" not changed", err)
		return 0, fmt.Errorf("taint Cluster %s: %w", c.Name, err)
	}
	r.events.Eventf(next, corev1.EventTypeNormal, clusterv1alpha1.EventTaintClusterSucceed,
		"taints of cluster %s are now: %s", c.Name, words(want))
	return 0, nil
}

// words lists taints for an Event.
func words(taints []clusterv1alpha1.Taint) string {
	var all []string
	for _, t := range taints {
		core := corev1.Taint(t)
		all = append(all, core.ToString())
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}
