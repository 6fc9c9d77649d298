package scheduler

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// nodePool is one of nodes with these taints, "key=value:effect", and labels, "key=value".
func nodePool(nodes int32, free corev1.ResourceList, marks ...string) clusterv1alpha1.NodePool {
	p := clusterv1alpha1.NodePool{Nodes: nodes, Free: free, Labels: map[string]string{}}
	for _, m := range marks {
		key, value, _ := strings.Cut(m, "=")
		if value, effect, ok := strings.Cut(value, ":"); ok {
			p.Taints = append(p.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
			continue
		}
		p.Labels[key] = value
	}
	return p
}

// pooled is a cluster that has the sum of its pools.
func pooled(name string, pools ...clusterv1alpha1.NodePool) *clusterv1alpha1.Cluster {
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "apps/v1", Resources: []clusterv1alpha1.APIResource{{Kind: "Deployment"}}}}
	all := corev1.ResourceList{}
	for _, p := range pools {
		for of, q := range p.Free {
			total := all[of]
			total.Add(q)
			all[of] = total
		}
	}
	c.Status.ResourceSummary = &clusterv1alpha1.ResourceSummary{Allocatable: all, NodePools: pools, NodeLabels: map[string]string{"os": "linux"},
		UnpooledLabels: []string{corev1.LabelHostname}}
	return c
}

// room is what a decision has for more replicas in a cluster, and why it has none.
func room(c *clusterv1alpha1.Cluster, r Request, assumed Load) (int64, string) {
	r.Placement = &policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceAggregated}}
	r.Replicas = 1
	j := newTask(&r, NewSnapshot([]*clusterv1alpha1.Cluster{c}, map[string]Load{c.Name: assumed}))
	defer j.done()
	n, bound := j.free(0)
	return n, causeTexts[bound]
}

