package topology_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

func TestSignificant(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 8: 8, 9: 8, 10: 10, 11: 10, 15: 14, 16: 16, 19: 16, 20: 20, 100: 96, 1000: 896} {
		if got := topology.Significant(n); got != want {
			t.Errorf("%d backends count as %d, want %d", n, got, want)
		}
	}
}

// The shares of clusters, in percent; c1 is the own one.
func TestWeigh(t *testing.T) {
	c := func(id string, ready int) topology.Candidate {
		return topology.Candidate{ID: id, Ready: ready, Own: id == "c1"}
	}
	near := []string{"c3", "c2"}
	for _, tt := range []struct {
		name string
		set  topology.Balancing
		of   []topology.Candidate
		want []int
		by   topology.Rule
	}{
		{"one own backend", topology.Balancing{}, []topology.Candidate{c("c1", 1), c("c2", 30)}, []int{100, 0}, topology.OwnClusterFirst},
		{"none", topology.Balancing{}, []topology.Candidate{c("c2", 30), c("c3", 10)}, []int{75, 25}, topology.ByReadyBackends},
		{"one own backend of four", topology.Balancing{MinLocal: 4}, []topology.Candidate{c("c1", 1), c("c2", 30), c("c3", 10)}, []int{25, 56, 19}, topology.Spilling},
		{"three of four", topology.Balancing{MinLocal: 4}, []topology.Candidate{c("c1", 3), c("c2", 30)}, []int{75, 25}, topology.Spilling},
		{"four of four", topology.Balancing{MinLocal: 4}, []topology.Candidate{c("c1", 4), c("c2", 30)}, []int{100, 0}, topology.OwnClusterFirst},
		{"one of four, and nowhere else", topology.Balancing{MinLocal: 4}, []topology.Candidate{c("c1", 1)}, []int{100}, topology.OwnClusterFirst},
		{"none of four", topology.Balancing{MinLocal: 4}, []topology.Candidate{c("c2", 1), c("c3", 1)}, []int{50, 50}, topology.ByReadyBackends},
		{"many", topology.Balancing{MinLocal: 1 << 16}, []topology.Candidate{c("c1", 1<<15), c("c2", 1<<20)}, []int{50, 50}, topology.Spilling},
		{"the nearest", topology.Balancing{Nearest: near}, []topology.Candidate{c("c2", 30), c("c3", 1)}, []int{0, 100}, topology.Nearest},
		{"the nearest has none", topology.Balancing{Nearest: near}, []topology.Candidate{c("c2", 30), c("c4", 1)}, []int{100, 0}, topology.Nearest},
		{"none is measured", topology.Balancing{Nearest: near}, []topology.Candidate{c("c4", 3), c("c5", 1)}, []int{75, 25}, topology.ByReadyBackends},
		{"the own cluster before the nearest", topology.Balancing{Nearest: near}, []topology.Candidate{c("c1", 1), c("c3", 9)}, []int{100, 0}, topology.OwnClusterFirst},
		{"spilling to the nearest", topology.Balancing{MinLocal: 2, Nearest: near}, []topology.Candidate{c("c1", 1), c("c2", 30), c("c3", 1)},
			[]int{50, 0, 50}, topology.Spilling},
		{"weights override", topology.Balancing{MinLocal: 9, Nearest: near, Weights: map[string]int{"c2": 3}}, []topology.Candidate{c("c1", 1), c("c2", 1)},
			[]int{25, 75}, topology.ByWeights},
	} {
		weights, by := tt.set.Weigh(tt.of)
		sum, got := 0, []int{}
		for _, w := range weights {
			sum += w
		}
		for _, w := range weights {
			got = append(got, (200*w+sum)/(2*sum))
		}
		if !slices.Equal(got, tt.want) || by != tt.by {
			t.Errorf("%s: %v %s; want %v %s", tt.name, got, by, tt.want, tt.by)
		}
	}
}

// A backend more never lowers the share of the own cluster, and moves no more than its part.
func TestSpillingIsSmooth(t *testing.T) {
	share := func(ready int) float64 {
		weights, _ := topology.Balancing{MinLocal: 10}.Weigh([]topology.Candidate{{ID: "c1", Ready: ready, Own: true}, {ID: "c2", Ready: 50}})
		return float64(weights[0]) / float64(weights[0]+weights[1])
	}
	for ready := 1; ready < 12; ready++ {
		if step := share(ready+1) - share(ready); step < 0 || step > 0.101 {
			t.Errorf("from %d to %d backends of 10: from %.3f to %.3f", ready, ready+1, share(ready), share(ready+1))
		}
	}
}

