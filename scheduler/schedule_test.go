package scheduler

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

var deployment = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}

// member is a cluster that serves Deployments and has free so many cores, and pods without end.
func member(name string, cores int64, change ...func(c *clusterv1alpha1.Cluster)) *clusterv1alpha1.Cluster {
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionCompleteAPIEnablements, Status: metav1.ConditionTrue}}
	c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "apps/v1", Resources: []clusterv1alpha1.APIResource{{Name: "deployments", Kind: "Deployment"}}}}
	c.Status.ResourceSummary = &clusterv1alpha1.ResourceSummary{Allocatable: corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewQuantity(cores, resource.DecimalSI), corev1.ResourcePods: *resource.NewQuantity(1_000_000, resource.DecimalSI),
	}}
	for _, f := range change {
		f(c)
	}
	return c
}

func in(region string) func(c *clusterv1alpha1.Cluster) {
	return func(c *clusterv1alpha1.Cluster) { c.Spec.Region = region }
}

func tainted(key string, effect corev1.TaintEffect) func(c *clusterv1alpha1.Cluster) {
	return func(c *clusterv1alpha1.Cluster) {
		c.Spec.Taints = append(c.Spec.Taints, clusterv1alpha1.Taint{Key: key, Effect: effect})
	}
}

// The namespace's clusters go before whatever the policy and the last decision select.
func TestWithin(t *testing.T) {
	s := snapshot(member("m1", 9), member("m2", 9), member("m3", 9))
	for name, tt := range map[string]struct {
		within, want, barred string
		invalid              bool
	}{
		"no annotation":                    {want: "m1=2 m2=2 m3=2", barred: "[]"},
		"names, one of no cluster":         {within: "m3, m9", want: "m3=2", barred: "[m1]"},
		"an operator that no selector has": {within: "name!=m1,cores>2", invalid: true, barred: "[]"},
		"labels":                           {within: "name!=m1", want: "m2=2 m3=2", barred: "[m1]"},
		"none of the clusters":             {within: "team=shop", barred: "[m1]"},
		"invalid moves nothing that runs":  {within: "name=a=b", invalid: true, barred: "[]"},
		"no name":                          {within: "m1,", invalid: true, barred: "[]"},
		"a list of what are not the names": {within: "m1;m2", invalid: true, barred: "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(2, placement(nil), "m1=2")
			r.Within = tt.within
			d, err := Schedule(r, s)
			var got string
			if err == nil {
				got = show(d)
			}
			if got != tt.want || Invalid(err) != tt.invalid || (err == nil) != (tt.want != "") {
				t.Errorf("decided %s, %v, want %s", got, err, tt.want)
			}
			if barred := fmt.Sprint(s.Barred(r.Within, r.Current)); barred != tt.barred {
				t.Errorf("barred %s, want %s", barred, tt.barred)
			}
		})
	}
}

func snapshot(clusters ...*clusterv1alpha1.Cluster) *Snapshot { return NewSnapshot(clusters, nil) }

// request requests replicas of a Deployment, of one core each.
func request(replicas int32, p *policyv1alpha1.Placement, current ...string) *Request {
	r := &Request{
		Kind: deployment, Replicas: replicas, Placement: p,
		Requirements: &workv1alpha2.ReplicaRequirements{ResourceRequest: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
	}
	for _, c := range current {
		name, n, _ := strings.Cut(c, "=")
		var replicas int32
		if _, err := fmt.Sscan(n, &replicas); err != nil {
			panic(err)
		}
		r.Current = append(r.Current, workv1alpha2.TargetCluster{Name: name, Replicas: replicas})
	}
	return r
}

// together requests one cluster for a component of two pods with two cores each.
func together(current ...string) *Request {
	r := request(0, placement(byAggregation(), spreadBy(cluster1, 1, 1)), current...)
	r.Requirements, r.Components, r.ComponentsLoad = nil, 1, LoadOf(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}, 2)
	return r
}

func placement(s *policyv1alpha1.ReplicaSchedulingStrategy, spread ...policyv1alpha1.SpreadConstraint) *policyv1alpha1.Placement {
	return &policyv1alpha1.Placement{ReplicaScheduling: s, SpreadConstraints: spread}
}

func byDynamic() *policyv1alpha1.ReplicaSchedulingStrategy {
	return &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceWeighted,
		WeightPreference: &policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas},
	}
}

