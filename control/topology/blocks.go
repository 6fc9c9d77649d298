package topology

import (
	"cmp"
	"net/netip"
	"slices"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// PortRange is the ports First … First+pelagov1alpha1.BlockPorts-1 of one egress IP.
type PortRange struct {
	IP    netip.Addr
	First uint16
}

// UsablePorts lists the ports of a pool in which a node may open flows, by address and port: those
// of its Active blocks. A block of an earlier Node object of the same name, an orphaned one and a
// released one are not usable.
func UsablePorts(blocks []pelagov1alpha1.PortBlock, nodeUID string, pool pelagov1alpha1.EgressPool) []PortRange {
	var ports []PortRange
	for i := range blocks {
		b := &blocks[i]
		if b.Spec.State != pelagov1alpha1.BlockActive || b.Spec.NodeUID != nodeUID || b.Spec.Pool != pool ||
			b.Spec.OrphanedAt != nil || b.Status.Released || b.DeletionTimestamp != nil {
			continue
		}
		ip, err := netip.ParseAddr(b.Spec.EgressIP)
		if err != nil {
			continue
		}
		ports = append(ports, PortRange{IP: ip, First: uint16(b.Spec.FirstPort)})
	}
	slices.SortFunc(ports, func(a, b PortRange) int {
		return cmp.Or(a.IP.Compare(b.IP), cmp.Compare(a.First, b.First))
	})
	return ports
}
