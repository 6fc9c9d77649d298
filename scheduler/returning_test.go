package scheduler

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// A former assignment is restored as it was, as far as the clusters to which replicas return pass
// the filters and have capacity now.
func TestReturning(t *testing.T) {
	one := placement(nil, spreadBy(cluster1, 1, 1))
	for name, c := range map[string]struct {
		r    *Request
		s    *Snapshot
		want string
	}{
		"as it was":                       {request(6, placement(byDynamic()), "a=2", "b=2", "c=2"), snapshot(member("a", 9), member("b", 1), member("c", 0)), "a=2 b=2 c=2"},
		"with more replicas than then":    {request(9, placement(byDynamic()), "a=2", "b=2", "c=2"), snapshot(member("a", 6), member("b", 0), member("c", 0)), "a=5 b=2 c=2"},
		"full meanwhile":                  {request(6, placement(byDynamic()), "a=2", "b=2", "c=2"), snapshot(member("a", 0), member("b", 5), member("c", 0)), "b=4 c=2"},
		"room for a part":                 {request(6, placement(byAggregation()), "a=3", "b=3"), snapshot(member("a", 1), member("b", 5)), "a=1 b=5"},
		"tainted":                         {request(4, placement(byDynamic()), "a=2", "b=2"), snapshot(member("a", 9, tainted("x", corev1.TaintEffectNoSchedule)), member("b", 9)), "b=4"},
		"static weights":                  {request(4, placement(byWeights(map[string]int64{"a": 1, "b": 1})), "a=2", "b=2"), snapshot(member("a", 0), member("b", 0)), "a=2 b=2"},
		"one of two by a constraint":      {request(3, one, "a=3"), snapshot(member("a", 5), member("b", 9)), "a=3"},
		"not selected any more":           {request(4, &policyv1alpha1.Placement{ClusterAffinity: ptrTo(named("b"))}, "a=4"), snapshot(member("a", 5), member("b", 9)), "b=4"},
		"another one is evicted there":    {evicted(request(3, one, "a=3"), "a"), snapshot(member("a", 5), member("b", 9)), "b=3"},
		"a template that is no workload":  {&Request{Kind: deployment, Placement: one, Current: request(0, nil, "a=0").Current}, snapshot(member("a", 5), member("b", 9)), "a=0"},
		"one that does not exist anymore": {request(3, placement(byDynamic()), "a=1", "b=2"), snapshot(member("b", 5)), "b=3"},
	} {
		t.Run(name, func(t *testing.T) {
			c.r.Returning = []string{"a"}
			d, err := Schedule(c.r, c.s)
			if got := show(d); err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
			if !c.s.Fits(c.r, d.Clusters) && c.r.TakesRoom() && name != "with more replicas than then" {
				t.Errorf("%q does not fit when it is committed", show(d))
			}
		})
	}
}

func ptrTo[T any](v T) *T { return &v }

// What is scaled to 0 stays in its clusters, and starts again in them.
func TestStopped(t *testing.T) {
	world := func() *Snapshot { return snapshot(member("a", 3), member("b", 9), member("c", 9)) }
	for name, c := range map[string]struct {
		r       *Request
		stopped []string // the division before
		empty   bool
		want    string
	}{
		"aggregated":                      {r: request(0, placement(byAggregation()), "a=3"), want: "a=0"},
		"static weights":                  {r: request(0, placement(byWeights(map[string]int64{"a": 1, "b": 1})), "a=2", "b=2"), want: "a=0 b=0"},
		"dynamic weights":                 {r: request(0, placement(byDynamic()), "a=1", "c=2"), want: "a=0 c=0"},
		"not selected any more":           {r: request(0, &policyv1alpha1.Placement{ClusterAffinity: ptrTo(named("b", "c")), ReplicaScheduling: placement(byDynamic()).ReplicaScheduling}, "a=1", "c=2"), want: "c=0"},
		"created with 0":                  {r: request(0, placement(byDynamic())), want: ""},
		"created with 0, empty workloads": {r: request(0, placement(byDynamic())), empty: true, want: "a=0 b=0 c=0"},
		"started where it was, aggregated, although others have more room": {r: request(2, placement(byAggregation()), "a=0"), stopped: []string{"a=2"}, want: "a=2"},
		"started where it was, dynamic":                                    {r: request(3, placement(byDynamic()), "a=0", "c=0"), stopped: []string{"a=1", "c=2"}, want: "a=1 c=2"},
		"started with fewer":                                               {r: request(1, placement(byDynamic()), "a=0"), stopped: []string{"a=3"}, want: "a=1"},
		"its cluster is full":                                              {r: request(5, placement(byAggregation()), "a=0"), stopped: []string{"a=5"}, want: "a=3 b=2"},
		"it left one meanwhile":                                            {r: request(4, placement(byAggregation()), "a=0"), stopped: []string{"a=2", "c=2"}, want: "a=2 b=2"},
		"it has replicas: what was before does not count":                  {r: request(6, placement(byAggregation()), "b=5"), stopped: []string{"a=3"}, want: "b=6"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.r.Requirements == nil {
				c.r.Requirements = &workv1alpha2.ReplicaRequirements{} // a workload, of 0 replicas, too
			}
			c.r.Stopped, c.r.Empty = request(0, nil, c.stopped...).Current, c.empty
			d, err := Schedule(c.r, world())
			if got := show(d); err != nil || got != c.want {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
			if c.r.TakesRoom() && !world().Fits(c.r, d.Clusters) {
				t.Errorf("%q does not fit when it is committed", show(d))
			}
		})
	}
}

