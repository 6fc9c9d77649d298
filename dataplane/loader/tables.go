package loader

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// Tables reads what the programs of this node decide by.
func (l *Loader) Tables() (trace.Tables, error) {
	t := trace.Tables{PortsInUse: map[trace.Packet]int{}, Mappings: map[netip.AddrPort]netip.AddrPort{}}
	var err error
	if t.State, err = l.Read(); err != nil {
		return t, err
	}
	if t.Paths, err = l.Paths(); err != nil {
		return t, err
	}
	var advertised bpf.PelagoAdvertised
	if err := l.objs.Standings.Lookup(uint32(0), &advertised); err != nil {
		return t, fmt.Errorf("read map standings: %w", err)
	}
	t.Unreachable = advertised.Unreachable
	var lossy bpf.PelagoClusterSet
	if err := l.objs.OwnLosses.Lookup(uint32(0), &lossy); err != nil {
		return t, fmt.Errorf("read map own_losses: %w", err)
	}
	t.Lossy = lossy.Words
	if t.LossyAt, err = readMap(l.objs.GatewayLosses, addr, func(v bpf.PelagoClusterSet) dataplane.ClusterSet { return v.Words }); err != nil {
		return t, err
	}
	t.Confirmed = max(0, bootClock()-time.Duration(advertised.Confirmed))
	err = l.dump(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		if v.Primary != 0 && v.State&dying == 0 && v.Role == uint8(bpf.PelagoFlowRoleFLOW_CLIENT) {
			t.PortsInUse[trace.Packet{
				Protocol: k.Proto, Source: netip.AddrPortFrom(addr(v.Saddr), 0), Destination: netip.AddrPortFrom(addr(v.Daddr), port(v.Dport)),
			}]++
			if isMapping(k) {
				t.Mappings[netip.AddrPortFrom(addr(k.Saddr), port(k.Sport))] = netip.AddrPortFrom(addr(v.Saddr), port(v.Sport))
			}
		}
		return true
	})
	return t, err
}
