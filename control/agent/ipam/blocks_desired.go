package ipam

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// Established is the minimum time for which a NAT keeps an idle TCP connection (RFC 5382 REQ-5). A
// node that has been out of contact for that long can have no live flow left.
const Established = 7440 * time.Second

// KeepBlocks as BlockNode.Want: the demand of the node is unknown, and it keeps its blocks.
const KeepBlocks = -1

// BlockNode is the node whose blocks of one pool are planned.
type BlockNode struct {
	// UID is that of the Node object that exists under the name now; empty if none exists.
	UID string
	// BootID is what the daemon of that very Node object reports; empty if unknown.
	BootID string
	// Index numbers the node within its cluster; it spreads nodes over the pool's IPs.
	Index int32
	// Want is the desired number of blocks, or KeepBlocks; Minimum is that without demand.
	Want, Minimum int
}

// Block is a lease of a node of this name.
type Block struct {
	Name  string
	Ports PortSpace
	State pelagov1alpha1.BlockState
	// NodeUID is the owner; a Node of the same name with another UID is another node.
	NodeUID  string
	Released bool
	// Acked: every ready gateway has the block in its tables.
	Acked bool
	// OrphanedAt is zero as long as the owner is not missed. OrphanBootID is the owner's last boot;
	// empty if unknown.
	OrphanedAt   time.Time
	OrphanBootID string
}

// BlockPlan lists the changes of blocks, by name.
type BlockPlan struct {
	Activate []string // Pending → Active
	Release  []string // Active → Releasing
	Orphan   []string // set orphanedAt: the owner is missed
	Delete   []string // the ports are free
	// Fenced are those of Delete that their owner has not released, but whose flows are known to be
	// gone.
	Fenced []string
	// Missing is how many blocks to lease, Demanded how many of them exceed the node's minimum, Order
	// the IPs to search, best first.
	Missing, Demanded int
	Order             []netip.Addr
	// Wait is the time until the next orphan's end; 0 if none exists.
	Wait time.Duration
}

// DesiredBlocks plans the blocks of one pool that nodes of one name have; ips are the pool's
// addresses.
//
// Ports change their owner only if the owner released them, never opened a flow in them (Pending),
// rebooted (its flows died with the kernel's tables), or was not seen for as long as a flow can
// live.
func DesiredBlocks(node BlockNode, ips []netip.Addr, blocks []Block, now time.Time) BlockPlan {
	var p BlockPlan
	var held []Block
	for _, b := range blocks {
		mine := node.UID != "" && b.NodeUID == node.UID
		switch {
		case !b.OrphanedAt.IsZero():
			p.orphan(b, node, now)
		case b.Released:
			p.Delete = append(p.Delete, b.Name)
		case !mine && b.State == pelagov1alpha1.BlockPending:
			p.Delete = append(p.Delete, b.Name)
			p.Fenced = append(p.Fenced, b.Name)
		case !mine:
			p.Orphan = append(p.Orphan, b.Name)
		case b.State == pelagov1alpha1.BlockReleasing: // the node's turn
		case !slices.Contains(ips, b.Ports.IP):
			p.giveUp(b)
		default:
			held = append(held, b)
		}
	}
	p.keep(held, node.Want)
	p.Demanded = min(p.Missing, max(0, node.Want-node.Minimum))
	p.Order = order(ips, held, node.Index)
	return p
}

// orphan plans a block whose owner is missing. The mark is never removed: if the owner is alive, it
// has stopped using the block.
func (p *BlockPlan) orphan(b Block, node BlockNode, now time.Time) {
	rebooted := node.UID != b.NodeUID && b.OrphanBootID != "" && node.BootID != "" && node.BootID != b.OrphanBootID
	left := b.OrphanedAt.Add(Established).Sub(now)
	if rebooted || left <= 0 {
		p.Delete = append(p.Delete, b.Name)
		p.Fenced = append(p.Fenced, b.Name)
		return
	}
	if p.Wait == 0 || left < p.Wait {
		p.Wait = left
	}
}

