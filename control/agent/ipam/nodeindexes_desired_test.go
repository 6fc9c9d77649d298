package ipam_test

import (
	"testing"

	"github.com/pelago-net/pelago/control/agent/ipam"
	"pgregory.net/rapid"
)

func TestNodeIndexNext(t *testing.T) {
	for _, tc := range []struct {
		name string
		last int32
		used []int32
		want int32
	}{
		{name: "the first", want: 1},
		{name: "a freed one is not given out at once", last: 7, used: []int32{1, 2, 4}, want: 8},
		{name: "round to the start", last: ipam.MaxNodeIndex, used: []int32{1, 3}, want: 2},
		{name: "used ones are passed over", last: 16381, used: []int32{16382, 16383, 1}, want: 2},
		{name: "a record below 0", last: -5, want: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			used := map[int32]bool{}
			for _, u := range tc.used {
				used[u] = true
			}
			got, ok := ipam.NextNodeIndex(tc.last, func(n int32) bool { return used[n] })
			if got != tc.want || !ok {
				t.Errorf("got %d, %v, want %d", got, ok, tc.want)
			}
		})
	}
	if n, ok := ipam.NextNodeIndex(3, func(int32) bool { return true }); ok {
		t.Errorf("got %d although all are used", n)
	}
}

// A number is never used twice, and a freed one comes back only when all others have had their
// turn.
func TestNextIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := rapid.Int32Range(0, ipam.MaxNodeIndex).Draw(t, "last")
		used := map[int32]bool{}
		freedAt := map[int32]int{}
		for turn := range rapid.IntRange(1, 300).Draw(t, "turns") {
			if len(used) > 0 && rapid.Bool().Draw(t, "free one") {
				for n := range used {
					delete(used, n)
					freedAt[n] = turn
					break
				}
				continue
			}
			n, ok := ipam.NextNodeIndex(last, func(n int32) bool { return used[n] })
			if !ok || n < 1 || n > ipam.MaxNodeIndex || used[n] {
				t.Fatalf("got %d, %v", n, ok)
			}
			if freed, was := freedAt[n]; was {
				t.Fatalf("%d was freed in turn %d and given out again in turn %d", n, freed, turn)
			}
			used[n] = true
			last = n
		}
	})
}
