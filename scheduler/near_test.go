package scheduler

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

// nearTo is a request by round-trip times: "a" 1 ms, "b" 2 ms, "c" 40 ms, and none of "d".
func nearTo(r *Request, longest time.Duration, prefer bool) *Request {
	r.Near = &Near{To: "cluster x", RTT: map[string]time.Duration{"a": 1 * ms, "b": 2 * ms, "c": 40 * ms}, Max: longest, Prefer: prefer}
	return r
}

func TestNear(t *testing.T) {
	s := snapshot(member("a", 4), member("b", 6), member("c", 100), member("d", 100))
	one := placement(nil, spreadBy(cluster1, 1, 1))
	tooFar := "had no round-trip time of at most 20ms to cluster x"
	for name, c := range map[string]struct {
		r    *Request
		want string
		says string // of an error
	}{
		"the roomiest of the nearest":            {r: nearTo(request(3, one), 0, true), want: "b=3"},
		"three, the farthest last":               {r: nearTo(request(3, placement(nil, spreadBy(cluster1, 3, 3))), 0, true), want: "a=3 b=3 c=3"},
		"where it runs, of those alike":          {r: nearTo(request(3, one, "a=3"), 0, true), want: "a=3"},
		"where it runs, though far":              {r: nearTo(request(3, one, "c=3"), 0, true), want: "b=3"},
		"the order does not count":               {r: nearTo(request(3, one), 0, false), want: "c=3"},
		"near ones are filled first":             {r: nearTo(request(12, placement(byDynamic())), 0, true), want: "a=4 b=6 c=2"},
		"what runs far away stays":               {r: nearTo(request(12, placement(byDynamic()), "c=10"), 0, true), want: "a=1 b=1 c=10"},
		"far ones are emptied first":             {r: nearTo(request(5, placement(byDynamic()), "a=4", "c=6"), 0, true), want: "a=4 c=1"},
		"fresh":                                  {r: fresh(nearTo(request(12, placement(byDynamic()), "c=12"), 0, true)), want: "a=4 b=6 c=2"},
		"aggregated in the nearest":              {r: nearTo(request(5, placement(byAggregation())), 0, true), want: "b=5"},
		"none that is too far":                   {r: nearTo(request(1, nil), 20*ms, false), want: "a=1 b=1"},
		"too far where it runs":                  {r: nearTo(request(1, nil, "c=1"), 20*ms, false), want: "a=1 b=1 c=1"},
		"all are too far":                        {r: nearTo(request(1, affinities("c")), 20*ms, true), says: tooFar},
		"not measured counts as too far":         {r: nearTo(request(1, affinities("d")), 20*ms, true), says: tooFar},
		"not measured is last":                   {r: nearTo(request(150, placement(byDynamic())), 0, true), want: "a=4 b=6 c=100 d=40"},
		"tiers of affinities go before distance": {r: nearTo(request(101, overflow(byDynamic(), "c", "a", "d")), 0, true), want: "a=1 c=100"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Schedule(c.r, s)
			if got := show(d); err == nil && (got != c.want || c.says != "") {
				t.Errorf("%s, want %s %s", got, c.want, c.says)
			}
			var fit *FitError
			if err != nil && (c.says == "" || !errors.As(err, &fit) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// A second decision from the same round-trip times, or from ones within the margin, moves nothing.
func TestNearIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d", "e"}
		s := snapshot(member("a", 10), member("b", 10), member("c", 10), member("d", 10), member("e", 10))
		near := &Near{To: "cluster x", RTT: map[string]time.Duration{}, Prefer: true}
		for _, n := range names {
			near.RTT[n] = time.Duration(rapid.IntRange(0, 60_000).Draw(t, n)) * time.Microsecond
		}
		r := request(3, placement(nil, spreadBy(cluster1, 1, rapid.IntRange(1, 3).Draw(t, "clusters"))))
		r.Near = near
		first, err := Schedule(r, s)
		if err != nil {
			t.Fatal(err)
		}
		r.Current = first.Clusters
		second, err := Schedule(r, s)
		if err != nil || show(first) != show(second) {
			t.Errorf("first %s, then %s, %v: %v", show(first), show(second), err, near.RTT)
		}
	})
}
