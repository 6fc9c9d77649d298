package scheduler

import (
	"testing"
	"time"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

func TestNeed(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	scheduled := func(p *policyv1alpha1.Placement) Observed {
		applied, err := Applied(p)
		if err != nil {
			t.Fatal(err)
		}
		return Observed{Placement: applied, Scheduled: at}
	}
	two := affinities("a", "b")
	three := affinities("a", "b", "c")
	divided := placement(byDynamic())
	affine := placement(byDynamic())
	affine.WorkloadAffinity = &policyv1alpha1.WorkloadAffinity{}
	component := together("a=2")
	duplicate := together("a=2")
	duplicate.Placement = nil
	abc := snapshot(member("a", 1), member("b", 1, removed))
	for name, c := range map[string]struct {
		r    *Request
		o    Observed
		want string
	}{
		"never decided":                      {request(2, divided), Observed{}, "the placement changed"},
		"nothing changed":                    {request(2, divided, "a=2"), scheduled(divided), ""},
		"another placement":                  {request(2, divided, "a=2"), scheduled(placement(byAggregation())), "the placement changed"},
		"an annotation that is none":         {request(2, divided, "a=2"), Observed{Placement: "{"}, "the placement changed"},
		"no placement, as before":            {request(2, nil, "a=2"), scheduled(nil), "it follows the clusters"},
		"a group behind the one in use":      {last(request(1, divide(three), "a=1"), "group-a"), scheduled(divide(two)), ""},
		"the group in use is another":        {last(request(1, divide(affinities("b", "a")), "a=1"), "group-x"), scheduled(divide(two)), ""},
		"the first groups":                   {request(2, divide(two), "a=2"), scheduled(divided), "the placement changed"},
		"groups, decided without a name":     {request(2, divide(affinities("a", "b")), "a=2"), scheduled(divide(two)), ""},
		"workload affinity alone":            {request(2, affine, "a=2"), scheduled(divided), ""},
		"more replicas, divided":             {request(3, divided, "a=2"), scheduled(divided), "the number of replicas changed"},
		"more replicas, duplicated":          {request(3, nil, "a=2", "c=3"), scheduled(nil), "the number of replicas changed"},
		"rebalancing":                        {request(2, divided, "a=2"), later(scheduled(divided), at), "a rebalancing was asked for"},
		"what has no replicas follows":       {&Request{Kind: deployment, Placement: divided}, scheduled(divided), "it follows the clusters"},
		"divided before it had components":   {component, scheduled(component.Placement), ""},
		"components follow":                  {together("a=0"), scheduled(component.Placement), "it follows the clusters"},
		"duplicated components follow":       {duplicate, scheduled(nil), "it follows the clusters"},
		"a cluster that is removed":          {request(2, divided, "a=1", "b=1"), scheduled(divided), "cluster b is being removed"},
		"a cluster that is not there at all": {request(2, divided, "a=1", "gone=1"), scheduled(divided), ""},
	} {
		if got := Need(c.r, c.o, abc); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func divide(p *policyv1alpha1.Placement) *policyv1alpha1.Placement {
	p.ReplicaScheduling = byDynamic()
	return p
}

func later(o Observed, at time.Time) Observed {
	o.Rescheduled = at.Add(time.Second)
	return o
}
