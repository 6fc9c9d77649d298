package autoscale

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// recorded is an answer of Kubernetes' own calculator (ReplicaCalculator of v1.34.4, tolerance 0.1)
// to random pods.
type recorded struct {
	Ready            [][2]int64 // usage and request
	Unready, Missing []int64    // requests
	Current          int32
	Util             int32 // target; 0: Average is the target
	Average          int64
	Want             int32
	Failed           bool
}

func cpu(c recorded) autoscalingv2.MetricSpec {
	m := autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU}}
	if c.Util > 0 {
		m.Resource.Target.AverageUtilization = &c.Util
	} else {
		m.Resource.Target.AverageValue = resource.NewMilliQuantity(c.Average, resource.DecimalSI)
	}
	return m
}

// The sums over any number of clusters give the replicas that Kubernetes computes of all pods in
// one.
func TestReplicasAsInKubernetes(t *testing.T) {
	text, err := os.ReadFile("testdata/replicas.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) < 300 {
		t.Fatalf("%d cases", len(lines))
	}
	for i, line := range lines {
		var c recorded
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		m := cpu(c)
		for clusters := 1; clusters <= 3; clusters++ {
			all := make([]workv1alpha1.ScalingStatus, clusters)
			n := 0
			next := func() *workv1alpha1.MetricReport {
				s := &all[n%clusters]
				n++
				if s.Metrics == nil {
					s.Metrics = make([]workv1alpha1.MetricReport, 1)
				}
				return &s.Metrics[0]
			}
			for _, p := range c.Ready {
				r := next()
				r.Ready = plus(r.Ready, workv1alpha1.PodSum{Pods: 1, Usage: p[0], Requests: p[1]})
			}
			for _, q := range c.Unready {
				r := next()
				r.Unready = plus(r.Unready, workv1alpha1.PodSum{Pods: 1, Requests: q})
			}
			for _, q := range c.Missing {
				r := next()
				r.Missing = plus(r.Missing, workv1alpha1.PodSum{Pods: 1, Requests: q})
			}
			var reports []memberReport
			for i := range all {
				if all[i].Metrics == nil {
					all[i].Metrics = make([]workv1alpha1.MetricReport, 1)
				}
				reports = append(reports, memberReport{cluster: fmt.Sprint("m", i), status: &all[i]})
			}
			p, err := propose(&m, add(reports, 0), int64(c.Current), tolerancesOf(nil))
			if got := int32(p.replicas); (err != nil) != c.Failed || err == nil && got != c.Want {
				t.Errorf("case %d in %d clusters: %d replicas, error %v, want %d; %s", i, clusters, got, err, c.Want, line)
			}
		}
	}
}

func reports(all ...workv1alpha1.MetricReport) (out []memberReport) {
	for i, m := range all {
		pods := m.Ready.Pods + m.Unready.Pods + m.Missing.Pods
		out = append(out, memberReport{cluster: fmt.Sprint("m", i+1), replicas: int32(pods), status: &workv1alpha1.ScalingStatus{
			Pods: int32(pods), ReadyPods: int32(m.Ready.Pods), Metrics: []workv1alpha1.MetricReport{m}}})
	}
	return out
}

func ready(pods, usage, requests int64) workv1alpha1.MetricReport {
	return workv1alpha1.MetricReport{Ready: workv1alpha1.PodSum{Pods: pods, Usage: usage, Requests: requests}}
}

func worth(pods, value int64) workv1alpha1.MetricReport {
	m := ready(pods, 0, 0)
	m.Value = value * 1000
	return m
}

