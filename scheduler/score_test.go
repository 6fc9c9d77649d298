package scheduler

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// The largest sum goes first; what has no valid value is last and named; what runs stays unless a
// rebalancing was requested.
func TestScores(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	score := func(name, cluster string, value int32, valid time.Duration) pelagov1alpha1.PlacementScore {
		s := pelagov1alpha1.PlacementScore{Spec: pelagov1alpha1.PlacementScoreSpec{Score: name, Cluster: cluster, Value: value}}
		if valid != 0 {
			s.Spec.ValidUntil = &metav1.Time{Time: now.Add(valid)}
		}
		return s
	}
	all := []pelagov1alpha1.PlacementScore{
		score("gpu", "m1", 1, 0), score("gpu", "m2", 8, time.Second), score("gpu", "m3", 4, 0),
		score("cost", "m1", 1, 0), score("cost", "m2", 9, 0), score("cost", "m3", 5, -time.Second), score("other", "m1", 99, 0),
	}
	one := []policyv1alpha1.SpreadConstraint{spreadBy(cluster1, 1, 1)}
	for name, tt := range map[string]struct {
		weights map[string]int32
		p       *policyv1alpha1.Placement
		n       int32
		current string
		fresh   bool
		want    string
		note    string
	}{
		"the best of one score":               {weights: map[string]int32{"gpu": 1}, p: placement(nil, one...), n: 2, want: "m2=2"},
		"a negative weight":                   {weights: map[string]int32{"gpu": -1}, p: placement(nil, one...), n: 2, want: "m1=2"},
		"the sum of two, one of them expired": {weights: map[string]int32{"gpu": 1, "cost": -2}, p: placement(nil, one...), n: 2, want: "m1=2", note: "no valid PlacementScore cost of m3: they are last"},
		"no values at all":                    {weights: map[string]int32{"none": 1}, p: placement(nil, one...), n: 2, want: "m1=2", note: "no valid PlacementScore none of m1, m2, m3: they are last"},
		"what runs stays":                     {weights: map[string]int32{"gpu": 1}, p: placement(nil, one...), n: 2, current: "m1=1", want: "m1=2"},
		"… unless it is rebalanced":           {weights: map[string]int32{"gpu": 1}, p: placement(nil, one...), n: 2, current: "m1=1", fresh: true, want: "m2=2"},
		"capacity is filled from the best on": {weights: map[string]int32{"gpu": 1}, p: placement(byDynamic()), n: 7, want: "m2=5 m3=2"},
		"added replicas":                      {weights: map[string]int32{"gpu": 1}, p: placement(byDynamic()), n: 6, current: "m1=2", want: "m1=2 m2=4"},
		"removed replicas":                    {weights: map[string]int32{"gpu": -1}, p: placement(byDynamic()), n: 3, current: "m2=4", want: "m2=3"},
	} {
		t.Run(name, func(t *testing.T) {
			var current []string
			if tt.current != "" {
				current = append(current, tt.current)
			}
			r := request(tt.n, tt.p, current...)
			r.Fresh, r.Scores = tt.fresh, ScoresAt(tt.weights, all, now)
			d, err := Schedule(r, snapshot(member("m1", 5), member("m2", 5), member("m3", 5)))
			if err != nil || show(d) != tt.want || d.Note != tt.note {
				t.Errorf("decided %s, note %q, %v, want %s, note %q", show(d), d.Note, err, tt.want, tt.note)
			}
		})
	}
}
