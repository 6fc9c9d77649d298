package node

import (
	"net/netip"

	"github.com/pelago-net/pelago/dataplane"
)

// crowded is the share of an egress IP's ports, towards one remote endpoint, from which on more blocks are asked for.
const crowded = 0.6

// demand works out how many port blocks the node needs.
type demand struct {
	exhausted uint64 // counter at the last look
	// blocks is the number wanted, by egress IP; nil before the first sweep.
	blocks map[netip.Addr]int
}

// update takes the result of a sweep: the largest number of flows towards one remote endpoint per egress IP, the blocks
// that the node has, and the counter of new flows that found no port.
func (d *demand) update(crowding map[netip.Addr]int, have map[netip.Addr][]uint16, exhausted uint64) {
	dropped := exhausted > d.exhausted
	d.exhausted = exhausted
	d.blocks = map[netip.Addr]int{}
	for ip, first := range have {
		need := int(float64(crowding[ip])/(crowded*dataplane.BlockPorts)) + 1
		if dropped && crowding[ip] > len(first)*dataplane.BlockPorts/2 {
			need = max(need, 2*len(first))
		}
		// What is held is asked for again, else the agent would take it back, and at once be asked for it. Fewer are wanted only
		// when half would do.
		if n := len(first); need < n && 2*need > n {
			need = n
		}
		d.blocks[ip] = min(need, dataplane.MaxBlocks)
	}
}