// Groups that a spread constraint wants have replicas, not only clusters that were chosen; what is
// not so is noted.
func TestGroupsHaveReplicas(t *testing.T) {
	world := func() *Snapshot { return snapshot(member("a", 9), member("b", 3), member("c", 1), member("d", 0)) }
	for name, c := range map[string]struct {
		r          *Request
		want, note string
	}{
		"aggregated":             {r: request(4, placement(byAggregation(), spreadBy(cluster1, 2, 0))), want: "a=3 b=1"},
		"three":                  {r: request(4, placement(byAggregation(), spreadBy(cluster1, 3, 0))), want: "a=2 b=1 c=1"},
		"dynamic":                {r: request(4, placement(byDynamic(), spreadBy(cluster1, 3, 0))), want: "a=2 b=1 c=1"},
		"static":                 {r: request(2, placement(byWeights(map[string]int64{"a": 98, "b": 1, "c": 1}), spreadBy(cluster1, 2, 0))), want: "a=1 b=1"},
		"static, without weight": {r: request(2, placement(byWeights(map[string]int64{"a": 98}), spreadBy(cluster1, 2, 0))), want: "a=2", note: "1 of at least 2 groups, since no cluster"},
		"few replicas":           {r: request(1, placement(byAggregation(), spreadBy(cluster1, 2, 0))), want: "a=1", note: "1 of at least 2 groups, since there are 1 replicas"},
		"no room":                {r: request(5, placement(byAggregation(), spreadBy(cluster1, 4, 0))), want: "a=3 b=1 c=1", note: "3 of at least 4 groups, since no cluster"},
		"it stays so":            {r: request(4, placement(byAggregation(), spreadBy(cluster1, 2, 0)), "a=3", "b=1"), want: "a=3 b=1"},
		"undivided":              {r: undivided(request(4, placement(byDynamic(), spreadBy(cluster1, 2, 0)))), want: "a=4", note: "1 of at least 2 groups, since it counts"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Schedule(c.r, world())
			if got := show(d); err != nil || got != c.want || (d.Note == "") != (c.note == "") || !strings.Contains(d.Note, c.note) {
				t.Errorf("%q, %q, %v; want %q, %q", got, d.Note, err, c.want, c.note)
			}
		})
	}
}

func undivided(r *Request) *Request {
	r.Undivided = "it counts"
	return r
}

// What cannot be divided runs in one cluster, which has room for all of it.
func TestUndivided(t *testing.T) {
	world := func() *Snapshot { return snapshot(member("a", 3), member("b", 5), member("c", 9)) }
	for name, c := range map[string]struct {
		r       *Request
		want    string
		refused bool
	}{
		"aggregated":                  {r: request(4, placement(byAggregation())), want: "c=4"},
		"dynamic":                     {r: request(9, placement(byDynamic())), want: "c=9"},
		"where it runs":               {r: request(5, placement(byDynamic()), "b=5"), want: "b=5"},
		"static":                      {r: request(4, placement(byWeights(map[string]int64{"a": 1, "b": 3}))), want: "b=4"},
		"duplicated":                  {r: request(2, nil), want: "a=2 b=2 c=2"},
		"room in no single cluster":   {r: request(10, placement(byAggregation())), refused: true},
		"divided by a former release": {r: request(4, placement(byDynamic()), "a=2", "b=2"), want: "b=4"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Schedule(undivided(c.r), world())
			var room *UnschedulableError
			if got := show(d); got != c.want || errors.As(err, &room) != c.refused || c.refused && !strings.Contains(err.Error(), "it counts") {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}
