package autoscale

import (
	"cmp"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/utils/ptr"
)

// memory is what a FederatedHPA remembers between two reconciles. As in Kubernetes it is lost at a
// restart, where the first recommendation is the current number of replicas: a decrease waits for a
// whole stabilization window.
type memory struct {
	recommendations, ups, downs []sample
}

// sample is a recommended number of replicas, or a change of replicas, and its time.
type sample struct {
	at time.Time
	n  int32
}

func (m *memory) forget(before time.Time) {
	for _, l := range []*[]sample{&m.recommendations, &m.ups, &m.downs} {
		i := 0
		for i < len(*l) && (*l)[i].at.Before(before) {
			i++
		}
		*l = (*l)[i:]
	}
}

// longest bounds stabilization windows and periods of policies, as the API of Kubernetes does with
// 3,600 and 1,800 s.
const longest = time.Hour

// scaled remembers a change of replicas.
func (m *memory) scaled(from, to int32, now time.Time) {
	if to > from {
		m.ups = append(m.ups, sample{now, to - from})
	} else {
		m.downs = append(m.downs, sample{now, from - to})
	}
}

// limited is the number of replicas that a behavior allows, with the reasons of the conditions
// AbleToScale and ScalingLimited.
type limited struct {
	replicas        int32
	stabilized      string // reason of AbleToScale
	reason, message string // of ScalingLimited
	isLimited       bool
}

// limit applies stabilization windows, then policies and bounds.
func (m *memory) limit(b *autoscalingv2.HorizontalPodAutoscalerBehavior, current, desired, low, high int32, now time.Time) limited {
	up, down := rulesOf(b)
	m.forget(now.Add(-longest))
	if len(m.recommendations) == 0 {
		m.recommendations = append(m.recommendations, sample{now, current})
	}
	out := limited{replicas: m.stabilize(up, down, current, desired, now), stabilized: "ReadyForNewScale"}
	m.recommendations = append(m.recommendations, sample{now, desired})
	if out.replicas != desired {
		out.stabilized = "ScaleDownStabilized"
		if desired >= current {
			out.stabilized = "ScaleUpStabilized"
		}
	}
	allowed := out.replicas
	out.reason, out.message = "DesiredWithinRange", "the desired count is within the acceptable range"
	switch stable := out.replicas; {
	case stable > current:
		if rate := max(m.rate(up, current, 1, now), current); rate < high {
			if stable > rate {
				allowed, out.reason, out.message = rate, "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"
			}
		} else if stable > high {
			allowed, out.reason, out.message = high, "TooManyReplicas", "the desired replica count is more than the maximum replica count"
		}
	case stable < current:
		if rate := min(m.rate(down, current, -1, now), current); rate > low {
			if stable < rate {
				allowed, out.reason, out.message = rate, "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"
			}
		} else if stable < low {
			allowed, out.reason, out.message = low, "TooFewReplicas", "the desired replica count is less than the minimum replica count"
		}
	}
	out.isLimited, out.replicas = allowed != out.replicas, allowed
	return out
}

// stabilize is the smallest change that was recommended within the windows.
func (m *memory) stabilize(up, down autoscalingv2.HPAScalingRules, current, desired int32, now time.Time) int32 {
	least, most := desired, desired
	for _, r := range m.recommendations {
		if age := now.Sub(r.at); age < seconds(*up.StabilizationWindowSeconds) {
			least = min(least, r.n)
		}
		if age := now.Sub(r.at); age < seconds(*down.StabilizationWindowSeconds) {
			most = max(most, r.n)
		}
	}
	switch {
	case current < least:
		return least
	case current > most:
		return most
	}
	return current
}

// rate is the number of replicas that the policies of a direction (1 or -1) allow now.
func (m *memory) rate(r autoscalingv2.HPAScalingRules, current, direction int32, now time.Time) int32 {
	if *r.SelectPolicy == autoscalingv2.DisabledPolicySelect {
		return current
	}
	smallest := *r.SelectPolicy == autoscalingv2.MinChangePolicySelect
	var out *int32
	for _, p := range r.Policies {
		start := float64(current - within(m.ups, p.PeriodSeconds, now) + within(m.downs, p.PeriodSeconds, now))
		to := start + float64(direction*p.Value)
		if p.Type == autoscalingv2.PercentScalingPolicy {
			to = start * (1 + float64(direction*p.Value)/100)
		}
		// rounded up, so that a percentage has an effect
		n := int32(min(math.Ceil(to), math.MaxInt32))
		if direction < 0 {
			n = int32(to)
		}
		if out == nil || (n > *out) == (direction > 0 != smallest) {
			out = &n
		}
	}
	return ptr.Deref(out, current)
}

// within sums the changes in a period.
func within(changes []sample, period int32, now time.Time) (n int32) {
	for _, c := range changes {
		if now.Sub(c.at) < seconds(period) {
			n += c.n
		}
	}
	return n
}

func seconds(n int32) time.Duration { return time.Duration(n) * time.Second }

// rulesOf are the rules of a behavior with Kubernetes' defaults: up by 4 pods or 100 % in 15 s at
// once, down to any number after 300 s.
func rulesOf(b *autoscalingv2.HorizontalPodAutoscalerBehavior) (up, down autoscalingv2.HPAScalingRules) {
	if b != nil {
		up, down = ptr.Deref(b.ScaleUp, up), ptr.Deref(b.ScaleDown, down)
	}
	fill := func(r *autoscalingv2.HPAScalingRules, window int32, policies ...autoscalingv2.HPAScalingPolicy) {
		r.SelectPolicy = cmp.Or(r.SelectPolicy, ptr.To(autoscalingv2.MaxChangePolicySelect))
		r.StabilizationWindowSeconds = cmp.Or(r.StabilizationWindowSeconds, &window)
		if len(r.Policies) == 0 {
			r.Policies = policies
		}
	}
	all := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	fill(&up, 0, autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}, all)
	fill(&down, 300, all)
	return up, down
}
