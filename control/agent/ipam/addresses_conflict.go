package ipam

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// conflicts says for each GlobalEgressIP of a namespace, by name, what it loses; those that lose nothing are not listed.
func conflicts(pools []submarinerv1.GlobalEgressIP, pods []topology.EgressPod, namespace string) map[string]string {
	table := topology.NewEgressTable(nil, pools, nil)
	lost := map[string]string{}
	winner, losers := table.Shadowed(namespace)
	for _, loser := range losers {
		lost[loser.Name] = fmt.Sprintf("GlobalEgressIP %s is older and, like this one, has no podSelector: it serves the namespace", winner.Name)
	}
	slices.SortFunc(pods, func(a, b topology.EgressPod) int { return cmp.Compare(a.Name, b.Name) })
	for _, pod := range pods {
		c := table.Choose(pod)
		if c.Rank != topology.PodSelector {
			continue
		}
		for _, loser := range c.Shadowed {
			if _, known := lost[loser.Name]; !known {
				lost[loser.Name] = selectedTwice(c.Pool, pod)
			}
		}
	}
	return lost
}

func selectedTwice(winner pelagov1alpha1.EgressPool, pod topology.EgressPod) string {
	return fmt.Sprintf("GlobalEgressIP %s is older and serves the pods that both select, such as %s", winner.Name, pod.Name)
}

// conflictCondition turns what a GlobalEgressIP loses into its condition; nil if none has to be written.
func conflictCondition(lost string, was *metav1.Condition) *metav1.Condition {
	switch {
	case lost != "":
		return &metav1.Condition{Type: submarinerv1.ConditionConflict, Status: metav1.ConditionTrue, Reason: submarinerv1.ReasonOlderObject, Message: lost}
	case was != nil:
		return &metav1.Condition{Type: submarinerv1.ConditionConflict, Status: metav1.ConditionFalse, Reason: submarinerv1.ReasonNoConflict}
	}
	return nil
}