func TestPropose(t *testing.T) {
	half, four := cpu(recorded{Util: 50}), resource.NewQuantity(4, resource.DecimalSI)
	external := func(target autoscalingv2.MetricTarget) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{Target: target}}
	}
	object := autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{Target: autoscalingv2.MetricTarget{Value: four}}}
	podsMetric := autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{Target: autoscalingv2.MetricTarget{AverageValue: four}}}
	failed := workv1alpha1.MetricReport{Error: "no metrics-server"}
	silent := func(replicas int32) memberReport {
		return memberReport{cluster: "m9", replicas: replicas, why: "the cluster is not ready"}
	}
	starting := memberReport{cluster: "m2", replicas: 2, status: &workv1alpha1.ScalingStatus{Metrics: []workv1alpha1.MetricReport{failed}}}
	for name, c := range map[string]struct {
		metric  autoscalingv2.MetricSpec
		reports []memberReport
		current int64
		want    string
	}{
		"one cluster is busy, one idle":             {half, reports(ready(2, 200, 200), ready(2, 0, 200)), 4, "4"},
		"both are busy":                             {half, reports(ready(2, 200, 200), ready(2, 200, 200)), 4, "8"},
		"both are idle":                             {half, reports(ready(2, 40, 200), ready(2, 40, 200)), 4, "2"},
		"idle, but a cluster is silent":             {half, append(reports(ready(2, 40, 200)), silent(2)), 4, "4"},
		"busy, and a cluster is silent: as if idle": {half, append(reports(ready(2, 400, 200)), silent(1)), 3, "8"},
		"busy, and much is silent: no other way":    {half, append(reports(ready(2, 200, 200)), silent(3)), 5, "5"},
		"none of two reports":                       {half, []memberReport{silent(1), reports(failed)[0]}, 3, "no cluster reports it: m1: no metrics-server; m9: the cluster is not ready"},
		"it is propagated nowhere":                  {half, nil, 3, "no cluster reports it: the target runs in no cluster, or no policy propagates it"},
		"an agent of an older version":              {half, []memberReport{{cluster: "m1", replicas: 2, status: &workv1alpha1.ScalingStatus{}}}, 2, "no cluster reports it: m1: its agent reports no such metrics: upgrade it"},
		"nothing is requested":                      {half, reports(ready(2, 40, 0)), 2, "the pods request nothing"},
		"no pod is ready":                           {half, reports(workv1alpha1.MetricReport{Unready: workv1alpha1.PodSum{Pods: 2, Requests: 20}}), 2, "no pod has a metric"},
		"pods metric":                               {podsMetric, reports(ready(2, 16000, 0), ready(1, 8000, 0)), 3, "6"},
		"object by value":                           {object, reports(worth(2, 8), worth(2, 4)), 4, "12"},
		"object by value, within the tolerance":     {object, reports(worth(2, 2), worth(2, 2)), 4, "4"},
		"object without pods":                       {object, reports(worth(0, 8)), 4, "there are no pods"},
		"external by average value":                 {external(autoscalingv2.MetricTarget{AverageValue: four}), reports(worth(2, 16), worth(1, 8)), 3, "6"},
		"external by average value, nothing to do":  {external(autoscalingv2.MetricTarget{AverageValue: four}), reports(worth(2, 0), worth(1, 0)), 3, "0"},
		"external by average value, no pods as yet": {external(autoscalingv2.MetricTarget{AverageValue: four}), reports(worth(0, 8)), 3, "2"},
		"external is low, and a cluster is silent":  {external(autoscalingv2.MetricTarget{AverageValue: four}), append(reports(worth(2, 2)), silent(2)), 4, "3"},
		"external is less, much is silent: no way":  {external(autoscalingv2.MetricTarget{AverageValue: four}), append(reports(worth(2, 6)), silent(2)), 4, "4"},
		"external is high, and a cluster is silent": {external(autoscalingv2.MetricTarget{AverageValue: four}), append(reports(worth(2, 20)), silent(2)), 4, "5"},
		"object is low, and a cluster is silent":    {object, append(reports(worth(2, 2)), silent(2)), 4, "4"},
		"object is high, and a cluster is silent":   {object, append(reports(worth(2, 6)), silent(2)), 4, "6"},
		"external is high, the other has no pods":   {external(autoscalingv2.MetricTarget{AverageValue: four}), append(reports(worth(2, 10)), starting), 4, "4"},
		"object is high, the other has no pods":     {object, append(reports(worth(2, 6)), starting), 4, "4"},
		"object, the other has pods, but no value":  {object, append(reports(worth(2, 2)), memberReport{cluster: "m2", replicas: 2, status: &workv1alpha1.ScalingStatus{Pods: 2, ReadyPods: 2}}), 4, "4"},
		"a value beyond all numbers":                {external(autoscalingv2.MetricTarget{AverageValue: resource.NewMilliQuantity(1, resource.DecimalSI)}), reports(worth(1, 1<<50)), 3, "2147483647"},
	} {
		p, err := propose(&c.metric, add(c.reports, 0), c.current, tolerancesOf(nil))
		got := fmt.Sprint(p.replicas)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestCompute(t *testing.T) {
	h := func(current int32) *autoscalingv1alpha1.FederatedHPA {
		return &autoscalingv1alpha1.FederatedHPA{Status: autoscalingv1alpha1.FederatedHPAStatus{CurrentReplicas: current}}
	}
	metrics := []autoscalingv2.MetricSpec{cpu(recorded{Util: 50}), {Type: autoscalingv2.ExternalMetricSourceType, External: &autoscalingv2.ExternalMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: "queue"}, Target: autoscalingv2.MetricTarget{AverageValue: resource.NewQuantity(1, resource.DecimalSI)}}}}
	two := func(first, second workv1alpha1.MetricReport) []memberReport {
		return []memberReport{{cluster: "m1", replicas: 4, status: &workv1alpha1.ScalingStatus{Pods: 4, ReadyPods: 4, Metrics: []workv1alpha1.MetricReport{first, second}}}}
	}
	broken := workv1alpha1.MetricReport{Error: "no adapter"}
	for name, c := range map[string]struct {
		reports []memberReport
		copies  int64
		want    string
	}{
		"the larger one counts":         {two(ready(4, 400, 400), worth(0, 6)), 1, "8 True ValidMetricFound the replica count was computed from cpu resource"},
		"the other one is larger":       {two(ready(4, 400, 400), worth(0, 11)), 1, "11 True ValidMetricFound the replica count was computed from external metric queue"},
		"one fails, more are needed":    {two(ready(4, 400, 400), broken), 1, "8 True ValidMetricFound the replica count was computed from cpu resource; without external metric queue: no cluster reports it: m1: no adapter"},
		"one fails, fewer are needed":   {two(ready(4, 40, 400), broken), 1, "0 False FailedGetExternalMetric the replica count was not computed: external metric queue: no cluster reports it: m1: no adapter"},
		"all fail":                      {two(broken, broken), 1, "0 False FailedGetResourceMetric the replica count was not computed: cpu resource: no cluster reports it: m1: no adapter; external"},
		"4 replicas in each of 2 cl'rs": {append(two(ready(4, 400, 400), worth(0, 1)), two(ready(4, 200, 400), worth(0, 1))...), 2, "6 True"},
	} {
		o := h(4)
		n, _, _ := compute(o, metrics, c.reports, c.copies)
		a := o.Status.Conditions[0]
		if got := fmt.Sprintln(n, a.Status, a.Reason, a.Message); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// Each step is a recommendation at a time in seconds; want the replicas and the reasons of both
// conditions.
func TestLimit(t *testing.T) {
	type step struct {
		at, current, desired int32
		want                 string
	}
	policy := func(kind autoscalingv2.HPAScalingPolicyType, value, period int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: kind, Value: value, PeriodSeconds: period}
	}
	rules := func(window int32, of autoscalingv2.ScalingPolicySelect, p ...autoscalingv2.HPAScalingPolicy) *autoscalingv2.HPAScalingRules {
		return &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &window, SelectPolicy: &of, Policies: p}
	}
	const pods, percent, most, least = autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy, autoscalingv2.MaxChangePolicySelect, autoscalingv2.MinChangePolicySelect
	type behavior = autoscalingv2.HorizontalPodAutoscalerBehavior
	for name, c := range map[string]struct {
		b     *behavior
		steps []step // bounds 2 and 50
	}{
		"up at once, at most doubled or by 4":    {nil, []step{{0, 3, 5, "5 ReadyForNewScale DesiredWithinRange"}, {15, 5, 40, "10 ReadyForNewScale ScaleUpLimit"}, {30, 10, 40, "20 ReadyForNewScale ScaleUpLimit"}}},
		"twice in one period":                    {nil, []step{{0, 3, 7, "7 ReadyForNewScale DesiredWithinRange"}, {5, 7, 40, "7 ReadyForNewScale ScaleUpLimit"}}},
		"down after five minutes":                {nil, []step{{0, 20, 5, "20 ScaleDownStabilized DesiredWithinRange"}, {290, 20, 6, "20 ScaleDownStabilized DesiredWithinRange"}, {301, 20, 5, "6 ScaleDownStabilized DesiredWithinRange"}, {600, 6, 5, "5 ReadyForNewScale DesiredWithinRange"}}},
		"never above the bound":                  {nil, []step{{0, 40, 70, "50 ReadyForNewScale TooManyReplicas"}}},
		"never below the bound":                  {&behavior{ScaleDown: rules(0, most, policy(percent, 100, 15))}, []step{{0, 4, 0, "2 ReadyForNewScale TooFewReplicas"}}},
		"a peak is ignored by a window up":       {&behavior{ScaleUp: rules(60, most, policy(percent, 100, 15))}, []step{{0, 10, 20, "10 ScaleUpStabilized DesiredWithinRange"}, {30, 10, 11, "10 ScaleUpStabilized DesiredWithinRange"}, {61, 10, 20, "11 ScaleUpStabilized DesiredWithinRange"}}},
		"down by one pod a minute":               {&behavior{ScaleDown: rules(0, most, policy(pods, 1, 60))}, []step{{0, 10, 3, "9 ReadyForNewScale ScaleDownLimit"}, {15, 9, 3, "9 ReadyForNewScale ScaleDownLimit"}, {61, 9, 3, "8 ReadyForNewScale ScaleDownLimit"}}},
		"down by the smaller of two policies":    {&behavior{ScaleDown: rules(0, least, policy(pods, 4, 60), policy(percent, 10, 60))}, []step{{0, 20, 3, "18 ReadyForNewScale ScaleDownLimit"}}},
		"down by the larger of two policies":     {&behavior{ScaleDown: rules(0, most, policy(pods, 4, 60), policy(percent, 10, 60))}, []step{{0, 20, 3, "16 ReadyForNewScale ScaleDownLimit"}}},
		"up by a percentage, rounded up":         {&behavior{ScaleUp: rules(0, most, policy(percent, 10, 15))}, []step{{0, 3, 9, "4 ReadyForNewScale ScaleUpLimit"}}},
		"up by the smaller of two policies":      {&behavior{ScaleUp: rules(0, least, policy(percent, 100, 15), policy(pods, 2, 15))}, []step{{0, 9, 30, "11 ReadyForNewScale ScaleUpLimit"}}},
		"no decrease at all":                     {&behavior{ScaleDown: rules(0, autoscalingv2.DisabledPolicySelect)}, []step{{0, 9, 3, "9 ReadyForNewScale ScaleDownLimit"}}},
		"no increase at all":                     {&behavior{ScaleUp: rules(0, autoscalingv2.DisabledPolicySelect)}, []step{{0, 9, 30, "9 ReadyForNewScale ScaleUpLimit"}}},
		"the other direction keeps its defaults": {&behavior{ScaleUp: rules(0, autoscalingv2.DisabledPolicySelect)}, []step{{0, 9, 3, "9 ScaleDownStabilized DesiredWithinRange"}}},
		"a restart forgets, and waits once more": {nil, []step{{1000, 20, 5, "20 ScaleDownStabilized DesiredWithinRange"}}},
	} {
		t.Run(name, func(t *testing.T) {
			m, began := &memory{}, time.Unix(1_700_000_000, 0)
			for _, s := range c.steps {
				now := began.Add(seconds(s.at))
				l := m.limit(c.b, s.current, s.desired, 2, 50, now)
				if got := fmt.Sprint(l.replicas, " ", l.stabilized, " ", l.reason); got != s.want {
					t.Errorf("after %d s: %s, want %s", s.at, got, s.want)
				}
				if l.isLimited != (l.reason != "DesiredWithinRange") {
					t.Errorf("after %d s: limited %v, %s", s.at, l.isLimited, l.reason)
				}
				if l.replicas != s.current {
					m.scaled(s.current, l.replicas, now)
				}
			}
		})
	}
}

