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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// taints are the taints that a cluster should have by its conditions: not-ready while Ready is
// False or absent, unreachable while it is Unknown, neither while it is True; NoSchedule only, so
// that nothing is evicted. Other taints stay; those with NoExecute get the time from which
// toleration seconds count.
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

// applyPolicies are the taints of a cluster after its ClusterTaintPolicies, the oldest first: each
// adds its taints, then removes them, if the conditions match. An invalid policy does neither.
func applyPolicies(c *clusterv1alpha1.Cluster, taints []clusterv1alpha1.Taint, policies []policyv1alpha1.ClusterTaintPolicy, now metav1.Time) []clusterv1alpha1.Taint {
	policies = slices.Clone(policies)
	slices.SortFunc(policies, func(a, b policyv1alpha1.ClusterTaintPolicy) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := range policies {
		p := &policies[i].Spec
		target, err := scheduler.ParseAffinity(p.TargetClusters)
		if err != nil || len(p.Validate("")) > 0 || !target.Matches(c) {
			continue
		}
		add, remove := match(c.Status.Conditions, p.AddOnConditions), match(c.Status.Conditions, p.RemoveOnConditions)
		for _, t := range p.Taints {
			same := func(have clusterv1alpha1.Taint) bool { return have.Key == t.Key && have.Effect == t.Effect }
			switch {
			case remove:
				taints = slices.DeleteFunc(taints, same)
			case add && !slices.ContainsFunc(taints, same):
				taint := clusterv1alpha1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect, TimeAdded: &now}
				// an older policy has removed it above
				if had := slices.IndexFunc(c.Spec.Taints, same); had >= 0 {
					taint.TimeAdded = cmp.Or(c.Spec.Taints[had].TimeAdded, &now)
				}
				taints = append(taints, taint)
			}
		}
	}
	return taints
}

// match reports whether all wanted conditions match; none never do. A condition that a cluster does
// not have does not match.
func match(have []metav1.Condition, want []policyv1alpha1.MatchCondition) bool {
	return len(want) > 0 && !slices.ContainsFunc(want, func(m policyv1alpha1.MatchCondition) bool {
		is := meta.FindStatusCondition(have, m.ConditionType)
		return is == nil || slices.Contains(m.StatusValues, is.Status) != (m.Operator == policyv1alpha1.MatchConditionOpIn)
	})
}

// tainter writes the taints of all Clusters.
type tainter struct {
	client client.Client
	events record.EventRecorder
}

func (r *tainter) setup(mgr ctrl.Manager) error {
	return setupByPolicies(mgr, "taints", &policyv1alpha1.ClusterTaintPolicy{}, r.client, r.events, r.reconcile)
}

// setupByPolicies adds a controller that reconciles Clusters, all of them when a policy of a kind
// changes.
func setupByPolicies(
	mgr ctrl.Manager, name string, policy client.Object, c client.Client, events record.EventRecorder,
	do func(context.Context, ctrl.Request) (time.Duration, error),
) error {
	r, err := kube.Reconciler(name, events, do)
	if err != nil {
		return err
	}
	every := func(ctx context.Context, _ client.Object) []reconcile.Request {
		return requests(ctx, c, func(*clusterv1alpha1.Cluster) bool { return true })
	}
	return ctrl.NewControllerManagedBy(mgr).Named(name).For(&clusterv1alpha1.Cluster{}).
		Watches(policy, handler.EnqueueRequestsFromMapFunc(every), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(kube.HubControllerOptions(1)).
		Complete(r)
}

func (r *tainter) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, req.NamespacedName, c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return 0, nil
	}
	var policies policyv1alpha1.ClusterTaintPolicyList
	if err := r.client.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list ClusterTaintPolicies: %w", err)
	}
	now := metav1.Now()
	want := applyPolicies(c, taints(c.Spec.Taints, c.Ready(), now), policies.Items, now)
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
