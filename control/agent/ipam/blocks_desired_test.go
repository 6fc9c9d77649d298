package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/control/topology"
)

const (
	pending   = pelagov1alpha1.BlockPending
	active    = pelagov1alpha1.BlockActive
	releasing = pelagov1alpha1.BlockReleasing
)

var (
	byValue = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	now     = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	a1, a2  = netip.MustParseAddr("120.1.0.1"), netip.MustParseAddr("120.1.0.2")
	a3      = netip.MustParseAddr("120.1.0.3")
)

// block makes a lease of node u1, changed by the options.
func block(name string, ip netip.Addr, state pelagov1alpha1.BlockState, options ...func(*ipam.Block)) ipam.Block {
	b := ipam.Block{Name: name, Ports: ipam.PortSpace{IP: ip, First: 1024}, State: state, NodeUID: "u1"}
	for _, o := range options {
		o(&b)
	}
	return b
}

func acked(b *ipam.Block)    { b.Acked = true }
func released(b *ipam.Block) { b.Released = true }

func orphaned(since time.Duration, boot string) func(*ipam.Block) {
	return func(b *ipam.Block) { b.OrphanedAt, b.OrphanBootID = now.Add(-since), boot }
}

func TestDesired(t *testing.T) {
	two := ipam.BlockNode{UID: "u1", BootID: "b1", Index: 1, Want: 2, Minimum: 2}
	want := func(n int) ipam.BlockNode {
		return ipam.BlockNode{UID: "u1", BootID: "b1", Index: 1, Want: n, Minimum: 2}
	}
	back := func(boot string) ipam.BlockNode { return ipam.BlockNode{UID: "u2", BootID: boot, Index: 9, Want: 0} }
	for _, tc := range []struct {
		name   string
		node   ipam.BlockNode
		blocks []ipam.Block
		want   ipam.BlockPlan
	}{
		{name: "a new node", node: two, want: ipam.BlockPlan{Missing: 2}},
		{name: "waiting for gateways", node: two, blocks: []ipam.Block{block("a", a1, pending), block("b", a1, pending)}},
		{name: "all gateways have it", node: two, blocks: []ipam.Block{block("a", a1, pending, acked), block("b", a1, active)},
			want: ipam.BlockPlan{Activate: []string{"a"}}},
		{name: "demand grows", node: want(5), blocks: []ipam.Block{block("a", a1, active), block("b", a1, pending)}, want: ipam.BlockPlan{Missing: 3, Demanded: 3}},
		{name: "demand falls: of the IP with fewer blocks", node: want(2),
			blocks: []ipam.Block{block("a", a1, active), block("b", a2, active), block("c", a2, active)}, want: ipam.BlockPlan{Release: []string{"a"}}},
		{name: "demand falls: a pending one just goes", node: want(1),
			blocks: []ipam.Block{block("a", a1, pending, acked), block("b", a1, active)}, want: ipam.BlockPlan{Delete: []string{"a"}}},
		{name: "the need is not known", node: want(ipam.KeepBlocks), blocks: []ipam.Block{block("a", a1, active), block("b", a2, pending, acked)},
			want: ipam.BlockPlan{Activate: []string{"b"}}},
		{name: "the address left the pool", node: two, blocks: []ipam.Block{block("a", a3, active), block("b", a3, pending), block("c", a1, active)},
			want: ipam.BlockPlan{Release: []string{"a"}, Delete: []string{"b"}, Missing: 1}},
		{name: "draining", node: two, blocks: []ipam.Block{block("a", a1, releasing)}, want: ipam.BlockPlan{Missing: 2}},
		{name: "drained", node: two, blocks: []ipam.Block{block("a", a1, releasing, released)}, want: ipam.BlockPlan{Delete: []string{"a"}, Missing: 2}},
		{name: "released by a slow node after it was asked no more", node: two, blocks: []ipam.Block{block("a", a1, active, released)},
			want: ipam.BlockPlan{Delete: []string{"a"}, Missing: 2}},
		{name: "the node is gone", blocks: []ipam.Block{block("a", a1, active), block("b", a1, releasing), block("c", a1, pending), block("d", a1, releasing, released)},
			want: ipam.BlockPlan{Orphan: []string{"a", "b"}, Delete: []string{"c", "d"}, Fenced: []string{"c"}}},
		{name: "another node has its name", node: back("b2"), blocks: []ipam.Block{block("a", a1, active)}, want: ipam.BlockPlan{Orphan: []string{"a"}}},
		{name: "an orphan, one second too early", blocks: []ipam.Block{block("a", a1, active, orphaned(7439*time.Second, "b1"))},
			want: ipam.BlockPlan{Wait: time.Second}},
		{name: "an orphan whose flows have ended", blocks: []ipam.Block{block("a", a1, active, orphaned(7440*time.Second, ""))},
			want: ipam.BlockPlan{Delete: []string{"a"}, Fenced: []string{"a"}}},
		{name: "back after a reboot", node: back("b2"), blocks: []ipam.Block{block("a", a1, active, orphaned(time.Minute, "b1"))},
			want: ipam.BlockPlan{Delete: []string{"a"}, Fenced: []string{"a"}}},
		{name: "back without a reboot", node: back("b1"), blocks: []ipam.Block{block("a", a1, active, orphaned(time.Minute, "b1"))},
			want: ipam.BlockPlan{Wait: ipam.Established - time.Minute}},
		{name: "back, its boot not reported yet", node: back(""), blocks: []ipam.Block{block("a", a1, active, orphaned(time.Minute, "b1"))},
			want: ipam.BlockPlan{Wait: ipam.Established - time.Minute}},
		{name: "back after a boot that nobody knew", node: back("b2"), blocks: []ipam.Block{block("a", a1, active, orphaned(time.Minute, ""))},
			want: ipam.BlockPlan{Wait: ipam.Established - time.Minute}},
		{name: "an orphan does not release itself: the daemon that says so may be another machine's", node: back("b1"),
			blocks: []ipam.Block{block("a", a1, active, orphaned(time.Minute, "b1"), released)}, want: ipam.BlockPlan{Wait: ipam.Established - time.Minute}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ipam.DesiredBlocks(tc.node, []netip.Addr{a1, a2}, tc.blocks, now)
			got.Order = nil
			if diff := cmp.Diff(tc.want, got, byValue); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	ips := []netip.Addr{a1, a2, a3}
	for _, tc := range []struct {
		name   string
		index  int32
		blocks []ipam.Block
		want   []netip.Addr
	}{
		{name: "the first node", index: 1, want: []netip.Addr{a1, a2, a3}},
		{name: "the second node", index: 2, want: []netip.Addr{a2, a3, a1}},
		{name: "round", index: 4, want: []netip.Addr{a1, a2, a3}},
		{name: "where it has blocks", index: 1, blocks: []ipam.Block{block("a", a3, active), block("b", a2, pending), block("c", a3, active)},
			want: []netip.Addr{a3, a2, a1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := ipam.BlockNode{UID: "u1", Index: tc.index, Want: 5}
			if diff := cmp.Diff(tc.want, ipam.DesiredBlocks(node, ips, tc.blocks, now).Order, byValue); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// 2,000 nodes have two blocks of an 8-IP pool each, evenly spread and each on one IP.
func TestNodesSpreadOverThePool(t *testing.T) {
	var ips []netip.Addr
	for i := range byte(8) {
		ips = append(ips, netip.AddrFrom4([4]byte{120, 1, 0, 1 + i}))
	}
	var space ipam.Space
	perIP := map[netip.Addr]int{}
	const nodes = 8 * pelagov1alpha1.BlocksPerIP / 2
	for index := int32(1); index <= nodes; index++ {
		plan := ipam.DesiredBlocks(ipam.BlockNode{UID: "u", Index: index, Want: 2}, ips, nil, now)
		got := space.Next(plan.Order, plan.Missing)
		if len(got) != 2 || got[0].IP != got[1].IP {
			t.Fatalf("node %d has %v", index, got)
		}
		perIP[got[0].IP]++
	}
	for ip, n := range perIP {
		if n != nodes/8 {
			t.Errorf("%d nodes on %s, want %d", n, ip, nodes/8)
		}
	}
	if got := space.Next(ips, 1); got != nil {
		t.Errorf("a full pool gives %v", got)
	}
}

// Ports are taken from a present owner only if it has released them, and from a missing one only
// after a reboot or a timeout.
func TestPortsAreFenced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		node := ipam.BlockNode{
			UID: rapid.SampledFrom([]string{"", "u1", "u2"}).Draw(t, "uid"), BootID: rapid.SampledFrom([]string{"", "b1", "b2"}).Draw(t, "boot"),
			Index: rapid.Int32Range(1, 10).Draw(t, "index"), Want: rapid.IntRange(ipam.KeepBlocks, 4).Draw(t, "want"),
		}
		ips := rapid.SampledFrom([][]netip.Addr{nil, {a1}, {a1, a2}}).Draw(t, "pool")
		byName := map[string]ipam.Block{}
		var list []ipam.Block
		for i := range rapid.IntRange(0, 6).Draw(t, "blocks") {
			b := block(fmt.Sprint(i), rapid.SampledFrom([]netip.Addr{a1, a2, a3}).Draw(t, "ip"),
				rapid.SampledFrom([]pelagov1alpha1.BlockState{pending, active, releasing}).Draw(t, "state"))
			b.Released, b.Acked = rapid.Bool().Draw(t, "released"), rapid.Bool().Draw(t, "acked")
			b.NodeUID = rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "owner")
			if rapid.Bool().Draw(t, "orphaned") {
				orphaned(time.Duration(rapid.IntRange(0, 8000).Draw(t, "since"))*time.Second, rapid.SampledFrom([]string{"", "b1"}).Draw(t, "last boot"))(&b)
			}
			byName[b.Name] = b
			list = append(list, b)
		}
		plan := ipam.DesiredBlocks(node, ips, list, now)
		for _, name := range plan.Delete {
			b := byName[name]
			rested := !b.OrphanedAt.IsZero() && now.Sub(b.OrphanedAt) >= ipam.Established
			rebooted := !b.OrphanedAt.IsZero() && node.UID != b.NodeUID && node.BootID != "" && b.OrphanBootID != "" && node.BootID != b.OrphanBootID
			released := b.Released && b.OrphanedAt.IsZero()
			unused := b.State == pending && b.OrphanedAt.IsZero()
			if !rested && !rebooted && !released && !unused {
				t.Fatalf("%+v loses its ports", b)
			}
			if (rested || rebooted) && !slices.Contains(plan.Fenced, name) {
				t.Fatalf("%+v loses its ports without a look at the live objects", b)
			}
		}
		for _, name := range plan.Activate {
			if b := byName[name]; !b.Acked || b.NodeUID != node.UID || !b.OrphanedAt.IsZero() || b.State != pending {
				t.Fatalf("%+v becomes active", b)
			}
		}
		seen := map[string]bool{}
		for _, name := range slices.Concat(plan.Activate, plan.Release, plan.Orphan, plan.Delete) {
			if seen[name] {
				t.Fatalf("two things are done to %s: %+v", name, plan)
			}
			seen[name] = true
		}
		if len(plan.Order) != len(ips) {
			t.Fatalf("the order %v is not one of %v", plan.Order, ips)
		}
	})
}

func TestSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var space ipam.Space
		have := map[ipam.PortSpace]bool{}
		ips := []netip.Addr{a1, a2}
		ports := rapid.Custom(func(t *rapid.T) ipam.PortSpace {
			return ipam.PortSpace{IP: rapid.SampledFrom(ips).Draw(t, "ip"), First: rapid.Int32Range(0, 255).Draw(t, "n")*256 + rapid.SampledFrom([]int32{0, 0, 0, 1}).Draw(t, "off")}
		})
		t.Repeat(map[string]func(*rapid.T){
			"next": func(t *rapid.T) {
				n := rapid.IntRange(0, 300).Draw(t, "n")
				got := space.Next(ips, n)
				if want := min(n, 2*pelagov1alpha1.BlocksPerIP-len(have)); len(got) != want {
					t.Fatalf("got %d blocks of %d, want %d", len(got), n, want)
				}
				for _, p := range got {
					if have[p] || p.First < 1024 || p.First > 65280 || p.First%256 != 0 {
						t.Fatalf("gave out %v", p)
					}
					have[p] = true
				}
			},
			"take": func(t *rapid.T) {
				p := ports.Draw(t, "ports")
				want := !have[p] && p.First >= 1024 && p.First%256 == 0
				if got := space.Take(p); got != want {
					t.Fatalf("take %v: got %v, want %v", p, got, want)
				}
				if want {
					have[p] = true
				}
			},
			"release": func(t *rapid.T) {
				p := ports.Draw(t, "ports")
				space.Release(p)
				delete(have, p)
			},
			"": func(t *rapid.T) {
				if got := space.Free(ips); got != 2*pelagov1alpha1.BlocksPerIP-len(have) {
					t.Fatalf("%d free, want %d", got, 2*pelagov1alpha1.BlocksPerIP-len(have))
				}
			},
		})
	})
}

