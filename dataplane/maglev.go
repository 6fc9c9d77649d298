package dataplane

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"math"
	"slices"
)

// primes are the sizes that a table may have.
var primes = []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071}

// leastSlots is the least size of a table for so many nodes: 100 slots for each of up to 20 nodes
// (Eisenbud et al., "Maglev", NSDI 2016, section 3.4), 40 for each of many. The shares of nodes
// with the same weight differ by one slot.
func leastSlots(nodes int) int { return max(min(100*nodes, 2000), 40*nodes) }

// Maglev builds the table of a service: slot → node index. weights gives the number of ready
// backends of each node; a node's share of the slots is in proportion to it. The same weights give
// the same table on every gateway. nil if no node has a backend.
func Maglev(weights map[uint16]int) []uint16 {
	var nodes []uint16
	heaviest := 0
	for node, w := range weights {
		if w > 0 {
			nodes = append(nodes, node)
			heaviest = max(heaviest, w)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	slices.Sort(nodes)
	size := primes[len(primes)-1]
	if i := slices.IndexFunc(primes, func(p int) bool { return p >= leastSlots(len(nodes)) }); i >= 0 {
		size = primes[i]
	}
	if len(nodes) == 1 {
		return []uint16{nodes[0]}
	}
	return fill(nodes, weights, float64(heaviest), size)
}

// fill builds a table of size slots, a prime, for nodes with weights above 0.
func fill(nodes []uint16, weights map[uint16]int, heaviest float64, size int) []uint16 {
	type claimant struct {
		next, skip    int
		credit, share float64
	}
	claimants := make([]claimant, len(nodes))
	for i, node := range nodes {
		claimants[i] = claimant{
			next: int(hash(node, 1) % uint64(size)), skip: int(hash(node, 2)%uint64(size-1)) + 1, share: float64(weights[node]) / heaviest,
		}
	}
	table := make([]uint16, size)
	for filled := 0; ; {
		for i := range claimants {
			c := &claimants[i]
			c.credit += c.share
			if c.credit < 1-math.SmallestNonzeroFloat32 {
				continue
			}
			c.credit--
			for table[c.next] != 0 {
				if c.next += c.skip; c.next >= size {
					c.next -= size
				}
			}
			table[c.next] = nodes[i]
			if filled++; filled == size {
				return table
			}
		}
	}
}

// VIPTable builds VIP.Slots. The weights are those of the targets; nil if none is above 0. It is a
// Maglev table over cluster indexes: a change of one cluster's weight moves few slots of the
// others.
func VIPTable(targets []VIPTarget, weights []int) []uint8 {
	of, position, heaviest := map[uint16]int{}, map[uint16]uint8{}, 0
	var clusters []uint16
	for i, t := range targets {
		if w := weights[i]; w > 0 {
			clusters = append(clusters, t.Cluster)
			of[t.Cluster], position[t.Cluster], heaviest = w, uint8(i), max(heaviest, w)
		}
	}
	if len(clusters) == 0 {
		return nil
	}
	slots := make([]uint8, VIPSlots)
	for i, cluster := range fill(clusters, of, float64(heaviest), VIPSlots) {
		slots[i] = position[cluster]
	}
	return slots
}

// MaglevCache keeps the tables of services and ClusterSetIPs of one reconcile for the next: most
// weights are the same. The nil cache builds every table. It is not safe for concurrent use.
type MaglevCache struct {
	nodes    Generations[string, []uint16]
	clusters Generations[string, []uint8]
}

// Begin starts a reconcile: tables that the former one did not use are dropped.
func (c *MaglevCache) Begin() {
	if c != nil {
		c.nodes.Begin()
		c.clusters.Begin()
	}
}

// Table returns Maglev(weights), which must not be changed.
func (c *MaglevCache) Table(weights map[uint16]int) []uint16 {
	if c == nil {
		return Maglev(weights)
	}
	key := make([]byte, 0, 6*len(weights))
	for _, node := range slices.Sorted(maps.Keys(weights)) {
		key = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(key, node), uint32(weights[node]))
	}
	return c.nodes.Get(string(key), func() []uint16 { return Maglev(weights) })
}

// VIPTable returns VIPTable(targets, weights), which must not be changed.
func (c *MaglevCache) VIPTable(targets []VIPTarget, weights []int) []uint8 {
	if c == nil {
		return VIPTable(targets, weights)
	}
	key := make([]byte, 0, 6*len(targets))
	for i, t := range targets {
		key = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(key, t.Cluster), uint32(weights[i]))
	}
	return c.clusters.Get(string(key), func() []uint8 { return VIPTable(targets, weights) })
}

func hash(node uint16, seed byte) uint64 {
	h := fnv.New64a()
	// fnv never fails to write.
	_, _ = h.Write([]byte{seed, byte(node >> 8), byte(node), seed ^ 0x5a})
	return h.Sum64()
}
