package scheduler

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

var (
	update = flag.Bool("update", false, "write the golden files anew")
	worlds = flag.Int("worlds", 1000, "how many drawn worlds TestGolden decides; other numbers than the default print a sum only")
)

// TestGolden holds decisions in drawn worlds to what they were before the scheduler was made fast,
// when it queried every cluster again for each decision; those that spread by zone or provider,
// which it refused, are of later.
func TestGolden(t *testing.T) {
	var got strings.Builder
	sum := fnv.New64a()
	for seed := range *worlds {
		line := golden(uint64(seed))
		fmt.Fprintln(&got, line)
		fmt.Fprintln(sum, line) // a hash takes anything
	}
	file := filepath.Join("testdata", "golden.txt")
	switch {
	case *worlds != 1000:
		t.Logf("%d worlds: %016x", *worlds, sum.Sum64())
		return
	case *update:
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// golden decides in the world of a seed: what was decided or the error, and a hash of the reasons.
func golden(seed uint64) string {
	g := draw{rand.New(rand.NewPCG(seed, 1))}
	clusters, assumed := g.clusters()
	r := g.request(clusters)
	d, err := Schedule(r, NewSnapshot(clusters, assumed))
	result := d.Term + " " + show(d)
	reasons := d.Reasons.Grouped(len(clusters))
	if err != nil {
		result = fmt.Sprintf("%s %T %v", d.Term, err, err)
		var fit *FitError
		if errors.As(err, &fit) {
			reasons = slices.Concat(reasons, fit.Reasons.Grouped(len(clusters)))
		}
	}
	var lines []string
	for _, r := range reasons {
		for _, cluster := range r.Clusters {
			lines = append(lines, cluster+": "+r.Why)
		}
	}
	slices.Sort(lines)
	sum := fnv.New32a()
	fmt.Fprint(sum, lines) // a hash takes anything
	return fmt.Sprintf("%d %08x %s", seed, sum.Sum32(), result)
}

// draw draws worlds in which everything that a decision depends on happens.
type draw struct{ *rand.Rand }

func (g draw) one(in int) bool { return g.IntN(in) == 0 }

func pick[T any](g draw, of ...T) T { return of[g.IntN(len(of))] }

func (g draw) clusters() ([]*clusterv1alpha1.Cluster, map[string]Load) {
	var out []*clusterv1alpha1.Cluster
	assumed := map[string]Load{}
	n := 1 + g.IntN(12)
	if g.one(20) {
		n = 150
	}
	for i := range n {
		c := member(fmt.Sprintf("m%02d", i), int64(g.IntN(30)))
		c.Labels = map[string]string{"tier": pick(g, "gold", "silver"), "n": fmt.Sprint(i % 3)}
		c.Status.ResourceSummary.Allocatable[corev1.ResourceMemory] = *resource.NewQuantity(int64(g.IntN(64)), resource.BinarySI)
		c.Spec.Region = pick(g, "r1", "r1", "r2", "r3", "")
		c.Spec.Provider = pick(g, "p1", "p2", "")
		c.Spec.Zones = pick(g, nil, []string{"z1"}, []string{"z1", "z2"})
		g.trouble(c)
		if g.one(4) {
			assumed[c.Name] = LoadOf(resources("cpu", "1", "memory", "1"), int64(g.IntN(8)))
		}
		out = append(out, c)
	}
	g.Shuffle(len(out), func(i, k int) { out[i], out[k] = out[k], out[i] })
	return out, assumed
}

// trouble gives a cluster what few have.
func (g draw) trouble(c *clusterv1alpha1.Cluster) {
	for range g.IntN(3) {
		if g.one(3) {
			effect := pick(g, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule)
			taint := clusterv1alpha1.Taint{Key: pick(g, "gpu", "old"), Value: pick(g, "", "yes"), Effect: effect}
			c.Spec.Taints = append(c.Spec.Taints, taint)
		}
	}
	switch g.IntN(20) {
	case 0:
		removed(c)
	case 1:
		c.Status.APIEnablements = nil
	case 2:
		c.Status.APIEnablements, c.Status.Conditions = nil, nil
	case 3:
		unmeasured(c)
	case 4, 5:
		for grade := range uint(3) {
			low := resource.NewQuantity(int64(grade)*2, resource.DecimalSI)
			ranges := []clusterv1alpha1.ResourceModelRange{{Name: corev1.ResourceCPU, Min: *low}, {Name: corev1.ResourceMemory, Min: *low}}
			c.Spec.ResourceModels = append(c.Spec.ResourceModels, clusterv1alpha1.ResourceModel{Grade: grade, Ranges: ranges})
			c.Status.ResourceSummary.AllocatableModelings = append(c.Status.ResourceSummary.AllocatableModelings,
				clusterv1alpha1.AllocatableModeling{Grade: grade, Count: g.IntN(4)})
		}
	}
}

func (g draw) request(clusters []*clusterv1alpha1.Cluster) *Request {
	r := request(int32(g.IntN(50)), nil)
	r.UID = types.UID(fmt.Sprint(g.Uint32()))
	switch g.IntN(8) {
	case 0:
		r.Requirements = nil
	case 1:
		r.Requirements.ResourceRequest = resources("cpu", "2", "memory", "1")
	case 2:
		r.Requirements.ResourceRequest = resources("cpu", "500m", "example.com/gpu", "0")
	case 3:
		r.Components = g.IntN(3)
	}
	for _, c := range clusters {
		if g.one(4) {
			r.Current = append(r.Current, workv1alpha2.TargetCluster{Name: c.Name, Replicas: int32(g.IntN(8))})
		}
	}
	if g.one(10) {
		r.Current = append(r.Current, workv1alpha2.TargetCluster{Name: "gone", Replicas: 3})
	}
	if g.one(10) {
		r.Evicted = []string{pick(g, clusters...).Name, "gone"}
	}
	r.Fresh = g.one(6)
	if g.one(20) {
		return r
	}
	r.Placement = g.placement(clusters)
	if terms := r.Placement.ClusterAffinities; len(terms) > 0 && g.one(2) {
		r.Term = pick(g, terms...).AffinityName
	}
	return r
}

func (g draw) placement(clusters []*clusterv1alpha1.Cluster) *policyv1alpha1.Placement {
	p := &policyv1alpha1.Placement{ReplicaScheduling: pick(g, nil, byDynamic(), byDynamic(), byAggregation(), byAggregation(), byWeights(nil))}
	if s := p.ReplicaScheduling; s != nil && s.WeightPreference != nil && s.WeightPreference.DynamicWeight == "" {
		for range g.IntN(4) {
			s.WeightPreference.StaticWeightList = append(s.WeightPreference.StaticWeightList,
				policyv1alpha1.StaticClusterWeight{TargetCluster: g.affinity(clusters), Weight: int64(1 + g.IntN(4))})
		}
	}
	switch g.IntN(5) {
	case 0, 1:
		a := g.affinity(clusters)
		p.ClusterAffinity = &a
	case 2:
		for i := range 1 + g.IntN(3) {
			term := policyv1alpha1.ClusterAffinityTerm{AffinityName: fmt.Sprint("t", i), ClusterAffinity: g.affinity(clusters)}
			for k := range g.IntN(3) {
				term.OverflowAffinities = append(term.OverflowAffinities,
					policyv1alpha1.OverflowClusterAffinity{AffinityName: fmt.Sprint("o", k), ClusterAffinity: g.affinity(clusters)})
			}
			p.ClusterAffinities = append(p.ClusterAffinities, term)
		}
	}
	for range g.IntN(3) {
		p.ClusterTolerations = append(p.ClusterTolerations, policyv1alpha1.Toleration{
			Key: pick(g, "gpu", "old"), Operator: pick(g, corev1.TolerationOpExists, corev1.TolerationOpEqual), Value: pick(g, "", "yes"),
			Effect: pick(g, "", corev1.TaintEffectNoSchedule),
		})
		if last := &p.ClusterTolerations[len(p.ClusterTolerations)-1]; last.Operator == corev1.TolerationOpExists {
			last.Value = ""
		}
	}
	least := 1 + g.IntN(3)
	switch g.IntN(6) {
	case 0, 1:
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{spreadBy(cluster1, least, least+g.IntN(3))}
	case 2, 3:
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{
			spreadBy(region1, 1+g.IntN(2), g.IntN(4)), spreadBy(cluster1, least, least+g.IntN(4)),
		}
	case 4:
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{spreadBy(pick(g, region1, "zone", "provider"), 1, 2)}
	}
	return p
}

func (g draw) affinity(clusters []*clusterv1alpha1.Cluster) (a policyv1alpha1.ClusterAffinity) {
	if g.one(3) {
		a.ClusterNames = []string{"gone"}
		for range 1 + g.IntN(4) {
			a.ClusterNames = append(a.ClusterNames, pick(g, clusters...).Name)
		}
	}
	if g.one(3) {
		a.ExcludeClusters = []string{pick(g, clusters...).Name, "gone"}
	}
	if g.one(3) {
		a.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"tier": pick(g, "gold", "silver")}}
		if g.one(3) {
			a.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{
				Key: "n", Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: []string{"0", pick(g, "1", "2")},
			}}
		}
		if g.one(15) {
			a.LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "n", Operator: "Like"}}
		}
	}
	if g.one(4) {
		a.FieldSelector = field(pick(g, "region", "zone", "provider"), pick(g, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn),
			pick(g, "r1", "z1", "p1"), pick(g, "r2", "z2", "p2")).FieldSelector
	}
	return a
}
