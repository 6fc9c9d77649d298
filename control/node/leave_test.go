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
		until, wait time.Duration // packets pass, and wait, so long
		stall       time.Duration // each look takes so long
		took        time.Duration
	}{
		"nothing passes":        {took: still},
		"the flows move":        {until: 300 * time.Millisecond, took: 300*time.Millisecond + still},
		"packets wait":          {until: 100 * time.Millisecond, wait: 900 * time.Millisecond, took: 900*time.Millisecond + still},
		"it goes on":            {until: time.Hour, took: longest},
		"until the last moment": {until: longest - still/2, took: longest},
		"a process that stands": {stall: 100 * time.Millisecond, took: still + 10*100*time.Millisecond},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				took, err := quiet(func() (uint64, bool, error) {
					time.Sleep(c.stall) // in synctest: no time passes
					at := time.Since(begin)
					return uint64(min(at, c.until)), at < c.wait, nil
				})
				if err != nil || took < c.took-2*countEvery || took > c.took+2*countEvery {
					t.Errorf("took %s, %v; want %s", took, err, c.took)
				}
			})
		})
	}
	broken := errors.New("the map is gone")
	if _, err := quiet(func() (uint64, bool, error) { return 0, false, broken }); !errors.Is(err, broken) {
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