func TestNearestFirst(t *testing.T) {
	for _, tt := range []struct{ name, former, times, want string }{
		{"first measurement", "", "c2=30ms c3=10ms c4=20ms", "c3,c4,c2"},
		{"a fifth less", "c2,c3", "c2=30ms c3=25ms", "c2,c3"},
		{"more than a fifth less", "c2,c3", "c2=30ms c3=23ms", "c3,c2"},
		{"and back again", "c3,c2", "c2=23ms c3=23ms", "c3,c2"},
		{"less than 2 ms less", "c2,c3", "c2=3ms c3=1100us", "c2,c3"},
		{"more than 2 ms less", "c2,c3", "c2=3.2ms c3=1100us", "c3,c2"},
		{"one overtakes two that are about as near as each other", "c2,c3,c4", "c2=14ms c3=12.5ms c4=10.5ms", "c4,c2,c3"},
		{"a new one between them", "c2,c3", "c2=10ms c3=50ms c4=20ms", "c2,c4,c3"},
		{"one is not measured any more", "c2,c3", "c3=50ms", "c3"},
		{"none", "c2,c3", "", ""},
	} {
		rtt := map[string]time.Duration{}
		for _, text := range strings.Fields(tt.times) {
			id, d, _ := strings.Cut(text, "=")
			rtt[id], _ = time.ParseDuration(d) // of this table
		}
		former := strings.Split(tt.former, ",")
		if tt.former == "" {
			former = nil
		}
		got := topology.NearestFirst(rtt, former)
		if strings.Join(got, ",") != tt.want {
			t.Errorf("%s: %v; want %s", tt.name, got, tt.want)
		}
		if again := topology.NearestFirst(rtt, got); !slices.Equal(again, got) {
			t.Errorf("%s: %v, and with the same times then %v", tt.name, got, again)
		}
	}
}

func TestRoundTrips(t *testing.T) {
	to := func(cluster string, status submarinerv1.ConnectionStatus, average string) submarinerv1.Connection {
		return submarinerv1.Connection{Status: status, Endpoint: submarinerv1.EndpointSpec{ClusterID: cluster}, LatencyRTT: &submarinerv1.LatencyRTTSpec{Average: average}}
	}
	gateways := make([]submarinerv1.Gateway, 2)
	gateways[0].Status.Connections = []submarinerv1.Connection{
		to("c2", submarinerv1.Connected, "20ms"), to("c3", submarinerv1.ConnectionError, "1ms"), to("c4", submarinerv1.Connected, ""),
	}
	gateways[1].Status.Connections = []submarinerv1.Connection{to("c2", submarinerv1.Connected, "12ms"), {Status: submarinerv1.Connected}}
	if diff := cmp.Diff(map[string]time.Duration{"c2": 12 * time.Millisecond}, topology.RoundTrips(gateways)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestReadBalancing(t *testing.T) {
	for _, tt := range []struct {
		min, prefer, nearest string
		want                 topology.Balancing
		problems             []string
	}{
		{"4", "nearest", "c3,c2", topology.Balancing{MinLocal: 4, Nearest: []string{"c3", "c2"}}, nil},
		{"1", "weighted", "c3,c2", topology.Balancing{MinLocal: 1}, nil},
		{"0", "nearest", "", topology.Balancing{}, []string{`annotation pelago.io/min-local-backends is "0", not a number from 1 to 65536: it has no effect`}},
		{"all", "near", "c3", topology.Balancing{}, []string{
			`annotation pelago.io/min-local-backends is "all", not a number from 1 to 65536: it has no effect`,
			`annotation pelago.io/prefer is "near", neither nearest nor weighted: it has no effect`,
		}},
	} {
		got, problems := topology.ReadBalancing(map[string]string{
			"pelago.io/min-local-backends": tt.min, "pelago.io/prefer": tt.prefer, "pelago.io/nearest-clusters": tt.nearest,
		})
		if diff := cmp.Diff(tt.want, got) + cmp.Diff(tt.problems, problems); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", tt, diff)
		}
	}
}