func TestNodeFit(t *testing.T) {
	four := resources("cpu", "4", "memory", "8Gi", "pods", "10")
	expression := func(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	affinity := func(terms ...corev1.NodeSelectorTerm) *workv1alpha2.NodeClaim {
		return &workv1alpha2.NodeClaim{HardNodeAffinity: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	selects := func(key, value string) *workv1alpha2.NodeClaim {
		return &workv1alpha2.NodeClaim{NodeSelector: map[string]string{key: value}}
	}
	tolerates := func(all ...corev1.Toleration) *workv1alpha2.NodeClaim {
		return &workv1alpha2.NodeClaim{Tolerations: all}
	}
	mixed := pooled("m", nodePool(1, four, "zone=a"), nodePool(1, four, "zone=b"), nodePool(1, four, "gpu=yes", "dedicated=gpu:NoSchedule"),
		nodePool(1, four, corev1.TaintNodeUnschedulable+"=:NoSchedule"))
	scattered := pooled("m", nodePool(1, resources("cpu", "1500m", "pods", "10")), nodePool(1, resources("cpu", "1500m", "pods", "10"), "zone=b"))
	full := pooled("m", nodePool(1, resources("cpu", "8", "pods", "1")), nodePool(1, resources("cpu", "8", "pods", "10"), "a=b:NoExecute"))
	several := pooled("m", nodePool(4, resources("cpu", "8", "memory", "64Gi", "pods", "40"), "zone=a"))
	several.Status.ResourceSummary.NodePools[0].Modelings = []clusterv1alpha1.AllocatableModeling{{Grade: 0, Count: 2}, {Grade: 2, Count: 2}}
	unreported := pooled("m", mixed.Status.ResourceSummary.NodePools...)
	unreported.Status.ResourceSummary.NodePools = nil
	for name, c := range map[string]struct {
		cluster *clusterv1alpha1.Cluster
		claim   *workv1alpha2.NodeClaim
		cpu     string
		assumed Load
		want    int64
	}{
		"nodes without taints":                      {cluster: mixed, cpu: "1", want: 8},
		"a cluster that reports no pools":           {cluster: unreported, cpu: "1", want: 16},
		"no request: pods":                          {cluster: mixed, want: 20},
		"node by node":                              {cluster: scattered, cpu: "1", want: 2},
		"larger than each node":                     {cluster: scattered, cpu: "2"},
		"pods of a node":                            {cluster: full, cpu: "1", want: 1},
		"nodes of a pool, by grades":                {cluster: several, cpu: "1", want: 4},
		"nodeSelector":                              {cluster: mixed, claim: selects("zone", "b"), cpu: "1", want: 4},
		"nodeSelector of a label of all":            {cluster: mixed, claim: selects("os", "linux"), cpu: "1", want: 8},
		"nodeSelector of no node":                   {cluster: mixed, claim: selects("zone", "c"), cpu: "1"},
		"nodeSelector of an unpooled label":         {cluster: mixed, claim: selects(corev1.LabelHostname, "n1"), cpu: "1", want: 8},
		"nodeSelector of a tainted node":            {cluster: mixed, claim: selects("gpu", "yes"), cpu: "1"},
		"node affinity In":                          {cluster: mixed, claim: affinity(expression("zone", corev1.NodeSelectorOpIn, "a", "c")), cpu: "1", want: 4},
		"node affinity NotIn":                       {cluster: mixed, claim: affinity(expression("zone", corev1.NodeSelectorOpNotIn, "a", "b")), cpu: "1"},
		"node affinity Exists":                      {cluster: mixed, claim: affinity(expression("zone", corev1.NodeSelectorOpExists)), cpu: "1", want: 8},
		"node affinity, alternatives":               {cluster: mixed, claim: affinity(expression("zone", corev1.NodeSelectorOpIn, "b"), expression("zone", corev1.NodeSelectorOpIn, "a")), cpu: "1", want: 8},
		"node affinity, an unpooled label":          {cluster: mixed, claim: affinity(expression(corev1.LabelHostname, corev1.NodeSelectorOpIn, "n1")), cpu: "1", want: 8},
		"node affinity, names":                      {cluster: mixed, claim: affinity(corev1.NodeSelectorTerm{MatchFields: expression("metadata.name", corev1.NodeSelectorOpIn, "n1").MatchExpressions}), cpu: "1", want: 8},
		"node affinity, an empty term":              {cluster: mixed, claim: affinity(corev1.NodeSelectorTerm{}), cpu: "1"},
		"toleration of a key":                       {cluster: mixed, claim: tolerates(corev1.Toleration{Key: "dedicated", Operator: corev1.TolerationOpExists}), cpu: "1", want: 12},
		"toleration of another value":               {cluster: mixed, claim: tolerates(corev1.Toleration{Key: "dedicated", Value: "db"}), cpu: "1", want: 8},
		"toleration of another effect":              {cluster: mixed, claim: tolerates(corev1.Toleration{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoExecute}), cpu: "1", want: 8},
		"toleration of all, cordoned nodes, too":    {cluster: mixed, claim: tolerates(corev1.Toleration{Operator: corev1.TolerationOpExists}), cpu: "1", want: 16},
		"toleration and selector":                   {cluster: mixed, claim: &workv1alpha2.NodeClaim{NodeSelector: map[string]string{"gpu": "yes"}, Tolerations: []corev1.Toleration{{Key: "dedicated", Value: "gpu"}}}, cpu: "1", want: 4},
		"assumed pods":                              {cluster: mixed, cpu: "1", assumed: LoadOf(resources("cpu", "1"), 3), want: 5},
		"assumed pods on the nodes that it selects": {cluster: mixed, claim: selects("zone", "b"), cpu: "1", assumed: LoadOf(resources("cpu", "1"), 3), want: 1},
	} {
		r := Request{Requirements: &workv1alpha2.ReplicaRequirements{NodeClaim: c.claim}}
		if c.cpu != "" {
			r.Requirements.ResourceRequest = resources("cpu", c.cpu)
		}
		got, why := room(c.cluster, r, c.assumed)
		if got != c.want || (why == causeTexts[noNode]) != (c.want == 0) {
			t.Errorf("%s: %d replicas (%s), want %d", name, got, why, c.want)
		}
	}
}

// A second claim of the same cluster is not answered from the cache of the first.
func TestNodeFitOfSeveralClaims(t *testing.T) {
	c := pooled("m", nodePool(1, resources("cpu", "4", "pods", "10"), "zone=a"), nodePool(1, resources("cpu", "2", "pods", "10"), "zone=b"))
	s := NewSnapshot([]*clusterv1alpha1.Cluster{c}, nil)
	got := ""
	for range 2 {
		for _, zone := range []string{"a", "b", "c"} {
			d, err := demandOf(&workv1alpha2.ReplicaRequirements{NodeClaim: &workv1alpha2.NodeClaim{NodeSelector: map[string]string{"zone": zone}}})
			if err != nil {
				t.Fatal(err)
			}
			got += fmt.Sprint(s.capacities[0].onPools(d, []Amount{{"cpu", 1000}}), " ")
		}
	}
	if want := "4 2 0 4 2 0 "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestQuotaFit(t *testing.T) {
	scope := func(name corev1.ResourceQuotaScope, op corev1.ScopeSelectorOperator, values ...string) corev1.ScopedResourceSelectorRequirement {
		return corev1.ScopedResourceSelectorRequirement{ScopeName: name, Operator: op, Values: values}
	}
	class := func(op corev1.ScopeSelectorOperator, values ...string) []corev1.ScopedResourceSelectorRequirement {
		return []corev1.ScopedResourceSelectorRequirement{scope(corev1.ResourceQuotaScopePriorityClass, op, values...)}
	}
	exists := func(name corev1.ResourceQuotaScope) []corev1.ScopedResourceSelectorRequirement {
		return []corev1.ScopedResourceSelectorRequirement{scope(name, corev1.ScopeSelectorOpExists)}
	}
	type quotas = []clusterv1alpha1.QuotaSummary
	bounds := func(scopes []corev1.ScopedResourceSelectorRequirement, left ...string) clusterv1alpha1.QuotaSummary {
		return clusterv1alpha1.QuotaSummary{Namespace: "shop", Scopes: scopes, Left: resources(left...)}
	}
	burstable := workv1alpha2.ReplicaRequirements{ResourceRequest: resources("cpu", "500m", "memory", "1Gi", "example.com/gpu", "1"),
		ResourceLimits: resources("cpu", "2"), PriorityClassName: "high"}
	var effortless workv1alpha2.ReplicaRequirements
	job := workv1alpha2.ReplicaRequirements{Terminating: true}
	other := bounds(nil, "pods", "0")
	other.Namespace = "other"
	const free = 1000
	for name, c := range map[string]struct {
		quotas  quotas
		pod     workv1alpha2.ReplicaRequirements
		assumed Load
		want    int64
	}{
		"none":                                 {pod: burstable, want: free},
		"of another namespace":                 {quotas: quotas{other}, pod: burstable, want: free},
		"requests.cpu":                         {quotas: quotas{bounds(nil, "requests.cpu", "1600m")}, pod: burstable, want: 3},
		"cpu":                                  {quotas: quotas{bounds(nil, "cpu", "1")}, pod: burstable, want: 2},
		"requests.memory":                      {quotas: quotas{bounds(nil, "requests.memory", "7Gi")}, pod: burstable, want: 7},
		"an extended resource":                 {quotas: quotas{bounds(nil, "requests.example.com/gpu", "4")}, pod: burstable, want: 4},
		"limits.cpu":                           {quotas: quotas{bounds(nil, "limits.cpu", "11")}, pod: burstable, want: 5},
		"limits of a pod without limits":       {quotas: quotas{bounds(nil, "limits.memory", "0")}, pod: burstable, want: free},
		"pods":                                 {quotas: quotas{bounds(nil, "pods", "6")}, pod: effortless, want: 6},
		"count/pods":                           {quotas: quotas{bounds(nil, "count/pods", "6")}, pod: effortless, want: 6},
		"exhausted":                            {quotas: quotas{bounds(nil, "pods", "0")}, pod: burstable},
		"the smallest of several":              {quotas: quotas{bounds(nil, "pods", "6"), bounds(nil, "cpu", "1", "pods", "9")}, pod: burstable, want: 2},
		"assumed in the namespace":             {quotas: quotas{bounds(nil, "requests.cpu", "2", "pods", "9")}, pod: burstable, assumed: LoadOf(resources("cpu", "1"), 1), want: 2},
		"more assumed than is left":            {quotas: quotas{bounds(nil, "pods", "6")}, pod: burstable, assumed: Load{Pods: 7}},
		"BestEffort":                           {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeBestEffort), "pods", "1")}, pod: effortless, want: 1},
		"BestEffort, a pod with requests":      {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeBestEffort), "pods", "1")}, pod: burstable, want: free},
		"NotBestEffort":                        {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeNotBestEffort), "pods", "1")}, pod: burstable, want: 1},
		"NotBestEffort, a pod without":         {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeNotBestEffort), "pods", "1")}, pod: effortless, want: free},
		"Terminating":                          {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeTerminating), "pods", "1")}, pod: job, want: 1},
		"Terminating, a pod without deadline":  {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeTerminating), "pods", "1")}, pod: burstable, want: free},
		"NotTerminating":                       {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeNotTerminating), "pods", "1")}, pod: burstable, want: 1},
		"NotTerminating, a pod with deadline":  {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeNotTerminating), "pods", "1")}, pod: job, want: free},
		"PriorityClass In":                     {quotas: quotas{bounds(class(corev1.ScopeSelectorOpIn, "high"), "pods", "1")}, pod: burstable, want: 1},
		"PriorityClass In, another":            {quotas: quotas{bounds(class(corev1.ScopeSelectorOpIn, "low"), "pods", "1")}, pod: burstable, want: free},
		"PriorityClass NotIn":                  {quotas: quotas{bounds(class(corev1.ScopeSelectorOpNotIn, "high"), "pods", "1")}, pod: burstable, want: free},
		"PriorityClass NotIn, another":         {quotas: quotas{bounds(class(corev1.ScopeSelectorOpNotIn, "low"), "pods", "1")}, pod: burstable, want: 1},
		"PriorityClass Exists":                 {quotas: quotas{bounds(class(corev1.ScopeSelectorOpExists), "pods", "1")}, pod: burstable, want: 1},
		"PriorityClass Exists, none":           {quotas: quotas{bounds(class(corev1.ScopeSelectorOpExists), "pods", "1")}, pod: effortless, want: free},
		"PriorityClass DoesNotExist":           {quotas: quotas{bounds(class(corev1.ScopeSelectorOpDoesNotExist), "pods", "1")}, pod: effortless, want: 1},
		"PriorityClass DoesNotExist, one":      {quotas: quotas{bounds(class(corev1.ScopeSelectorOpDoesNotExist), "pods", "1")}, pod: burstable, want: free},
		"all scopes must match":                {quotas: quotas{bounds(append(class(corev1.ScopeSelectorOpIn, "high"), exists(corev1.ResourceQuotaScopeTerminating)...), "pods", "1")}, pod: burstable, want: free},
		"CrossNamespacePodAffinity is unknown": {quotas: quotas{bounds(exists(corev1.ResourceQuotaScopeCrossNamespacePodAffinity), "pods", "0")}, pod: burstable, want: free},
	} {
		cluster := pooled("m", nodePool(1, resources("cpu", "10k", "memory", "10Ti", "example.com/gpu", "10k", "pods", fmt.Sprint(free))))
		cluster.Status.ResourceSummary.Quotas = c.quotas
		r := Request{Namespace: "shop", Requirements: &c.pod, Assumed: map[string]Load{"m": c.assumed}}
		got, why := room(cluster, r, Load{})
		if got != c.want || (why == causeTexts[noQuota]) != (c.want == 0) {
			t.Errorf("%s: %d replicas (%s), want %d", name, got, why, c.want)
		}
	}
}