// Whatever is recommended, the bounds hold, no step goes against the recommendation, and the memory
// stays small.
func TestLimitProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, now, current := &memory{}, time.Unix(1_700_000_000, 0), rapid.Int32Range(2, 50).Draw(t, "current")
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(1, 120).Draw(t, "seconds")) * time.Second)
			desired := rapid.Int32Range(0, 100).Draw(t, "desired")
			l := m.limit(nil, current, desired, 2, 50, now)
			if l.replicas < 2 || l.replicas > 50 {
				t.Fatalf("%d replicas from %d for %d", l.replicas, current, desired)
			}
			if l.replicas > current && desired <= current || l.replicas < current && desired >= current {
				t.Fatalf("%d replicas from %d for %d", l.replicas, current, desired)
			}
			if l.replicas != current {
				m.scaled(current, l.replicas, now)
			}
			current = l.replicas
		}
		if n := len(m.recommendations); n > 3601 {
			t.Fatalf("%d recommendations are kept", n)
		}
	})
}

func TestValidate(t *testing.T) {
	spec := func(change func(*autoscalingv1alpha1.FederatedHPASpec)) *autoscalingv1alpha1.FederatedHPASpec {
		s := &autoscalingv1alpha1.FederatedHPASpec{MaxReplicas: 5, Metrics: []autoscalingv2.MetricSpec{cpu(recorded{Util: 50})}}
		change(s)
		return s
	}
	type s = autoscalingv1alpha1.FederatedHPASpec
	for name, c := range map[string]struct {
		change func(*s)
		want   string
	}{
		"valid":                 {func(*s) {}, ""},
		"no maximum":            {func(s *s) { s.MaxReplicas = 0 }, "maxReplicas (0) at least minReplicas (1)"},
		"crossed":               {func(s *s) { s.MinReplicas = ptr.To[int32](6) }, "maxReplicas (5) at least minReplicas (6)"},
		"down to none":          {func(s *s) { s.MinReplicas = ptr.To[int32](0) }, "minReplicas must be at least 1"},
		"a type without source": {func(s *s) { s.Metrics[0].Resource = nil }, "metrics[0]: exactly one of resource"},
		"two sources":           {func(s *s) { s.Metrics[0].Pods = &autoscalingv2.PodsMetricSource{} }, "metrics[0]: exactly one of resource"},
		"no target":             {func(s *s) { s.Metrics[0].Resource.Target = autoscalingv2.MetricTarget{} }, "metrics[0]: the cpu resource needs a target above 0"},
		"a target of 0":         {func(s *s) { s.Metrics[0].Resource.Target.AverageUtilization = ptr.To[int32](0) }, "needs a target above 0"},
		"utilization of pods": {func(s *s) {
			s.Metrics[0] = autoscalingv2.MetricSpec{Pods: &autoscalingv2.PodsMetricSource{Target: autoscalingv2.MetricTarget{AverageUtilization: ptr.To[int32](5)}}}
		}, "needs a target above 0"},
		"external without value": {func(s *s) {
			s.Metrics[0] = autoscalingv2.MetricSpec{External: &autoscalingv2.ExternalMetricSource{}}
		}, "needs a target above 0"},
	} {
		err := validate(spec(c.change))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
