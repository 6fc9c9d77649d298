package cluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// taints are what a cluster is to have: not-ready while Ready is False or not known yet, unreachable while it is Unknown,
// neither while it is True; NoSchedule only, so that nothing is driven away. Other taints stay; those with NoExecute get the
// time from which tolerations count.
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

// tainter keeps the taints of all Clusters.
type tainter struct {
	client client.Client
	events record.EventRecorder
	stale  *kube.StaleCaches[ctrl.Request]
}

// Reconcile writes the taints of one Cluster.
func (r *tainter) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return r.stale.Result(req, 0, r.reconcile(ctx, req.Name))
}

func (r *tainter) reconcile(ctx context.Context, name string) error {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
		return client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return nil
	}
	want := taints(c.Spec.Taints, c.Ready(), metav1.Now())
	if apiequality.Semantic.DeepEqual(c.Spec.Taints, want) {
		return nil
	}
	next := c.DeepCopy()
	next.Spec.Taints = want
	if err := patch(ctx, r.client, c, next); err != nil {
		if !kube.IsStale(err) {
			r.events.Eventf(c, corev1.EventTypeWarning, clusterv1alpha1.EventTaintClusterFailed,
				"taints of cluster %s not changed: %v", name, err)
		}
		return fmt.Errorf("taint Cluster %s: %w", name, err)
	}
	r.events.Eventf(next, corev1.EventTypeNormal, clusterv1alpha1.EventTaintClusterSucceed,
		"taints of cluster %s are now: %s", name, words(want))
	return nil
}

// words lists taints for people.
func words(taints []clusterv1alpha1.Taint) string {
	if len(taints) == 0 {
		return "none"
	}
	text := ""
	for i, t := range taints {
		if i > 0 {
			text += ", "
		}
		core := corev1.Taint(t)
		text += core.ToString()
	}
	return text
}
