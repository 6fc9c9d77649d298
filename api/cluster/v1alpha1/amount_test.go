package v1alpha1

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAmountOf(t *testing.T) {
	twice := resource.MustParse("9E")
	twice.Add(twice)
	for _, c := range []struct {
		name corev1.ResourceName
		q    resource.Quantity
		want int64
	}{
		{"cpu", resource.MustParse("1500m"), 1500},
		{"cpu", resource.MustParse("1u"), 1},
		{"cpu", resource.MustParse("8P"), 8e18},
		{"cpu", resource.MustParse("10P"), math.MaxInt64},
		{"cpu", *resource.NewMilliQuantity(math.MaxInt64, resource.DecimalSI), math.MaxInt64},
		{"cpu", twice, math.MaxInt64},
		{"memory", resource.MustParse("1Gi"), 1 << 30},
		{"memory", resource.MustParse("7E"), 7e18},
		{"memory", resource.MustParse("9223372036854775807"), math.MaxInt64},
		{"memory", twice, math.MaxInt64},
		{"memory", resource.MustParse("-1"), -1},
	} {
		if got := AmountOf(c.name, c.q); got != c.want {
			t.Errorf("%s %s: %d, want %d", c.name, c.q.String(), got, c.want)
		}
	}
}

// Sums are those of integers without bounds.
func TestSum(t *testing.T) {
	g := rand.New(rand.NewPCG(1, 2))
	draw := func() int64 {
		edges := []int64{0, 1, -1, math.MaxInt64, math.MinInt64, math.MaxInt32}
		if at := g.IntN(2 * len(edges)); at < len(edges) {
			return edges[at]
		}
		return int64(g.Uint64()) >> g.IntN(64)
	}
	for range 10_000 {
		sum, want := Sum{}, new(big.Int)
		for range 6 {
			n, times := draw(), draw()
			sum = sum.Add(n, times)
			want.Add(want, new(big.Int).Mul(big.NewInt(n), big.NewInt(times)))
			bounded := want.Int64()
			if !want.IsInt64() {
				bounded = math.MaxInt64
				if want.Sign() < 0 {
					bounded = math.MinInt64
				}
			}
			if want.BitLen() > 126 {
				break
			}
			if got := sum.Int64(); got != bounded {
				t.Fatalf("after %d × %d: %d, want %d", n, times, got, bounded)
			}
		}
	}
	if got := Plus(5, math.MaxInt64, 10); got != math.MaxInt64 {
		t.Errorf("%d", got)
	}
}
