package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	remedyv1alpha1 "github.com/pelago-net/pelago/api/remedy/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// remedyActions are the actions that Remedies require of a cluster, sorted. Of the matches of a
// Remedy one must hold; a condition that the cluster does not have does not match.
func remedyActions(c *clusterv1alpha1.Cluster, remedies []remedyv1alpha1.Remedy) []string {
	var actions []string
	for i := range remedies {
		r := &remedies[i].Spec
		if r.ClusterAffinity != nil && !slices.Contains(r.ClusterAffinity.ClusterNames, c.Name) {
			continue
		}
		matches := slices.ContainsFunc(r.DecisionMatches, func(m remedyv1alpha1.DecisionMatch) bool {
			if m.ClusterConditionMatch == nil {
				return false
			}
			is := meta.FindStatusCondition(c.Status.Conditions, m.ClusterConditionMatch.ConditionType)
			return is != nil && (string(is.Status) == m.ClusterConditionMatch.ConditionStatus) ==
				(m.ClusterConditionMatch.Operator == remedyv1alpha1.ClusterConditionEqual)
		})
		if !matches && len(r.DecisionMatches) > 0 {
			continue
		}
		for _, a := range r.Actions {
			actions = append(actions, string(a))
		}
	}
	slices.Sort(actions)
	return slices.Compact(actions)
}

// remedier writes the actions of Remedies into status.remedyActions of Clusters, on which
// controllers of traffic act.
type remedier struct {
	client client.Client
	events record.EventRecorder
}

func (r *remedier) setup(mgr ctrl.Manager) error {
	return setupByPolicies(mgr, "remedy", &remedyv1alpha1.Remedy{}, r.client, r.events, r.reconcile)
}

func (r *remedier) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	c := &clusterv1alpha1.Cluster{}
	if err := r.client.Get(ctx, req.NamespacedName, c); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if c.DeletionTimestamp != nil {
		return 0, nil
	}
	var remedies remedyv1alpha1.RemedyList
	if err := r.client.List(ctx, &remedies); err != nil {
		return 0, fmt.Errorf("list Remedies: %w", err)
	}
	if want := remedyActions(c, remedies.Items); !slices.Equal(c.Status.RemedyActions, want) {
		next := c.DeepCopy()
		next.Status.RemedyActions = want
		if err := r.client.Status().Patch(ctx, next, kube.MergeFrom(c)); err != nil {
			return 0, fmt.Errorf("write remedyActions of Cluster %s: %w", c.Name, err)
		}
	}
	for i := range remedies.Items {
		if err := r.accept(ctx, &remedies.Items[i]); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// accept sets the condition Accepted. The definition that Karmada installs has no status: NotFound.
func (r *remedier) accept(ctx context.Context, remedy *remedyv1alpha1.Remedy) error {
	before := remedy.DeepCopy()
	if !meta.SetStatusCondition(&remedy.Status.Conditions, metav1.Condition{Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue,
		Reason: policyv1alpha1.ReasonAccepted, Message: "its actions are in status.remedyActions of the Clusters that match",
		ObservedGeneration: remedy.Generation}) {
		return nil
	}
	if err := r.client.Status().Patch(ctx, remedy, kube.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of Remedy %s: %w", remedy.Name, err)
	}
	return nil
}
