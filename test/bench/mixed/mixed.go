// Package mixed holds the placements that benchmarks of scheduling mix: every combination of how
// replicas are divided, over what is spread and which clusters may be chosen, equally often.
package mixed

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Every combination of these occurs equally often.
const (
	strategies = 4 // Duplicated, static weights, dynamic weights, Aggregated
	spreads    = 3 // none; by cluster; by region and cluster
	affinities = 4 // none; by labels; by names; by region, less one

	// Combinations is after how many placements they repeat.
	Combinations = strategies * spreads * affinities
)

// Region is that of the i-th cluster: there are 20.
func Region(i int) string { return fmt.Sprintf("region-%02d", i%20) }

// Labels are those of the i-th cluster.
func Labels(i int) map[string]string {
	return map[string]string{"tier": fmt.Sprint("tier-", i%3), "environment": "production", "number": fmt.Sprint(i)}
}

// Placement is the i-th one over clusters of these names, whose regions and labels are as above.
func Placement(i int, clusters []string) *policyv1alpha1.Placement {
	p := &policyv1alpha1.Placement{ReplicaScheduling: strategyOf(i%strategies, i, clusters)}
	k := i / strategies
	p.SpreadConstraints = spreadOf(k % spreads)
	k /= spreads
	p.ClusterAffinity = affinityOf(k%affinities, i, clusters)
	return p
}

func strategyOf(which, i int, clusters []string) *policyv1alpha1.ReplicaSchedulingStrategy {
	s := &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType:     policyv1alpha1.ReplicaSchedulingTypeDivided,
		ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceWeighted,
	}
	switch which {
	case 0:
		return nil
	case 1:
		two := policyv1alpha1.ClusterAffinity{ClusterNames: []string{clusters[i%len(clusters)], clusters[(i+1)%len(clusters)]}}
		tier := policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "tier-1"}}}
		s.WeightPreference = &policyv1alpha1.ClusterPreferences{
			StaticWeightList: []policyv1alpha1.StaticClusterWeight{{Weight: 3, TargetCluster: two}, {Weight: 1, TargetCluster: tier}},
		}
	case 2:
		s.WeightPreference = &policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas}
	case 3:
		s.ReplicaDivisionPreference = policyv1alpha1.ReplicaDivisionPreferenceAggregated
	}
	return s
}

func spreadOf(which int) []policyv1alpha1.SpreadConstraint {
	switch which {
	case 1:
		return []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByFieldCluster, MinGroups: 2, MaxGroups: 5}}
	case 2:
		return []policyv1alpha1.SpreadConstraint{
			{SpreadByField: policyv1alpha1.SpreadByFieldRegion, MinGroups: 2, MaxGroups: 4},
			{SpreadByField: policyv1alpha1.SpreadByFieldCluster, MinGroups: 3, MaxGroups: 8},
		}
	}
	return nil
}

func affinityOf(which, i int, clusters []string) *policyv1alpha1.ClusterAffinity {
	switch which {
	case 1:
		tier := fmt.Sprint("tier-", i%3)
		not := metav1.LabelSelectorRequirement{Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{tier}}
		return &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"environment": "production"}, MatchExpressions: []metav1.LabelSelectorRequirement{not},
		}}
	case 2:
		a := &policyv1alpha1.ClusterAffinity{}
		for n := range 20 {
			a.ClusterNames = append(a.ClusterNames, clusters[(i+n*13)%len(clusters)])
		}
		return a
	case 3:
		in := policyv1alpha1.FieldSelectorRequirement{Key: policyv1alpha1.FieldRegion, Operator: corev1.NodeSelectorOpIn}
		for n := range 8 {
			in.Values = append(in.Values, Region(i+n))
		}
		return &policyv1alpha1.ClusterAffinity{
			ExcludeClusters: []string{clusters[i%len(clusters)]},
			FieldSelector:   &policyv1alpha1.FieldSelector{MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{in}},
		}
	}
	return nil
}