func TestWant(t *testing.T) {
	pool := pelagov1alpha1.EgressPool{Namespace: "ns1", Name: "db-pods"}
	demand := []pelagov1alpha1.BlockDemand{{Pool: topology.ClusterPool, Blocks: 5}, {Pool: pool, Blocks: 1}}
	table := topology.NewEgressTable(nil, selecting(pool, "db"), nil)
	db, web := pod("ns1", "db"), pod("ns1", "web")
	for _, tc := range []struct {
		name   string
		pool   pelagov1alpha1.EgressPool
		demand []pelagov1alpha1.BlockDemand
		pods   []topology.EgressPod
		want   int
	}{
		{name: "the cluster's pool", pool: topology.ClusterPool, want: 2},
		{name: "the node needs more", pool: topology.ClusterPool, demand: demand, want: 5},
		{name: "no pod uses the pool", pool: pool, demand: demand, pods: []topology.EgressPod{web}, want: 0},
		{name: "a pod uses the pool; less than the minimum is no demand", pool: pool, demand: demand, pods: []topology.EgressPod{web, db}, want: 2},
	} {
		if got := ipam.WantedBlocks(tc.pool, 2, tc.demand, tc.pods, table); got != tc.want {
			t.Errorf("%s: got %d, want %d", tc.name, got, tc.want)
		}
	}
}

