package v1alpha1

import (
	"math"
	"math/bits"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// AmountOf converts a quantity of a resource to an integer: CPU in millicores, all else in units;
// at most the largest int64.
func AmountOf(name corev1.ResourceName, q resource.Quantity) int64 {
	n := q.AsApproximateFloat64()
	if name == corev1.ResourceCPU {
		n *= 1000
	}
	switch {
	case n >= 9e18: // less than an int64 holds, by more than a float64 rounds
		return math.MaxInt64
	case name == corev1.ResourceCPU:
		return q.MilliValue()
	}
	return q.Value()
}

// Plus returns a + n × times, clamped to int64: users can request any amount, and must not make a
// sum overflow into the negative.
func Plus(a, n, times int64) int64 { return Sum{}.Add(a, 1).Add(n, times).Int64() }

// Sum is a sum of amounts that does not overflow: what was added to it can be subtracted again.
//
// +kubebuilder:object:generate=false
type Sum struct{ high, low uint64 } // two's complement of 128 bits

// Add returns the sum with n × times added.
func (s Sum) Add(n, times int64) Sum {
	high, low := bits.Mul64(uint64(n), uint64(times))
	high -= uint64(n>>63)&uint64(times) + uint64(times>>63)&uint64(n) // the factors have a sign
	low, carry := bits.Add64(s.low, low, 0)
	return Sum{s.high + high + carry, low}
}

// Int64 returns the sum, clamped to int64.
func (s Sum) Int64() int64 {
	switch {
	case s.high == uint64(int64(s.low)>>63):
		return int64(s.low)
	case int64(s.high) < 0:
		return math.MinInt64
	}
	return math.MaxInt64
}
