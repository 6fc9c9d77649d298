package main

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/chaos/check"
)

func selectors(group string) []policyv1alpha1.ResourceSelector {
	return []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment",
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{groupLabel: group}}}}
}

// placement is a random one: some members, and Duplicated or divided by weights. It tolerates the
// taint that evicts one template: what has been divided again would stay where it is when the taint
// is gone.
func (c *churn) placement() policyv1alpha1.Placement {
	chosen := slices.Clone(c.members)
	c.rng.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
	chosen = chosen[:1+c.rng.IntN(len(chosen))]
	slices.Sort(chosen)
	p := policyv1alpha1.Placement{ClusterAffinity: &policyv1alpha1.ClusterAffinity{ClusterNames: chosen},
		ClusterTolerations: []policyv1alpha1.Toleration{{Key: evictingTaint, Operator: corev1.TolerationOpExists}}}
	if c.rng.IntN(2) == 0 {
		return p
	}
	weights := &policyv1alpha1.ClusterPreferences{}
	powers := c.rng.Perm(len(chosen))
	for i, m := range chosen {
		weight := 1 + c.rng.Int64N(3)
		if c.decisive {
			// quotients of different powers of two by odd numbers are different
			weight = 1 << powers[i]
		}
		weights.StaticWeightList = append(weights.StaticWeightList, policyv1alpha1.StaticClusterWeight{
			TargetCluster: policyv1alpha1.ClusterAffinity{ClusterNames: []string{m}}, Weight: weight})
	}
	p.ReplicaScheduling = &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType:     policyv1alpha1.ReplicaSchedulingTypeDivided,
		ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceWeighted, WeightPreference: weights,
	}
	return p
}

// place makes the policy of a group that has none.
func (c *churn) place(ctx context.Context, group name) error {
	p := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: group.Namespace, Name: group.Name},
		Spec: policyv1alpha1.PropagationSpec{ResourceSelectors: selectors(group.Name), PropagateDeps: true,
			Placement: c.placement()},
	}
	c.policies[group] = p
	delete(c.frozen, group)
	return c.ask(ctx, c.making(p))
}

// replace moves a group: its policy gets another placement.
func (c *churn) replace(ctx context.Context) error {
	group, ok := pick(c, c.policies, nil)
	if !ok {
		return nil
	}
	p, placement := c.policies[group], c.placement()
	p.Spec.Placement = placement
	return c.ask(ctx, changing(c, p, func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Placement = placement }))
}

// dropPolicy deletes the policy of a group. What has settled in members must stay there; what was
// on its way may end either way.
func (c *churn) dropPolicy(ctx context.Context) error {
	group, ok := pick(c, c.policies, nil)
	if !ok {
		return nil
	}
	before, err := c.wanted()
	if err != nil {
		return err
	}
	p := c.policies[group]
	delete(c.policies, group)
	after, err := c.wanted()
	if err != nil {
		return err
	}
	maps.DeleteFunc(before, func(place check.Place, _ check.Content) bool { _, other := after[place]; return other })
	c.frozen[group] = c.history.Settled(before, time.Now())
	return c.ask(ctx, c.deleting(p))
}

// restorePolicy gives a group a policy again, of the same name and another UID, somewhere.
func (c *churn) restorePolicy(ctx context.Context) error {
	group, ok := pick(c, c.frozen, nil)
	if !ok {
		return nil
	}
	return c.place(ctx, group)
}

// override makes, changes or deletes the override of a group in one member.
func (c *churn) override(ctx context.Context) error {
	group, ok := pick(c, c.policies, nil)
	if !ok {
		return nil
	}
	spec := policyv1alpha1.OverrideSpec{ResourceSelectors: selectors(group.Name), OverrideRules: []policyv1alpha1.RuleWithCluster{{
		TargetCluster: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{c.members[c.rng.IntN(len(c.members))]}},
		Overriders: policyv1alpha1.Overriders{
			ImageOverrider: []policyv1alpha1.ImageOverrider{{
				Component: policyv1alpha1.Tag, Operator: policyv1alpha1.OverriderOpReplace, Value: c.tag()}},
			LabelsOverrider: []policyv1alpha1.LabelAnnotationOverrider{{
				Operator: policyv1alpha1.OverriderOpAdd, Value: map[string]string{"chaos.pelago.io/override": c.tag()}}},
		},
	}}}
	o := c.overrides[group]
	switch {
	case o == nil:
		o = &policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: group.Namespace, Name: group.Name}, Spec: spec}
		c.overrides[group] = o
		return c.insist(ctx, c.making(o))
	case c.rng.IntN(3) == 0:
		delete(c.overrides, group)
		return c.insist(ctx, c.deleting(client.Object(o)))
	}
	return c.insist(ctx, changing(c, o, func(o *policyv1alpha1.OverridePolicy) { o.Spec = spec }))
}
