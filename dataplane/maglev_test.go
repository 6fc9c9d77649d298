package dataplane

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func shares(table []uint16) map[uint16]float64 {
	out := map[uint16]float64{}
	for _, n := range table {
		out[n] += 1 / float64(len(table))
	}
	return out
}

func TestMaglevEdges(t *testing.T) {
	for _, weights := range []map[uint16]int{nil, {}, {3: 0}, {3: -1}} {
		if got := Maglev(weights); got != nil {
			t.Errorf("Maglev(%v) = %v; want nothing", weights, got)
		}
	}
	if got := Maglev(map[uint16]int{7: 5, 8: 0}); len(got) != 1 || got[0] != 7 {
		t.Errorf("one node gets %v; want a table of one slot", got)
	}
}

// Each node's number of slots is within 2 % of its share, plus two slots; with a thousand nodes as
// well as with two.
func TestMaglevShares(t *testing.T) {
	for _, tt := range []struct {
		name    string
		weights map[uint16]int
	}{
		{"two alike", weights(2, func(int) int { return 1 })},
		{"three alike", weights(3, func(int) int { return 4 })},
		{"fifty alike", weights(50, func(int) int { return 1 })},
		{"a hundred alike", weights(100, func(int) int { return 1 })},
		{"a thousand alike", weights(1000, func(int) int { return 1 })},
		{"one to nine", weights(9, func(i int) int { return i + 1 })},
		{"one of a hundred backends", map[uint16]int{1: 1, 2: 99}},
		{"very unlike", map[uint16]int{1: 1, 2: 10, 3: 100}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := Maglev(tt.weights)
			total := 0
			for _, w := range tt.weights {
				total += w
			}
			got := shares(table)
			for n, w := range tt.weights {
				want := float64(w) / float64(total)
				if slots := math.Abs(got[n]-want) * float64(len(table)); slots > 2+0.02*want*float64(len(table)) {
					t.Errorf("node %d of weight %d has %.2f %% of %d slots; want %.2f %%", n, w, 100*got[n], len(table), 100*want)
				}
			}
		})
	}
}

func weights(n int, weight func(int) int) map[uint16]int {
	out := map[uint16]int{}
	for i := range n {
		out[uint16(i+1)] = weight(i)
	}
	return out
}

// When a node goes or comes, or a backend, few slots change hands that need not. (Where the number
// of nodes passes a power of two times 2.5 the table takes another size and every slot may change
// hands; that concerns new flows and the affinity of clients, never an established flow, which
// keeps its node by itself.)
func TestMaglevDisruption(t *testing.T) {
	for _, nodes := range []int{12, 98, 1000} {
		t.Run(fmt.Sprint(nodes, " nodes"), func(t *testing.T) { testDisruption(t, nodes) })
	}
}

func testDisruption(t *testing.T, nodes int) {
	base := weights(nodes, func(int) int { return 3 })
	before := Maglev(base)
	for name, change := range map[string]func(map[uint16]int){
		"a node goes":    func(w map[uint16]int) { delete(w, 4) },
		"a node comes":   func(w map[uint16]int) { w[uint16(nodes+1)] = 3 },
		"a backend goes": func(w map[uint16]int) { w[4] = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			changed := weights(nodes, func(int) int { return 3 })
			change(changed)
			after := Maglev(changed)
			if len(after) != len(before) {
				t.Fatalf("the table has %d slots and had %d", len(after), len(before))
			}
			moved, needed := 0, 0.0
			for i := range before {
				if before[i] != after[i] {
					moved++
				}
			}
			was, is := shares(before), shares(after)
			for n := range was {
				needed += math.Max(0, was[n]-is[n])
			}
			excess := float64(moved)/float64(len(before)) - needed
			t.Logf("%.1f %% of the slots moved, %.1f %% had to", 100*float64(moved)/float64(len(before)), 100*needed)
			if excess > 0.10 {
				t.Errorf("%.1f %% of the slots moved without need", 100*excess)
			}
		})
	}
}

// The table is a function of the weights alone: gateways that never talk to each other agree on it.
func TestMaglevDeterminism(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.MapOfN(rapid.Uint16Range(1, 65535), rapid.IntRange(0, 50), 0, 40).Draw(t, "weights")
		again := map[uint16]int{}
		for n, weight := range w {
			again[n] = weight
		}
		a, b := Maglev(w), Maglev(again)
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Fatal("the same weights give two tables")
		}
		for _, n := range a {
			if w[n] <= 0 {
				t.Fatalf("node %d without a backend has a slot", n)
			}
		}
		for n, weight := range w {
			if weight > 0 && shares(a)[n] == 0 {
				t.Errorf("node %d with %d backends has no slot of %d: %v", n, weight, len(a), w)
			}
		}
	})
}

// The cache returns what Maglev does, and drops what a reconcile did not use.
func TestMaglevCache(t *testing.T) {
	var c MaglevCache
	weights := []map[uint16]int{{1: 1}, {1: 1, 2: 3}, {1: 3, 2: 1}, {}, nil}
	for range 3 {
		c.Begin()
		for _, w := range weights {
			if got, want := c.Table(w), Maglev(w); !slices.Equal(got, want) {
				t.Errorf("weights %v: another table than Maglev's", w)
			}
		}
	}
	first := c.Table(weights[1])
	c.Begin()
	if second := c.Table(weights[1]); &second[0] != &first[0] {
		t.Error("a table of the last reconcile was built again")
	}
	c.Begin()
	if len(c.nodes.former) != 1 || len(c.nodes.current) != 0 {
		t.Errorf("%d and %d tables are kept, want the one that was used", len(c.nodes.former), len(c.nodes.current))
	}
	targets := []VIPTarget{{Cluster: 1}, {Cluster: 2}}
	for _, w := range [][]int{{1, 1}, {1, 3}, {0, 3}, {1, 1}, {0, 0}} {
		if got, want := c.VIPTable(targets, w), VIPTable(targets, w); !slices.Equal(got, want) {
			t.Errorf("weights %v: another table of clusters than VIPTable's", w)
		}
	}
	var none *MaglevCache
	none.Begin()
	if !slices.Equal(none.VIPTable(targets, []int{1, 2}), VIPTable(targets, []int{1, 2})) {
		t.Error("the nil cache returns another table of clusters")
	}
	if !slices.Equal(none.Table(weights[1]), Maglev(weights[1])) {
		t.Error("the nil cache returns another table")
	}
}

func BenchmarkMaglevCache(b *testing.B) {
	weights := map[uint16]int{}
	for i := range 50 {
		weights[uint16(i+1)] = i%7 + 1
	}
	b.Run("built", func(b *testing.B) {
		for b.Loop() {
			Maglev(weights)
		}
	})
	b.Run("cached", func(b *testing.B) {
		var c MaglevCache
		for b.Loop() {
			c.Begin()
			c.Table(weights)
		}
	})
}
