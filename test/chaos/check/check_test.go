package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

const ns = "n"

func deployment(name, group string, replicas int32) appsv1.Deployment {
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(name),
		Labels: map[string]string{"group": group}}}
	d.Spec.Replicas = ptr.To(replicas)
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: "app:v1"}}
	d.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name + "-conf"}}}}}
	return d
}

func selectors(group string) []policyv1alpha1.ResourceSelector {
	return []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment",
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": group}}}}
}

func names(clusters ...string) policyv1alpha1.ClusterAffinity {
	return policyv1alpha1.ClusterAffinity{ClusterNames: clusters}
}

// policy places a group in clusters; with weights, divided.
func policy(group string, clusters []string, weights ...int64) policyv1alpha1.PropagationPolicy {
	p := policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: group}}
	p.Spec.ResourceSelectors, p.Spec.PropagateDeps = selectors(group), true
	p.Spec.Placement.ClusterAffinity = ptr.To(names(clusters...))
	if weights == nil {
		return p
	}
	preference := &policyv1alpha1.ClusterPreferences{}
	for i, w := range weights {
		preference.StaticWeightList = append(preference.StaticWeightList,
			policyv1alpha1.StaticClusterWeight{TargetCluster: names(clusters[i]), Weight: w})
	}
	p.Spec.Placement.ReplicaScheduling = &policyv1alpha1.ReplicaSchedulingStrategy{
		ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, WeightPreference: preference}
	return p
}

func retag(group, cluster, tag string) policyv1alpha1.OverridePolicy {
	o := policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: group + cluster}}
	o.Spec.ResourceSelectors = selectors(group)
	o.Spec.OverrideRules = []policyv1alpha1.RuleWithCluster{{TargetCluster: ptr.To(names(cluster)),
		Overriders: policyv1alpha1.Overriders{
			ImageOverrider: []policyv1alpha1.ImageOverrider{{Component: policyv1alpha1.Tag, Operator: policyv1alpha1.OverriderOpReplace,
				Value: tag}},
			LabelsOverrider: []policyv1alpha1.LabelAnnotationOverrider{{Operator: policyv1alpha1.OverriderOpAdd,
				Value: map[string]string{"tag": tag}}},
		}}}
	return o
}

func configMap(name, value string) corev1.ConfigMap {
	return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{"k": value}}
}

// lines shows what is wanted, one object a line.
func lines(wanted map[Place]Content) (lines []string) {
	for place, c := range wanted {
		if place.Kind == "ConfigMap" {
			lines = append(lines, fmt.Sprintf("%s %s %s", place.Member, place.Name, c.Data["k"]))
			continue
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %d %s %s", place.Member, place.Name, c.Replicas, c.Image,
			c.Labels["tag"])))
	}
	slices.Sort(lines)
	return lines
}