func byAggregation() *policyv1alpha1.ReplicaSchedulingStrategy {
	return &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceAggregated,
	}
}

func byWeights(weights map[string]int64) *policyv1alpha1.ReplicaSchedulingStrategy {
	s := &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceWeighted,
		WeightPreference: &policyv1alpha1.ClusterPreferences{},
	}
	for name, w := range weights {
		s.WeightPreference.StaticWeightList = append(s.WeightPreference.StaticWeightList, policyv1alpha1.StaticClusterWeight{
			TargetCluster: policyv1alpha1.ClusterAffinity{ClusterNames: []string{name}}, Weight: w,
		})
	}
	return s
}

func spreadBy(field policyv1alpha1.SpreadField, least, most int) policyv1alpha1.SpreadConstraint {
	return policyv1alpha1.SpreadConstraint{SpreadByField: field, MinGroups: least, MaxGroups: most}
}

func named(names ...string) policyv1alpha1.ClusterAffinity {
	return policyv1alpha1.ClusterAffinity{ClusterNames: names}
}

// show writes a decision like "a=1 b=2".
func show(d Decision) string {
	var parts []string
	for _, c := range d.Clusters {
		parts = append(parts, fmt.Sprintf("%s=%d", c.Name, c.Replicas))
	}
	return strings.Join(parts, " ")
}

const (
	cluster1 = policyv1alpha1.SpreadByFieldCluster
	region1  = policyv1alpha1.SpreadByFieldRegion
)

