package scheduler

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func seatsOf(total int64, weights []int64, order tie) []int64 {
	shares := make([]share, len(weights))
	for i, w := range weights {
		shares[i] = share{at: i, weight: w}
	}
	apportion(total, shares, order)
	out := make([]int64, len(weights))
	for i, s := range shares {
		out[i] = s.seats
	}
	return out
}

// The values are Karmada's for the same weights (since 1.16).
func TestApportionGolden(t *testing.T) {
	for _, c := range []struct {
		total   int64
		weights []int64
		order   tie
		want    []int64
	}{
		{9, []int64{1, 2}, false, []int64{3, 6}},
		{9, []int64{1, 3}, false, []int64{2, 7}},
		{12, []int64{3, 2, 1}, false, []int64{6, 4, 2}},
		{13, []int64{3, 2, 1}, false, []int64{7, 4, 2}},
		{14, []int64{3, 2, 1}, false, []int64{7, 5, 2}},
		{7, []int64{2, 1}, false, []int64{5, 2}},
		{1, []int64{3, 2, 1}, false, []int64{1, 0, 0}},
		{10, []int64{6, 12, 18}, false, []int64{2, 3, 5}},
		{12, []int64{6, 12, 18}, false, []int64{2, 4, 6}},
		{4, []int64{1200, 900, 400}, false, []int64{2, 1, 1}},
		{10, []int64{5, 3, 1, 1}, false, []int64{5, 3, 1, 1}},
		{3, []int64{1, 1}, false, []int64{2, 1}},
		{3, []int64{1, 1}, true, []int64{1, 2}},
		{5, []int64{1, 1, 1}, false, []int64{2, 2, 1}},
		{5, []int64{1, 1, 1}, true, []int64{1, 2, 2}},
		{100, []int64{1, 1, 1}, false, []int64{34, 33, 33}},
		{100, []int64{1, 1, 1}, true, []int64{33, 33, 34}},
		{0, []int64{1, 1}, false, []int64{0, 0}},
		{5, []int64{0, 3, 0}, false, []int64{0, 5, 0}},
		{5, []int64{0, 0}, false, []int64{0, 0}},
	} {
		if diff := cmp.Diff(c.want, seatsOf(c.total, c.weights, c.order)); diff != "" {
			t.Errorf("%d over %v, descending %v: -want +got\n%s", c.total, c.weights, c.order, diff)
		}
	}
}

// One seat after the other, as the rule is written.
func slowly(total int64, weights []int64, order tie) []int64 {
	shares := make([]*share, 0, len(weights))
	out := make([]int64, len(weights))
	for i, w := range weights {
		shares = append(shares, &share{at: i, weight: w})
	}
	c := claims{order: order}
	for range total {
		var best *share
		for _, s := range shares {
			if s.weight > 0 && (best == nil || c.compare(s, best) < 0) {
				best = s
			}
		}
		if best == nil {
			break
		}
		best.seats++
	}
	for i, s := range shares {
		out[i] = s.seats
	}
	return out
}

func TestApportionProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weights := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 5), rapid.Int64Range(0, 1<<40)), 1, 12).Draw(t, "weights")
		total := rapid.Int64Range(0, 300).Draw(t, "total")
		order := tie(rapid.Bool().Draw(t, "descending"))
		got := seatsOf(total, weights, order)
		if diff := cmp.Diff(slowly(total, weights, order), got); diff != "" {
			t.Fatalf("not what one seat after the other gives: -slowly +got\n%s", diff)
		}
		var sum int64
		for i, n := range got {
			sum += n
			if weights[i] == 0 && n > 0 {
				t.Fatalf("a share without weight got %d: %v", n, got)
			}
		}
		if slices.Max(weights) > 0 && sum != total {
			t.Fatalf("%d of %d seats were given: %v", sum, total, got)
		}
		for i, n := range seatsOf(total+1, weights, order) {
			if n < got[i] {
				t.Fatalf("with a seat more share %d gets %d instead of %d", i, n, got[i])
			}
		}
	})
}

// Large numbers neither overflow nor take long.
func TestApportionLarge(t *testing.T) {
	got := seatsOf(1<<40, []int64{1 << 51, 1 << 50, 1 << 50}, false)
	if diff := cmp.Diff([]int64{1 << 39, 1 << 38, 1 << 38}, got); diff != "" {
		t.Error(diff)
	}
	huge := make([]int64, 2000)
	for i := range huge {
		huge[i] = math.MaxInt64
	}
	for i, n := range seatsOf(20_000, huge, false) {
		if n != 10 {
			t.Fatalf("share %d of 2,000 equal ones gets %d of 20,000 seats; want 10", i, n)
		}
	}
}

func TestTieOf(t *testing.T) {
	if tieOf("") {
		t.Error("a template without a UID: want ascending names")
	}
	seen := map[tie]bool{}
	for i := range 20 {
		seen[tieOf(types.UID(fmt.Sprint("uid-", i)))] = true
	}
	if len(seen) != 2 {
		t.Errorf("of 20 UIDs all give the same order: %v", seen)
	}
}
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name    string
		total   int64
		weights map[string]int64
		uid     types.UID
		want    map[string]int64
	}{
		{"by weight", 10, map[string]int64{"a": 1, "b": 4}, "", map[string]int64{"a": 2, "b": 8}},
		{"a tie goes to the first name", 3, map[string]int64{"a": 1, "b": 1}, "", map[string]int64{"a": 2, "b": 1}},
		{"or to the last one, by the UID", 3, map[string]int64{"a": 1, "b": 1}, "a", map[string]int64{"a": 2, "b": 1}},
		{"of another template", 3, map[string]int64{"a": 1, "b": 1}, "b", map[string]int64{"a": 1, "b": 2}},
		{"no weight, no part", 3, map[string]int64{"a": 0, "b": 2}, "", map[string]int64{"b": 3}},
		{"nothing to divide", 0, map[string]int64{"a": 1}, "", nil},
		{"nobody to have it", 3, nil, "", nil},
	} {
		if diff := cmp.Diff(c.want, Split(c.total, c.weights, c.uid)); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}
