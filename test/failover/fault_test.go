package main

import (
	"strings"
	"testing"
)

// Every fault has a name of its own, a title and something that happens; what is broken is healed.
func TestFaults(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range faults() {
		if f.name == "" || f.title == "" || f.strike == nil || seen[f.name] {
			t.Errorf("fault %q: incomplete, or twice", f.name)
		}
		seen[f.name] = true
		if f.prepare != nil && f.heal == nil && f.restore == nil {
			t.Errorf("fault %q is not undone", f.name)
		}
	}
}

func TestSiblings(t *testing.T) {
	for _, tt := range []struct{ cluster, victim, want string }{
		{"g1", "g1-n1", "g1-n2"}, {"g1", "g1-n2", "g1-n1"}, {"g1", "g2-n1", "g1-n1"}, {"g2", "g2-n1", "g2-n2"},
	} {
		if got := sibling(tt.cluster, tt.victim); got != tt.want {
			t.Errorf("a gateway of %s beside %s: %s, want %s", tt.cluster, tt.victim, got, tt.want)
		}
	}
	for _, node := range gateways {
		if c := otherCluster(node); strings.HasPrefix(node, c) {
			t.Errorf("the other cluster of %s is %s", node, c)
		}
	}
}

func TestWantPaths(t *testing.T) {
	var s stage
	for node, want := range map[string]int{"g1-n1": 3, "g2-n2": 3, "g1-n3": 2, "g2-n3": 2} {
		if got := s.wantPaths(node); got != want {
			t.Errorf("%s probes %d paths, want %d", node, got, want)
		}
	}
}
