package node

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

func TestQuiet(t *testing.T) {
	cases := map[string]struct {
		until time.Duration // packets pass so long
		took  time.Duration
	}{
		"nothing passes":     {0, still},
		"the flows move":     {300 * time.Millisecond, 300*time.Millisecond + still},
		"they do not":        {time.Hour, longest},
		"at the last moment": {longest - still/2, longest},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				took, err := quiet(func() (uint64, error) { return uint64(1 + min(time.Since(begin), c.until)), nil })
				if err != nil || took < c.took-countEvery || took > c.took+countEvery {
					t.Errorf("took %s, %v; want %s", took, err, c.took)
				}
			})
		})
	}
	broken := errors.New("the map is gone")
	if _, err := quiet(func() (uint64, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

func TestSettled(t *testing.T) {
	one, two := netip.MustParseAddr("241.0.128.1"), netip.MustParseAddr("241.0.128.2")
	answers := loader.Path{Probes: 9, Replies: 9}
	silent := loader.Path{Probes: 9, Replies: 3, Open: 6, OldestOpen: time.Second}
	cases := map[string]struct {
		node    bool // no gateway
		tunnels []netip.Addr
		paths   map[netip.Addr]loader.Path
		want    bool
	}{
		"a node that is no gateway":            {node: true, want: true},
		"no tunnel":                            {},
		"one of two tunnels":                   {tunnels: []netip.Addr{one}, paths: map[netip.Addr]loader.Path{one: answers}},
		"nothing known of the paths":           {tunnels: []netip.Addr{one, two}},
		"probed, and no answer yet":            {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]loader.Path{one: {Probes: 2, Open: 2}}},
		"answers from before, and silence":     {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]loader.Path{one: silent, two: silent}},
		"one gateway of the cluster answers":   {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]loader.Path{one: silent, two: answers}, want: true},
		"one answers, and is not ready itself": {tunnels: []netip.Addr{one, two}, paths: map[netip.Addr]loader.Path{one: answers, two: {}}, want: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objs, _ := encryptedWorld("n1")
			snap := snapshot{objs: objs, gateway: !c.node, state: dataplane.State{Clusters: map[uint16][]dataplane.RemoteGateway{}}}
			index := uint16(objs.Peers[0].Spec.ClusterIndex)
			for _, a := range c.tunnels {
				snap.state.Clusters[index] = append(snap.state.Clusters[index], dataplane.RemoteGateway{Hop: dataplane.Hop{Address: a}})
			}
			if got := settled(snap, c.paths); got != c.want {
				t.Errorf("settled: %v, want %v", got, c.want)
			}
		})
	}
}