// Demand leaves a quarter of the pool to nodes that have no block yet; the minimum has no reserve.
func TestGranted(t *testing.T) {
	for _, tt := range []struct {
		what                      string
		held, demand, free, grant int
	}{
		{"the minimum", 0, 0, 252, 4},
		{"the minimum, of the reserve", 0, 0, 3, 4},
		{"demand, with room", 4, 100, 248, 96},
		{"demand, up to the reserve", 4, 250, 100, 37},
		{"demand, in the reserve", 100, 200, 63, 0},
		{"the minimum alone, in the reserve", 1, 200, 40, 3},
		{"no demand left", 100, 100, 40, 0},
	} {
		var blocks []ipam.Block
		for i := range tt.held {
			blocks = append(blocks, block(fmt.Sprint(i), a1, active))
		}
		node := ipam.BlockNode{UID: "u1", BootID: "b1", Index: 1, Want: max(4, tt.demand), Minimum: 4}
		plan := ipam.DesiredBlocks(node, []netip.Addr{a1}, blocks, now)
		if got := plan.Granted(tt.free, 1); got != tt.grant {
			t.Errorf("%s: %d blocks are granted, want %d", tt.what, got, tt.grant)
		}
	}
}

func TestMinimum(t *testing.T) {
	for _, tt := range []struct {
		what       string
		ips, nodes int
		want       int
	}{
		{"the default pool, two nodes", 8, 2, 48},
		{"the default pool, ten nodes", 8, 10, 31},
		{"the default pool, sixteen nodes: the same", 8, 16, 31},
		{"the default pool, seventeen nodes", 8, 17, 15},
		{"the default pool, a thousand nodes", 8, 1000, 2},
		{"one address, three nodes", 1, 3, 15},
		{"no address yet", 0, 3, 2},
		{"no node yet", 8, 0, 48},
	} {
		if got := ipam.Minimum(tt.ips, tt.nodes); got != tt.want {
			t.Errorf("%s: %d blocks, want %d", tt.what, got, tt.want)
		}
	}
}
