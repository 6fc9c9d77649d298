package autoscale

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// defaultTolerance is that of kube-controller-manager's --horizontal-pod-autoscaler-tolerance.
const defaultTolerance = 0.1

// memberReport is what one cluster reports. Without a status, why reports it.
type memberReport struct {
	cluster  string
	replicas int32 // that it is to have
	status   *workv1alpha1.ScalingStatus
	why      string
}

// sums are the reports of one metric over all clusters.
type sums struct {
	ready, unready, missing workv1alpha1.PodSum
	value                   int64
	pods, readyPods, absent int64    // absent: those without value, as far as known
	counted                 int64    // pods of clusters with a value
	unknown                 []string // cluster: why it has no values
	reported                int
}

// add sums the reports of the i-th metric. The replicas of a cluster without values count as
// missing pods with the average requests of the others, so they dampen a change and never cause one
// (as in sums.assume).
func add(reports []memberReport, i int) (s sums) {
	for _, r := range reports {
		var m workv1alpha1.MetricReport
		switch {
		case r.status == nil:
			m.Error = r.why
		case i >= len(r.status.Metrics):
			m.Error = "its agent reports no such metrics: upgrade it"
		default:
			m = r.status.Metrics[i]
		}
		pods, readyPods := int64(r.replicas), int64(r.replicas)
		if r.status != nil {
			pods, readyPods = int64(r.status.Pods), int64(r.status.ReadyPods)
		}
		s.pods, s.readyPods = s.pods+pods, s.readyPods+readyPods
		if m.Error != "" {
			s.unknown = append(s.unknown, r.cluster+": "+m.Error)
			s.absent += int64(r.replicas)
			continue
		}
		s.reported++
		s.counted += pods
		s.value += m.Value
		for _, to := range []struct {
			sum *workv1alpha1.PodSum
			by  workv1alpha1.PodSum
		}{{&s.ready, m.Ready}, {&s.unready, m.Unready}, {&s.missing, m.Missing}} {
			*to.sum = plus(*to.sum, to.by)
		}
	}
	if known := plus(plus(s.ready, s.unready), s.missing); known.Pods > 0 {
		s.missing = plus(s.missing, workv1alpha1.PodSum{Pods: s.absent, Requests: known.Requests / known.Pods * s.absent})
	}
	if len(reports) == 0 {
		s.unknown = []string{"the target runs in no cluster, or no policy propagates it"}
	}
	slices.Sort(s.unknown)
	return s
}

func plus(a, b workv1alpha1.PodSum) workv1alpha1.PodSum {
	return workv1alpha1.PodSum{Pods: a.Pods + b.Pods, Usage: a.Usage + b.Usage, Requests: a.Requests + b.Requests}
}

// proposal is how many replicas one metric requests in all clusters together, and the value that it
// has.
type proposal struct {
	replicas int64
	current  autoscalingv2.MetricValueStatus
}

type tolerances struct{ down, up float64 }