func TestWanted(t *testing.T) {
	deleting := deployment("d", "g", 1)
	deleting.DeletionTimestamp = ptr.To(metav1.Now())
	for _, tt := range []struct {
		name string
		hub  Hub
		want []string
	}{
		{"no policy", Hub{Deployments: []appsv1.Deployment{deployment("a", "g", 2)}}, nil},
		{"duplicated with a dependent", Hub{
			Deployments: []appsv1.Deployment{deployment("a", "g", 2), deployment("b", "other", 2), deleting},
			ConfigMaps:  []corev1.ConfigMap{configMap("a-conf", "x"), configMap("b-conf", "y")},
			Policies:    []policyv1alpha1.PropagationPolicy{policy("g", []string{"m1", "m2", "unknown"})},
		}, []string{"m1 a 2 app:v1", "m1 a-conf x", "m2 a 2 app:v1", "m2 a-conf x"}},
		{"divided by weights, one cluster gets none", Hub{
			Deployments: []appsv1.Deployment{deployment("a", "g", 1), deployment("b", "g", 9)},
			Policies:    []policyv1alpha1.PropagationPolicy{policy("g", []string{"m1", "m2"}, 1, 2)},
		}, []string{"m1 b 3 app:v1", "m2 a 1 app:v1", "m2 b 6 app:v1"}},
		{"overridden in one cluster", Hub{
			Deployments: []appsv1.Deployment{deployment("a", "g", 1)},
			Policies:    []policyv1alpha1.PropagationPolicy{policy("g", []string{"m1", "m2"})},
			Overrides:   []policyv1alpha1.OverridePolicy{retag("g", "m2", "v2"), retag("other", "m1", "v3")},
		}, []string{"m1 a 1 app:v1", "m2 a 1 app:v2 v2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.hub.Members = []string{"m1", "m2", "m3"}
			wanted, err := Wanted(tt.hub)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, lines(wanted)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The golden values of the reference, and both directions of a tie.
func TestDivide(t *testing.T) {
	for _, tt := range []struct {
		replicas int32
		uid      string
		weights  []int64
		want     []int32
	}{
		{9, "", []int64{1, 2}, []int32{3, 6}}, {9, "", []int64{1, 3}, []int32{2, 7}}, {12, "", []int64{3, 2, 1}, []int32{6, 4, 2}},
		{13, "", []int64{3, 2, 1}, []int32{7, 4, 2}}, {14, "", []int64{3, 2, 1}, []int32{7, 5, 2}}, {7, "", []int64{2, 1}, []int32{5, 2}},
		{1, "", []int64{3, 2, 1}, []int32{1, 0, 0}}, {10, "", []int64{6, 12, 18}, []int32{2, 3, 5}}, {4, "", []int64{1200, 900, 400},
			[]int32{2, 1, 1}},
		{10, "", []int64{5, 3, 1, 1}, []int32{5, 3, 1, 1}},
		// the hashes of a and b: even, odd
		{3, "a", []int64{1, 1}, []int32{2, 1}}, {3, "b", []int64{1, 1}, []int32{1, 2}},
		{5, "a", []int64{1, 1, 1}, []int32{2, 2, 1}}, {5, "b", []int64{1, 1, 1}, []int32{1, 2, 2}},
	} {
		clusters := []string{"m1", "m2", "m3", "m4"}[:len(tt.weights)]
		d := deployment("x", "g", tt.replicas)
		d.UID = types.UID(tt.uid)
		shares, err := divide(clusters, policy("g", clusters, tt.weights...).Spec.Placement, d)
		if err != nil {
			t.Fatal(err)
		}
		var got []int32
		for _, c := range clusters {
			got = append(got, shares[c])
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%d by %v, UID %q: %s", tt.replicas, tt.weights, tt.uid, diff)
		}
	}
}

func TestWhatIsNotKnownIsRefused(t *testing.T) {
	members := []string{"m1"}
	d := []appsv1.Deployment{deployment("a", "g", 1)}
	change := func(f func(p *policyv1alpha1.PropagationPolicy)) Hub {
		p := policy("g", members, 1)
		f(&p)
		return Hub{Members: members, Deployments: d, Policies: []policyv1alpha1.PropagationPolicy{p}}
	}
	twice := policy("g", members)
	twice.Name = "h"
	plaintext := retag("g", "m1", "v2")
	plaintext.Spec.OverrideRules[0].Overriders.Plaintext = []policyv1alpha1.PlaintextOverrider{{Path: "/x"}}
	for name, h := range map[string]Hub{
		"dynamic weight": change(func(p *policyv1alpha1.PropagationPolicy) {
			p.Spec.Placement.ReplicaScheduling.WeightPreference.DynamicWeight = "AvailableReplicas"
		}),
		"spread": change(func(p *policyv1alpha1.PropagationPolicy) {
			p.Spec.Placement.SpreadConstraints = []policyv1alpha1.SpreadConstraint{{}}
		}),
		"no affinity":  change(func(p *policyv1alpha1.PropagationPolicy) { p.Spec.Placement.ClusterAffinity = nil }),
		"by name":      change(func(p *policyv1alpha1.PropagationPolicy) { p.Spec.ResourceSelectors[0].Name = "a" }),
		"two policies": {Members: members, Deployments: d, Policies: []policyv1alpha1.PropagationPolicy{policy("g", members), twice}},
		"plaintext": {Members: members, Deployments: d, Policies: []policyv1alpha1.PropagationPolicy{policy("g", members)},
			Overrides: []policyv1alpha1.OverridePolicy{plaintext}},
	} {
		if _, err := Wanted(h); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// good is a state without violations.
func good(t *testing.T) (map[Place]Content, Actual) {
	t.Helper()
	wanted, err := Wanted(Hub{
		Members:     []string{"m1", "m2"},
		Deployments: []appsv1.Deployment{deployment("a", "g", 2)},
		ConfigMaps:  []corev1.ConfigMap{configMap("a-conf", "x")},
		Policies:    []policyv1alpha1.PropagationPolicy{policy("g", []string{"m1", "m2"})},
	})
	if err != nil {
		t.Fatal(err)
	}
	a := Actual{Members: map[Place]Content{}, Bindings: map[Object][]string{}, Works: map[Place][]string{}}
	for place, content := range wanted {
		content.Labels = maps.Clone(content.Labels)
		if content.Labels == nil {
			content.Labels = map[string]string{}
		}
		content.Labels["karmada.io/managed"] = "true"
		a.Members[place] = content
		a.Bindings[place.Object] = []string{"n/b"}
		a.Works[place] = []string{"w"}
	}
	return wanted, a
}

var (
	inM1   = Place{"m1", Object{"Deployment", ns, "a"}}
	confM2 = Place{"m2", Object{"ConfigMap", ns, "a-conf"}}
	extra  = Place{"m1", Object{"Deployment", ns, "z"}}
)

// Each kind of violation is found, and nothing else is.
func TestCompareFinds(t *testing.T) {
	for _, tt := range []struct {
		name    string
		spoil   func(a Actual)
		orphans bool
		want    []string
	}{
		{"nothing", func(Actual) {}, false, nil},
		{"a lost object", func(a Actual) { delete(a.Members, inM1) }, false, []string{"lost: Deployment n/a in m1"}},
		{"a lost object beside orphans", func(a Actual) { delete(a.Members, confM2) }, true, []string{"lost: ConfigMap n/a-conf in m2"}},
		{"an object too many", func(a Actual) { a.Members[extra] = Content{} }, false, []string{"left: Deployment n/z in m1"}},
		{"an orphan", func(a Actual) { a.Members[extra] = Content{}; a.Works[extra] = []string{"w"} }, true, nil},
		{"a Work too many", func(a Actual) { a.Works[extra] = []string{"w"} }, false,
			[]string{"left: Works [w] of Deployment n/z in m1"}},
		{"replicas", func(a Actual) { c := a.Members[inM1]; c.Replicas = 3; a.Members[inM1] = c }, false,
			[]string{"wrong: Deployment n/a in m1"}},
		{"an image", func(a Actual) { c := a.Members[inM1]; c.Image = "app:v2"; a.Members[inM1] = c }, false,
			[]string{"wrong: Deployment n/a in m1"}},
		{"a label", func(a Actual) { delete(a.Members[inM1].Labels, "group") }, false, []string{"wrong: Deployment n/a in m1"}},
		{"data", func(a Actual) { c := a.Members[confM2]; c.Data = map[string]string{"k": "y"}; a.Members[confM2] = c }, false,
			[]string{"wrong: ConfigMap n/a-conf in m2"}},
		{"two bindings", func(a Actual) { a.Bindings[inM1.Object] = []string{"x", "y"} }, false,
			[]string{"duplicated: bindings [x y] of Deployment n/a"}},
		{"two Works", func(a Actual) { a.Works[inM1] = []string{"x", "y"} }, true,
			[]string{"duplicated: Works [x y] of Deployment n/a in m1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wanted, a := good(t)
			tt.spoil(a)
			var got []string
			for _, v := range Compare(wanted, a, tt.orphans) {
				first, _, _ := strings.Cut(v.String(), ", -want")
				got = append(got, first)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What counts as wrongly deleted or made again. Times are seconds; those who act may lag by 10.
func TestHistory(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1000+int64(seconds), 0) }
	it, nothing := map[Place]Content{inM1: {}}, map[Place]Content{}
	for _, tt := range []struct {
		name string
		do   func(h *History)
		want []string
	}{
		{"it stays", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Seen(inM1, "u1", at(100))
		}, nil},
		{"deleted although wanted", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Gone(inM1, "u1", at(100))
		}, []string{"deleted: Deployment n/a in m1 with UID u1, wanted for 1m40s"}},
		{"and made anew", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Gone(inM1, "u1", at(100))
			h.Seen(inM1, "u2", at(101))
		}, []string{"deleted: Deployment n/a in m1 with UID u1, wanted for 1m40s", "re-created: Deployment n/a in m1, now with UID u2"}},
		{"made anew between two looks", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Seen(inM1, "u2", at(100))
		}, []string{"deleted: Deployment n/a in m1 with UID u1, wanted for 1m40s", "re-created: Deployment n/a in m1, now with UID u2"}},
		{"deleted as asked for, and made anew as asked for", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Allow(nothing)
			h.Gone(inM1, "u1", at(100))
			h.Require(it, at(120))
			h.Seen(inM1, "u2", at(121))
		}, nil},
		{"deleted late, after it was asked for again", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Allow(nothing)
			h.Require(it, at(100))
			h.Gone(inM1, "u1", at(110))
			h.Seen(inM1, "u2", at(111))
		}, nil},
		{"deleted too late", func(h *History) {
			h.Require(it, at(0))
			h.Seen(inM1, "u1", at(1))
			h.Allow(nothing)
			h.Require(it, at(100))
			h.Gone(inM1, "u1", at(111))
		}, []string{"deleted: Deployment n/a in m1 with UID u1, wanted for 11s"}},
		{"an orphan deleted after a restore", func(h *History) {
			h.Seen(inM1, "u1", at(1))
			h.RequireAll()
			h.Gone(inM1, "u1", at(2))
		}, []string{"deleted: Deployment n/a in m1 with UID u1, wanted for ever"}},
		{"what goes was not there", func(h *History) {
			h.Require(it, at(0))
			h.Gone(inM1, "u1", at(100))
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := NewHistory(10 * time.Second)
			tt.do(h)
			var got []string
			for _, v := range h.Violations() {
				got = append(got, v.String())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSettled(t *testing.T) {
	h, start := NewHistory(10*time.Second), time.Unix(1000, 0)
	it := map[Place]Content{inM1: {}, confM2: {}}
	h.Require(map[Place]Content{inM1: {}}, start)
	h.Require(it, start.Add(5*time.Second))
	if diff := cmp.Diff(map[Place]Content{inM1: {}}, h.Settled(it, start.Add(12*time.Second))); diff != "" {
		t.Error(diff)
	}
	if h.Seen(inM1, "u", start); h.Alive() != 1 {
		t.Errorf("%d alive", h.Alive())
	}
}