func TestSchedule(t *testing.T) {
	abc := snapshot(member("a", 10), member("b", 6), member("c", 2))
	regions := snapshot(member("a1", 10, in("a")), member("a2", 5, in("a")), member("b1", 8, in("b")), member("c1", 1, in("c")))
	cases := map[string]struct {
		r    *Request
		s    *Snapshot
		want string
		fail error  // its type
		says string // in the error
	}{
		"no placement: everywhere":                   {r: request(2, nil), s: abc, want: "a=2 b=2 c=2"},
		"duplicated whatever room there is":          {r: request(50, placement(nil)), s: abc, want: "a=50 b=50 c=50"},
		"duplicated with no replicas":                {r: request(0, placement(nil)), s: abc, want: "a=0 b=0 c=0"},
		"divided with no replicas":                   {r: request(0, placement(byDynamic())), s: abc, want: ""},
		"static weights":                             {r: request(9, placement(byWeights(map[string]int64{"a": 1, "b": 2}))), s: abc, want: "a=3 b=6"},
		"static weights that match no cluster":       {r: request(6, placement(byWeights(map[string]int64{"x": 1}))), s: abc, want: "a=2 b=2 c=2"},
		"static weights ignore room and what runs":   {r: request(40, placement(byWeights(map[string]int64{"a": 1, "c": 1})), "a=40"), s: abc, want: "a=20 c=20"},
		"static weights ignore spread constraints":   {r: request(3, placement(byWeights(nil), spreadBy(cluster1, 1, 1))), s: abc, want: "a=1 b=1 c=1"},
		"dynamic weights":                            {r: request(9, placement(byDynamic())), s: abc, want: "a=5 b=3 c=1"},
		"dynamic weights: more is added":             {r: request(12, placement(byDynamic()), "a=1", "b=2"), s: abc, want: "a=6 b=5 c=1"},
		"dynamic weights: as many: nothing moves":    {r: request(4, placement(byDynamic()), "a=1", "c=3"), s: abc, want: "a=1 c=3"},
		"dynamic weights: fewer":                     {r: request(3, placement(byDynamic()), "a=4", "b=2"), s: abc, want: "a=2 b=1"},
		"dynamic weights: not enough room":           {r: request(19, placement(byDynamic())), s: abc, fail: &UnschedulableError{}, says: "room for 18 more replicas and 19 are needed"},
		"dynamic weights: a cluster that is lost":    {r: request(4, placement(byDynamic()), "b=2", "gone=2"), s: abc, want: "a=1 b=3"},
		"dynamic weights, fresh":                     {r: fresh(request(9, placement(byDynamic()), "c=9")), s: abc, want: "a=3 b=2 c=4"},
		"aggregated in one":                          {r: request(9, placement(byAggregation())), s: abc, want: "a=9"},
		"aggregated in two":                          {r: request(12, placement(byAggregation())), s: abc, want: "a=7 b=5"},
		"aggregated where it runs":                   {r: request(4, placement(byAggregation()), "b=2"), s: abc, want: "b=4"},
		"aggregated: fewer":                          {r: request(2, placement(byAggregation()), "a=3", "b=4"), s: abc, want: "b=2"},
		"spread over at most two clusters":           {r: request(3, placement(nil, spreadBy(cluster1, 1, 2))), s: abc, want: "a=3 b=3"},
		"spread over at most one, where it runs":     {r: request(3, placement(nil, spreadBy(cluster1, 1, 1)), "c=3"), s: abc, want: "c=3"},
		"spread over more clusters than there are":   {r: request(3, placement(nil, spreadBy(cluster1, 4, 5))), s: abc, fail: &SpreadError{}, says: "3 clusters fit, the spread constraint wants at least 4"},
		"spread: a roomier cluster instead":          {r: request(10, placement(byDynamic(), spreadBy(cluster1, 1, 1)), "c=1"), s: abc, want: "a=10"},
		"spread: not enough room in so few":          {r: request(17, placement(byDynamic(), spreadBy(cluster1, 1, 2))), s: abc, fail: &SpreadError{}, says: "no enough resource when selecting 2 clusters"},
		"spread over two regions":                    {r: request(2, placement(nil, spreadBy(region1, 2, 2), spreadBy(cluster1, 2, 2))), s: regions, want: "a1=2 b1=2"},
		"spread over two regions and three clusters": {r: request(2, placement(nil, spreadBy(region1, 2, 2), spreadBy(cluster1, 3, 3))), s: regions, want: "a1=2 a2=2 b1=2"},
		"spread over more regions than there are":    {r: request(2, placement(nil, spreadBy(region1, 4, 4), spreadBy(cluster1, 4, 4))), s: regions, fail: &SpreadError{}, says: "clusters of 3 regions fit"},
		"spread over regions with too few clusters":  {r: request(2, placement(nil, spreadBy(region1, 1, 1), spreadBy(cluster1, 3, 3))), s: regions, fail: &SpreadError{}, says: "have 3 clusters"},
		"spread by region, divided":                  {r: request(12, placement(byDynamic(), spreadBy(region1, 2, 2), spreadBy(cluster1, 2, 2))), s: regions, want: "a1=7 b1=5"},
		"spread by a region that a cluster has not":  {r: request(1, placement(nil, spreadBy(region1, 1, 1), spreadBy(cluster1, 1, 1))), s: abc, fail: &FitError{}, says: "3 cluster(s) did not have region property"},
		"spread over two zones":                      {r: request(1, placement(nil, spreadBy("zone", 2, 2), spreadBy(cluster1, 2, 2))), s: snapshot(member("a", 1, zones("x")), member("b", 1, zones("x")), member("c", 1, zones("y"))), want: "a=1 c=1"},
		"several zones are a group of their own":     {r: request(1, placement(nil, spreadBy("zone", 3, 3), spreadBy(cluster1, 3, 3))), s: snapshot(member("a", 1, zones("x")), member("b", 1, zones("x", "y")), member("c", 1, zones("y", "x")), member("d", 1, zones("y"))), want: "a=1 b=1 d=1"},
		"spread by a zone that a cluster has not":    {r: request(1, placement(nil, spreadBy("zone", 1, 1), spreadBy(cluster1, 1, 1))), s: abc, fail: &FitError{}, says: "3 cluster(s) did not have zone property"},
		"spread over two providers":                  {r: request(1, placement(nil, spreadBy("provider", 2, 2), spreadBy(cluster1, 2, 2))), s: snapshot(member("a", 1, provider("p")), member("b", 1, provider("p")), member("c", 1, provider("q"))), want: "a=1 c=1"},
		"spread over the values of a label":          {r: request(1, placement(nil, spreadByLabel("room", 2, 2), spreadBy(cluster1, 2, 2))), s: snapshot(member("a", 1, with("room", "1")), member("b", 1, with("room", "1")), member("c", 1, with("room", "")), member("d", 1)), want: "a=1 c=1"},
		"spread over more values than there are":     {r: request(1, placement(nil, spreadByLabel("room", 2, 2), spreadBy(cluster1, 1, 1))), s: snapshot(member("a", 1, with("room", "1"))), fail: &SpreadError{}, says: "clusters of 1 values of label room fit, the spread constraint wants at least 2 values of label room"},
		"spread by a label that a cluster has not":   {r: request(1, placement(nil, spreadByLabel("room", 1, 1), spreadBy(cluster1, 1, 1))), s: abc, fail: &FitError{}, says: "3 cluster(s) did not have label room"},
		"spread by two properties":                   {r: request(1, placement(nil, spreadBy("zone", 1, 1), spreadBy(region1, 1, 1))), s: snapshot(member("a", 1, zones("z"), func(c *clusterv1alpha1.Cluster) { c.Spec.Region = "r" })), fail: &SpreadError{}, says: "spread by zone and by region"},
		"no cluster at all":                          {r: request(1, nil), s: snapshot(), fail: &FitError{}, says: "no cluster has joined"},
		"a taint":                                    {r: request(1, nil), s: snapshot(member("a", 1, tainted("gpu", corev1.TaintEffectNoSchedule)), member("b", 1)), want: "b=1"},
		"a taint where it runs":                      {r: request(1, nil, "a=1"), s: snapshot(member("a", 1, tainted("gpu", corev1.TaintEffectNoExecute))), want: "a=1"},
		"a taint that only prefers":                  {r: request(1, nil), s: snapshot(member("a", 1, tainted("gpu", corev1.TaintEffectPreferNoSchedule))), want: "a=1"},
		"a taint that is tolerated":                  {r: request(1, tolerating("gpu")), s: snapshot(member("a", 1, tainted("gpu", corev1.TaintEffectNoSchedule))), want: "a=1"},
		"a taint of an unapproved cluster":           {r: request(1, tolerating("pelago.io/unapproved")), s: snapshot(member("a", 1, tainted("pelago.io/unapproved", corev1.TaintEffectNoSchedule))), fail: &FitError{}, says: "untolerated taint {pelago.io/unapproved:NoSchedule}"},
		"tolerating everything":                      {r: request(1, tolerating("")), s: snapshot(member("a", 1, tainted("pelago.io/unapproved", corev1.TaintEffectNoSchedule)), member("b", 1, tainted("gpu", corev1.TaintEffectNoSchedule))), want: "b=1"},
		"a cluster that is removed":                  {r: request(1, nil, "a=1"), s: snapshot(member("a", 1, removed)), fail: &FitError{}, says: "1 cluster(s) are being removed"},
		"a kind that is not served":                  {r: request(1, nil), s: snapshot(member("a", 1, serving())), fail: &FitError{}, says: "did not have the API resource"},
		"a kind that is not served where it runs":    {r: request(1, nil, "a=1"), s: snapshot(member("a", 1, serving())), want: "a=1"},
		"a cluster that it leaves":                   {r: evicted(request(1, nil), "a"), s: abc, want: "b=1 c=1"},
		"no resource summary":                        {r: request(1, placement(byDynamic())), s: snapshot(member("a", 1, unmeasured)), fail: &UnschedulableError{}, says: "room for 0"},
		"what is no workload has no numbers":         {r: &Request{Kind: deployment, Placement: placement(byDynamic())}, s: abc, want: "a=0 b=0 c=0"},
		"several components run whole":               {r: &Request{Kind: deployment, Components: 2, Replicas: 7, Placement: placement(nil, spreadBy(cluster1, 1, 1))}, s: abc, want: "a=0"},
		"components where most sets have room":       {r: together(), s: snapshot(member("a", 1), member("b", 9), member("c", 3)), want: "b=0"},
		"components stay where they run":             {r: together("a=0"), s: snapshot(member("a", 1), member("b", 9)), want: "a=0"},
		"components without a report":                {r: together(), s: snapshot(member("a", 9, unmeasured), member("b", 4)), want: "b=0"},
		"no requirements: pods count":                {r: &Request{Kind: deployment, Replicas: 4, Placement: placement(byDynamic())}, s: snapshot(member("a", 0), member("b", 0)), want: "a=2 b=2"},
		"affinity by names":                          {r: request(1, near(named("a", "c"))), s: abc, want: "a=1 c=1"},
		"affinity by names, one excluded":            {r: request(1, near(policyv1alpha1.ClusterAffinity{ExcludeClusters: []string{"a"}})), s: abc, want: "b=1 c=1"},
		"affinity by label":                          {r: request(1, near(policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": "b"}}})), s: abc, want: "b=1"},
		"affinity by region":                         {r: request(1, near(field("region", corev1.NodeSelectorOpIn, "b", "c"))), s: regions, want: "b1=1 c1=1"},
		"affinity by region, not in":                 {r: request(1, near(field("region", corev1.NodeSelectorOpNotIn, "a"))), s: regions, want: "b1=1 c1=1"},
		"affinity by zone":                           {r: request(1, near(field("zone", corev1.NodeSelectorOpIn, "y"))), s: snapshot(member("a", 1, zones("x", "y")), member("b", 1)), want: "a=1"},
		"affinity by zone, not in":                   {r: request(1, near(field("zone", corev1.NodeSelectorOpNotIn, "y"))), s: snapshot(member("a", 1, zones("x", "y")), member("b", 1)), want: "b=1"},
		"affinity that nobody matches":               {r: request(1, near(named("x"))), s: abc, fail: &FitError{}, says: "3 cluster(s) did not match the placement cluster affinity constraint"},
		"a selector that is none":                    {r: request(1, near(policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}})), s: abc, says: "labelSelector of the cluster affinity"},
		"the second group of affinities":             {r: request(1, affinities("x", "b")), s: abc, want: "b=1"},
		"the first group again would fit":            {r: last(request(1, affinities("a", "b")), "group-b"), s: abc, want: "b=1"},
		"the first group again, fresh":               {r: fresh(last(request(1, affinities("a", "b")), "group-b")), s: abc, want: "a=1"},
		"no group fits: the first one's error":       {r: request(1, affinities("x", "y")), s: abc, fail: &FitError{}, says: "no cluster fits"},
		"it flows over into the next tier":           {r: request(8, overflow(byAggregation(), "b", "a")), s: abc, want: "a=2 b=6"},
		"the next tier is emptied first":             {r: request(5, overflow(byAggregation(), "b", "a"), "b=6", "a=2"), s: abc, want: "b=5"},
		"room in the first tier moves nothing":       {r: request(4, overflow(byDynamic(), "b", "a"), "a=4"), s: abc, want: "a=4"},
		"what has no replicas does not flow over":    {r: &Request{Kind: deployment, Placement: overflow(nil, "b", "a")}, s: abc, want: "b=0"},
		"no tier has room":                           {r: request(17, overflow(byDynamic(), "b", "a")), s: abc, fail: &UnschedulableError{}, says: "room for 16"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, err := Schedule(c.r, c.s)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error %v, want one that says %q", err, c.says)
				}
				if Invalid(err) != (c.fail == nil) || c.fail != nil && fmt.Sprintf("%T", err) != fmt.Sprintf("%T", c.fail) {
					t.Errorf("error of type %T, want %T", err, c.fail)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, show(d)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestReasons(t *testing.T) {
	s := snapshot(member("a", 5), member("b", 4), member("c", 3, tainted("gpu", corev1.TaintEffectNoSchedule)), member("d", 0))
	d, err := Schedule(request(2, placement(byDynamic(), spreadBy(cluster1, 1, 2))), s)
	if err != nil {
		t.Fatal(err)
	}
	want := []Reason{
		{"cluster(s) had untolerated taint {gpu:NoSchedule}", 1, []string{"c"}},
		{"cluster(s) were not among the best that the spread constraints allow", 1, []string{"d"}},
	}
	if diff := cmp.Diff(want, d.Reasons.Grouped(10)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	_, err = Schedule(request(1, near(named("c", "x"))), s)
	var fit *FitError
	if !errors.As(err, &fit) {
		t.Fatal(err)
	}
	const says = "no cluster fits: 0/4: 3 cluster(s) did not match the placement cluster affinity constraint, 1 cluster(s) had untolerated taint {gpu:NoSchedule}"
	if fit.Error() != says {
		t.Errorf("it says %q, want %q", fit, says)
	}
}

// Only an affinity that selects no cluster removes what runs: not one whose clusters are unhealthy,
// or have not joined.
func TestUnmatched(t *testing.T) {
	labelled := func(value string) policyv1alpha1.ClusterAffinity {
		return policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": value}}}
	}
	two := func(a, b policyv1alpha1.ClusterAffinity) *policyv1alpha1.Placement {
		return &policyv1alpha1.Placement{ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{
			{AffinityName: "1", ClusterAffinity: a}, {AffinityName: "2", ClusterAffinity: b}}}
	}
	s := snapshot(member("a", 5), member("b", 4, with("tier", "x"), tainted("gpu", corev1.TaintEffectNoSchedule)))
	for name, c := range map[string]struct {
		p    *policyv1alpha1.Placement
		s    *Snapshot
		want bool
	}{
		"no cluster has the label":            {near(labelled("y")), s, true},
		"the cluster with the label is taken": {near(labelled("x")), s, false},
		"no group selects a cluster":          {two(labelled("y"), labelled("z")), s, true},
		"a former group selects one":          {two(labelled("x"), labelled("z")), s, false},
		"it names one that has not joined":    {near(named("c")), s, false},
		"no cluster has joined":               {near(labelled("y")), snapshot(), false},
	} {
		_, err := Schedule(last(request(1, c.p), "2"), c.s)
		var fit *FitError
		if !errors.As(err, &fit) || fit.Unmatched != c.want {
			t.Errorf("%s: %v, unmatched %v", name, err, fit != nil && fit.Unmatched)
		}
	}
}

func fresh(r *Request) *Request                       { r.Fresh = true; return r }
func last(r *Request, term string) *Request           { r.Term = term; return r }
func evicted(r *Request, clusters ...string) *Request { r.Evicted = clusters; return r }
func removed(c *clusterv1alpha1.Cluster)              { now := metav1.Now(); c.DeletionTimestamp = &now }
func unmeasured(c *clusterv1alpha1.Cluster)           { c.Status.ResourceSummary = nil }
func near(a policyv1alpha1.ClusterAffinity) *policyv1alpha1.Placement {
	return &policyv1alpha1.Placement{ClusterAffinity: &a}
}

func serving(kinds ...clusterv1alpha1.APIEnablement) func(c *clusterv1alpha1.Cluster) {
	return func(c *clusterv1alpha1.Cluster) { c.Status.APIEnablements = kinds }
}

func provider(name string) func(c *clusterv1alpha1.Cluster) {
	return func(c *clusterv1alpha1.Cluster) { c.Spec.Provider = name }
}

func with(label, value string) func(c *clusterv1alpha1.Cluster) {
	return func(c *clusterv1alpha1.Cluster) { metav1.SetMetaDataLabel(&c.ObjectMeta, label, value) }
}

func spreadByLabel(key string, least, most int) policyv1alpha1.SpreadConstraint {
	return policyv1alpha1.SpreadConstraint{SpreadByLabel: key, MinGroups: least, MaxGroups: most}
}

func zones(names ...string) func(c *clusterv1alpha1.Cluster) {
	return func(c *clusterv1alpha1.Cluster) { c.Spec.Zones = names }
}

func field(key string, op corev1.NodeSelectorOperator, values ...string) policyv1alpha1.ClusterAffinity {
	return policyv1alpha1.ClusterAffinity{FieldSelector: &policyv1alpha1.FieldSelector{
		MatchExpressions: []policyv1alpha1.FieldSelectorRequirement{{Key: key, Operator: op, Values: values}},
	}}
}

func tolerating(key string) *policyv1alpha1.Placement {
	return &policyv1alpha1.Placement{ClusterTolerations: []policyv1alpha1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}}}
}

// affinities are affinity groups of one cluster each.
func affinities(names ...string) *policyv1alpha1.Placement {
	p := &policyv1alpha1.Placement{}
	for _, n := range names {
		p.ClusterAffinities = append(p.ClusterAffinities, policyv1alpha1.ClusterAffinityTerm{AffinityName: "group-" + n, ClusterAffinity: named(n)})
	}
	return p
}

// overflow is one group with further tiers, of one cluster each.
func overflow(s *policyv1alpha1.ReplicaSchedulingStrategy, names ...string) *policyv1alpha1.Placement {
	p := affinities(names[0])
	p.ReplicaScheduling = s
	for _, n := range names[1:] {
		p.ClusterAffinities[0].OverflowAffinities = append(p.ClusterAffinities[0].OverflowAffinities,
			policyv1alpha1.OverflowClusterAffinity{AffinityName: "over-" + n, ClusterAffinity: named(n)})
	}
	return p
}