func (t tolerances) within(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

func tolerancesOf(b *autoscalingv2.HorizontalPodAutoscalerBehavior) tolerances {
	of := func(r *autoscalingv2.HPAScalingRules) float64 {
		if r == nil || r.Tolerance == nil {
			return defaultTolerance
		}
		return r.Tolerance.AsApproximateFloat64()
	}
	if b == nil {
		b = &autoscalingv2.HorizontalPodAutoscalerBehavior{}
	}
	return tolerances{of(b.ScaleDown), of(b.ScaleUp)}
}

// propose computes the proposal of a metric while all clusters together are to have current
// replicas.
func propose(m *autoscalingv2.MetricSpec, s sums, current int64, t tolerances) (proposal, error) {
	if s.reported == 0 {
		return proposal{}, fmt.Errorf("no cluster reports it: %s", strings.Join(s.unknown, "; "))
	}
	target, perPod := targetOf(m)
	switch {
	case perPod && target.AverageValue == nil:
		of := func(p workv1alpha1.PodSum) (float64, error) {
			if p.Requests == 0 {
				return 0, errors.New("the pods request nothing")
			}
			return float64(p.Usage*100/p.Requests) / float64(*target.AverageUtilization), nil
		}
		n, err := podReplicas(s, current, t, of, max(100, int64(*target.AverageUtilization)), 100)
		if err != nil {
			return proposal{}, err
		}
		used := int32(s.ready.Usage * 100 / s.ready.Requests)
		return proposal{n, autoscalingv2.MetricValueStatus{AverageUtilization: &used, AverageValue: quantity(m, s.ready.Usage/s.ready.Pods)}}, nil
	case perPod:
		want := target.AverageValue.MilliValue()
		of := func(p workv1alpha1.PodSum) (float64, error) { return float64(p.Usage/p.Pods) / float64(want), nil }
		n, err := podReplicas(s, current, t, of, 0, want)
		if err != nil {
			return proposal{}, err
		}
		return proposal{n, autoscalingv2.MetricValueStatus{AverageValue: quantity(m, s.ready.Usage/s.ready.Pods)}}, nil
	case target.AverageValue != nil:
		want, replicas := float64(target.AverageValue.MilliValue()), float64(max(s.pods, 1))
		out := proposal{current, autoscalingv2.MetricValueStatus{AverageValue: quantity(m, int64(math.Ceil(float64(s.value)/float64(max(s.counted, 1)))))}}
		if value := s.assume(want * replicas); !t.within(value / (want * replicas)) {
			out.replicas = s.atLeast(current, value > want*replicas, ceil(value/want))
		}
		return out, nil
	}
	out := proposal{current, autoscalingv2.MetricValueStatus{Value: quantity(m, s.value)}}
	wanted := float64(target.Value.MilliValue())
	if ratio := s.assume(wanted) / wanted; !t.within(ratio) {
		if s.pods == 0 {
			return proposal{}, errors.New("there are no pods")
		}
		out.replicas = s.atLeast(current, ratio > 1, ceil(ratio*float64(s.readyPods)))
	}
	return out, nil
}

// assume returns the value including an assumption for clusters without one, as in podReplicas:
// nothing if the value calls for an increase; for a decrease their pods' share of the target of all
// pods, but not so much that the result exceeds the target.
func (s sums) assume(wanted float64) float64 {
	value := float64(s.value)
	if value < wanted {
		value = min(value+wanted*float64(s.absent)/float64(max(s.pods, 1)), wanted)
	}
	return value
}

// atLeast keeps the current replicas if a value above the target would give fewer, only because
// clusters are missing in it.
func (s sums) atLeast(current int64, above bool, replicas int64) int64 {
	if above && s.absent > 0 {
		return max(current, replicas)
	}
	return replicas
}

// podReplicas follows the HorizontalPodAutoscaler: for a decrease, pods without a metric are
// assumed to use full/100 of their requests, or each if full is 0; for an increase, they and
// unready pods are assumed to use nothing. If that reverses the direction, nothing changes.
func podReplicas(s sums, current int64, t tolerances, ratioOf func(workv1alpha1.PodSum) (float64, error), full, each int64) (int64, error) {
	if s.ready.Pods == 0 {
		return 0, errors.New("no pod has a metric (they may not be ready)")
	}
	ratio, err := ratioOf(s.ready)
	if err != nil {
		return 0, err
	}
	counted, again := s.ready, false
	if s.missing.Pods > 0 && ratio != 1 {
		share := workv1alpha1.PodSum{Pods: s.missing.Pods, Requests: s.missing.Requests}
		if ratio < 1 && full > 0 {
			share.Usage = s.missing.Requests * full / 100
		} else if ratio < 1 {
			share.Usage = s.missing.Pods * each
		}
		counted, again = plus(counted, share), true
	}
	if s.unready.Pods > 0 && ratio > 1 {
		counted, again = plus(counted, workv1alpha1.PodSum{Pods: s.unready.Pods, Requests: s.unready.Requests}), true
	}
	next := ratio
	if again {
		if next, err = ratioOf(counted); err != nil {
			return 0, err
		}
	}
	if t.within(next) || ratio < 1 && next > 1 || ratio > 1 && next < 1 {
		return current, nil
	}
	n := ceil(next * float64(counted.Pods))
	if again && (next < 1 && n > current || next > 1 && n < current) {
		return current, nil
	}
	return n, nil
}

func ceil(f float64) int64 { return int64(math.Ceil(min(f, math.MaxInt32))) }

// quantity is a value in thousandths, in the form of its resource.
func quantity(m *autoscalingv2.MetricSpec, milli int64) *resource.Quantity {
	if m.Resource != nil && m.Resource.Name == corev1.ResourceMemory || m.ContainerResource != nil && m.ContainerResource.Name == corev1.ResourceMemory {
		return resource.NewMilliQuantity(milli, resource.BinarySI)
	}
	return resource.NewMilliQuantity(milli, resource.DecimalSI)
}

// targetOf is the target of a valid metric; perPod: it is compared with the average of the pods'
// own metrics.
func targetOf(m *autoscalingv2.MetricSpec) (target autoscalingv2.MetricTarget, perPod bool) {
	switch {
	case m.Resource != nil:
		return m.Resource.Target, true
	case m.ContainerResource != nil:
		return m.ContainerResource.Target, true
	case m.Pods != nil:
		return m.Pods.Target, true
	case m.Object != nil:
		return m.Object.Target, false
	}
	return m.External.Target, false
}

// nameOf names a metric as messages do.
func nameOf(m *autoscalingv2.MetricSpec) string {
	switch {
	case m.Resource != nil:
		return string(m.Resource.Name) + " resource"
	case m.ContainerResource != nil:
		return fmt.Sprintf("%s resource of container %s", m.ContainerResource.Name, m.ContainerResource.Container)
	case m.Pods != nil:
		return "pods metric " + m.Pods.Metric.Name
	case m.Object != nil:
		return fmt.Sprintf("%s metric %s", m.Object.DescribedObject.Kind, m.Object.Metric.Name)
	}
	return "external metric " + m.External.Metric.Name
}

// statusOf is the status of a metric.
func statusOf(m *autoscalingv2.MetricSpec, is autoscalingv2.MetricValueStatus) autoscalingv2.MetricStatus {
	out := autoscalingv2.MetricStatus{Type: m.Type}
	switch {
	case m.Resource != nil:
		out.Resource = &autoscalingv2.ResourceMetricStatus{Name: m.Resource.Name, Current: is}
	case m.ContainerResource != nil:
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{
			Name: m.ContainerResource.Name, Container: m.ContainerResource.Container, Current: is}
	case m.Pods != nil:
		out.Pods = &autoscalingv2.PodsMetricStatus{Metric: m.Pods.Metric, Current: is}
	case m.Object != nil:
		out.Object = &autoscalingv2.ObjectMetricStatus{Metric: m.Object.Metric, DescribedObject: m.Object.DescribedObject, Current: is}
	default:
		out.External = &autoscalingv2.ExternalMetricStatus{Metric: m.External.Metric, Current: is}
	}
	return out
}