// Divisions by capacity use both, and name them if nothing fits; overflow follows them up and down.
func TestFitInDecisions(t *testing.T) {
	four := resources("cpu", "4", "pods", "10")
	clusters := []*clusterv1alpha1.Cluster{pooled("free", nodePool(1, four)), pooled("quota", nodePool(1, four)), pooled("tainted", nodePool(1, four, "a=b:NoSchedule"))}
	clusters[1].Status.ResourceSummary.Quotas = []clusterv1alpha1.QuotaSummary{{Namespace: "shop", Left: resources("requests.cpu", "2")}}
	dynamic := &policyv1alpha1.ClusterPreferences{DynamicWeight: policyv1alpha1.DynamicWeightByAvailableReplicas}
	divided := &policyv1alpha1.ReplicaSchedulingStrategy{ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided,
		ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceWeighted, WeightPreference: dynamic}
	names := func(all ...string) policyv1alpha1.ClusterAffinity {
		return policyv1alpha1.ClusterAffinity{ClusterNames: all}
	}
	overflow := &policyv1alpha1.Placement{ReplicaScheduling: divided, ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{{AffinityName: "own",
		ClusterAffinity: names("quota"), OverflowAffinities: []policyv1alpha1.OverflowClusterAffinity{{AffinityName: "rent", ClusterAffinity: names("free", "tainted")}}}}}
	for name, c := range map[string]struct {
		placement *policyv1alpha1.Placement
		replicas  int32
		current   []workv1alpha2.TargetCluster
		want      string
	}{
		"dynamic weights":    {&policyv1alpha1.Placement{ReplicaScheduling: divided}, 6, nil, "[{free 4} {quota 2}] <nil>; 1 cluster(s) had no room on the nodes that the pods select and tolerate"},
		"static weights":     {&policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided}}, 9, nil, "[{free 3} {quota 3} {tainted 3}] <nil>"},
		"overflow, up":       {overflow, 5, []workv1alpha2.TargetCluster{{Name: "quota", Replicas: 1}}, "[{free 2} {quota 3}] <nil>; 1 cluster(s) had no room on the nodes that the pods select and tolerate"},
		"overflow, and down": {overflow, 2, []workv1alpha2.TargetCluster{{Name: "free", Replicas: 2}, {Name: "quota", Replicas: 3}}, "[{quota 2}] <nil>; 1 cluster(s) got no replica of the division; 1 cluster(s) had no room on the nodes that the pods select and tolerate"},
		"more than fit":      {&policyv1alpha1.Placement{ReplicaScheduling: divided}, 7, nil, "[] clusters have room for 6 more replicas and 7 are needed: add nodes or clusters, or ask for fewer replicas; 1 cluster(s) had no room on the nodes that the pods select and tolerate"},
	} {
		r := &Request{Namespace: "shop", Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Replicas: c.replicas,
			Placement: c.placement, Current: c.current, Requirements: &workv1alpha2.ReplicaRequirements{ResourceRequest: resources("cpu", "1")}}
		if len(c.current) > 0 {
			r.Term = "own"
		}
		d, err := Schedule(r, NewSnapshot(clusters, nil))
		got := strings.ReplaceAll(fmt.Sprint(d.Clusters, " ", err), " []}", "}")
		for _, why := range d.Reasons.Grouped(0) {
			if !strings.Contains(why.Why, "affinity constraint") {
				got += fmt.Sprintf("; %d %s", why.Count, why.Why)
			}
		}
		if got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, c.want)
		}
	}
	invalid := &Request{Namespace: "shop", Kind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Replicas: 1,
		Placement: &policyv1alpha1.Placement{ReplicaScheduling: divided}, Requirements: &workv1alpha2.ReplicaRequirements{NodeClaim: &workv1alpha2.NodeClaim{
			HardNodeAffinity: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Around"}}}}}}}}
	if _, err := Schedule(invalid, NewSnapshot(clusters, nil)); !Invalid(err) || !strings.Contains(err.Error(), "read the node affinity of the pods") {
		t.Errorf("an invalid node affinity: %v", err)
	}
}