// giveUp ends a lease: at once if no flow was opened in it, else after the node has released it.
func (p *BlockPlan) giveUp(b Block) {
	if b.State == pelagov1alpha1.BlockPending {
		p.Delete = append(p.Delete, b.Name)
	} else {
		p.Release = append(p.Release, b.Name)
	}
}

// keep keeps the blocks in use before pending ones, and those of the IP with the most blocks before
// others.
func (p *BlockPlan) keep(held []Block, want int) {
	if want == KeepBlocks {
		want = len(held)
	}
	n := perIP(held)
	slices.SortFunc(held, func(a, b Block) int {
		return cmp.Or(
			-cmp.Compare(rank(a), rank(b)),
			-cmp.Compare(n[a.Ports.IP], n[b.Ports.IP]),
			a.Ports.IP.Compare(b.Ports.IP),
			cmp.Compare(a.Ports.First, b.Ports.First),
		)
	})
	for i, b := range held {
		switch {
		case i >= want:
			p.giveUp(b)
		case b.State == pelagov1alpha1.BlockPending && b.Acked:
			p.Activate = append(p.Activate, b.Name)
		}
	}
	p.Missing = max(0, want-len(held))
}

func rank(b Block) int {
	if b.State == pelagov1alpha1.BlockActive {
		return 1
	}
	return 0
}

func perIP(held []Block) map[netip.Addr]int {
	n := map[netip.Addr]int{}
	for _, b := range held {
		n[b.Ports.IP]++
	}
	return n
}

// order lists the IPs to search for more blocks of a node: first those where it has blocks already
// (a pod keeps one egress IP, so a node should have few), then round from one that differs from
// node to node.
func order(ips []netip.Addr, held []Block, index int32) []netip.Addr {
	if len(ips) == 0 {
		return nil
	}
	start := int(max(0, index-1)) % len(ips)
	round := slices.Concat(ips[start:], ips[:start])
	n := perIP(held)
	slices.SortStableFunc(round, func(a, b netip.Addr) int { return -cmp.Compare(n[a], n[b]) })
	return round
}

// Minimum is the number of blocks of a pool that a node has without demand: its share of a quarter
// of the pool, so that a burst needs no new lease, bounded by leastBlocks and mostBlocks. The
// number of nodes is rounded up to a power of two, so that a new node seldom changes the minimum of
// the others.
func Minimum(ips, nodes int) int {
	return min(max(ips*pelagov1alpha1.BlocksPerIP/(4*shares(nodes)), leastBlocks), mostBlocks)
}

// shares rounds the number of nodes up to a power of two.
func shares(nodes int) int { return 1 << bits.Len(uint(max(nodes, 1)-1)) }

// Granted bounds the missing blocks that are leased: those that exceed the minimum only while a
// quarter of the pool stays free. Minimums are shares of a quarter, so a node that joins later finds
// its own, whatever the others demand.
func (p *BlockPlan) Granted(free, ips int) int {
	reserve := ips * pelagov1alpha1.BlocksPerIP / 4
	return p.Missing - p.Demanded + min(p.Demanded, max(0, free-reserve))
}

// WantedBlocks is the desired number of blocks of a pool on a node: none if the pool is a
// GlobalEgressIP that no pod on the node uses, else the minimum, or more if the node daemon demands
// more. Every node uses the cluster's pool, for its own flows.
func WantedBlocks(pool pelagov1alpha1.EgressPool, minimum int, demand []pelagov1alpha1.BlockDemand, pods []topology.EgressPod, table *topology.EgressTable) int {
	if pool != topology.ClusterPool && !used(pool, pods, table) {
		return 0
	}
	want := minimum
	for _, d := range demand {
		if d.Pool == pool {
			want = max(want, int(d.Blocks))
		}
	}
	return want
}

func used(pool pelagov1alpha1.EgressPool, pods []topology.EgressPod, table *topology.EgressTable) bool {
	for _, pod := range pods {
		if table.Choose(pod).Pool == pool {
			return true
		}
	}
	return false
}

// runs reports whether a pod can open flows from an address of its own: it is bound to a node and
// has not finished.
func runs(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && !pod.Spec.HostNetwork && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
