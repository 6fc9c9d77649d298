package loader

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Compile-time checks: the sizes in package dataplane are those of the kernel side.
var (
	_ = [dataplane.MaxGateways]uint16(bpf.PelagoGatewaySet{}.Nodes)
	_ = [dataplane.MaxGateways]bpf.PelagoRemoteGateway(bpf.PelagoCluster{}.Gateways)
	_ = [dataplane.MaxTunnels]uint32(bpf.PelagoRemoteGateway{}.Tunnel)
	_ = [dataplane.MaxBlocks]uint16(bpf.PelagoEgress{}.First)
	_ = [dataplane.MaxClusters / 64]uint64(bpf.PelagoPath{}.Unreachable)
	_ = [dataplane.RTTBuckets]uint32(bpf.PelagoPath{}.Histogram)
	_ = [dataplane.MaxTargets]bpf.PelagoVipTarget(bpf.PelagoVip{}.Targets)
	_ = [dataplane.VIPSlots + 3]uint8(bpf.PelagoVip{}.Slots)
	_ = [1]struct{}{}[dataplane.OverlayPort-uint16(bpf.PelagoOverlayOVERLAY_PORT)] // equal
)

// The kernel side holds addresses and ports in network order. These four keep the bytes as they are
// on the wire whatever the host's order is.

func be32(a netip.Addr) uint32 {
	if !a.IsValid() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func addr(v uint32) netip.Addr {
	if v == 0 {
		return netip.Addr{}
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

func be16(p uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], p)
	return binary.NativeEndian.Uint16(b[:])
}

func port(v uint16) uint16 { return be16(v) }

func flag(b bool) uint16 {
	if b {
		return 1
	}
	return 0
}

// secrets of a node, made once after boot: packets on their way carry them.
type secrets struct{ cookie, probeMark uint32 }

func encodeSettings(s dataplane.Settings, own secrets) bpf.PelagoNodeSettings {
	v := bpf.PelagoNodeSettings{
		Address: be32(s.Address), CableAddress: be32(s.CableAddress), Node: s.Node, Cluster: s.Cluster, Gateway: flag(s.Gateway),
		Mss: s.MSS, Cookie: own.cookie, ProbeMark: own.probeMark, Edge: s.Edge, OverlayToken: s.Overlay.Current,
		OverlayTokenOld: s.Overlay.Old, CableToken: s.Cable.Current, CableTokenOld: s.Cable.Old, Generation: s.Generation,
		Ready: flag(s.Ready), CablePort: be16(s.CablePort), Leaving: uint32(flag(s.Leaving)), Single: uint32(flag(s.Single)),
	}
	return v
}

func decodeSettings(v bpf.PelagoNodeSettings) dataplane.Settings {
	s := dataplane.Settings{
		Address: addr(v.Address), CableAddress: addr(v.CableAddress), Node: v.Node, Cluster: v.Cluster, Gateway: v.Gateway != 0,
		MSS: v.Mss, Overlay: dataplane.Tokens{Current: v.OverlayToken, Old: v.OverlayTokenOld},
		Cable:     dataplane.Tokens{Current: v.CableToken, Old: v.CableTokenOld},
		CablePort: port(v.CablePort), Edge: v.Edge, Generation: v.Generation, Ready: v.Ready != 0,
		Leaving: v.Leaving != 0, Single: v.Single != 0,
	}
	return s
}

func encodePrefix(p netip.Prefix) bpf.PelagoPrefix {
	return bpf.PelagoPrefix{Length: uint32(p.Bits()), Address: be32(p.Masked().Addr())}
}

func decodePrefix(v bpf.PelagoPrefix) netip.Prefix {
	a := addr(v.Address)
	if !a.IsValid() {
		a = netip.AddrFrom4([4]byte{})
	}
	return netip.PrefixFrom(a, int(v.Length))
}

func encodeHop(h dataplane.Hop) bpf.PelagoHop {
	return bpf.PelagoHop{Address: be32(h.Address), Next: be32(h.Next), Ifindex: h.Ifindex}
}

func decodeHop(v bpf.PelagoHop) dataplane.Hop {
	return dataplane.Hop{Address: addr(v.Address), Next: addr(v.Next), Ifindex: v.Ifindex}
}

func encodeGateways(nodes []uint16) bpf.PelagoGatewaySet {
	var g bpf.PelagoGatewaySet
	g.Count = uint32(copy(g.Nodes[:], nodes))
	return g
}

func decodeGateways(v bpf.PelagoGatewaySet) []uint16 {
	if v.Count == 0 {
		return nil
	}
	return append([]uint16(nil), v.Nodes[:min(int(v.Count), len(v.Nodes))]...)
}

func encodeCluster(gs []dataplane.RemoteGateway) bpf.PelagoCluster {
	var c bpf.PelagoCluster
	for i, g := range gs[:min(len(gs), dataplane.MaxGateways)] {
		v := bpf.PelagoRemoteGateway{Hop: encodeHop(g.Hop), Node: g.Node, Port: be16(g.Port)}
		v.Tunnels = uint32(copy(v.Tunnel[:], g.Tunnels))
		c.Gateways[i] = v
		c.Count++
	}
	return c
}

func decodeCluster(v bpf.PelagoCluster) []dataplane.RemoteGateway {
	var gs []dataplane.RemoteGateway
	for _, g := range v.Gateways[:min(int(v.Count), len(v.Gateways))] {
		r := dataplane.RemoteGateway{Hop: decodeHop(g.Hop), Node: g.Node, Port: port(g.Port)}
		if n := min(int(g.Tunnels), len(g.Tunnel)); n > 0 {
			r.Tunnels = slices.Clone(g.Tunnel[:n])
		}
		gs = append(gs, r)
	}
	return gs
}

func encodePeer(p dataplane.Peer) bpf.PelagoPeer {
	return bpf.PelagoPeer{Kind: uint16(p.Kind), Cluster: p.Cluster, Node: p.Node}
}

func decodePeer(v bpf.PelagoPeer) dataplane.Peer {
	return dataplane.Peer{Kind: dataplane.PeerKind(v.Kind), Cluster: v.Cluster, Node: v.Node}
}

func encodeSource(s dataplane.Source) bpf.PelagoSource {
	v := bpf.PelagoSource{EgressIp: be32(s.Egress), OwnIp: be32(s.Own), Ifindex: s.Ifindex}
	for flag, set := range map[bpf.PelagoSourceFlag]bool{
		bpf.PelagoSourceFlagSOURCE_HOST: s.Host, bpf.PelagoSourceFlagSOURCE_EXTERNAL: s.External, bpf.PelagoSourceFlagSOURCE_ROUTED: s.Routed,
		bpf.PelagoSourceFlagSOURCE_MAPPED: s.Mapped, bpf.PelagoSourceFlagSOURCE_OPEN: s.Open,
	} {
		if set {
			v.Flags |= uint32(flag)
		}
	}
	return v
}

func decodeSource(v bpf.PelagoSource) dataplane.Source {
	has := func(flag bpf.PelagoSourceFlag) bool { return v.Flags&uint32(flag) != 0 }
	return dataplane.Source{
		Egress: addr(v.EgressIp), Own: addr(v.OwnIp), Ifindex: v.Ifindex, Host: has(bpf.PelagoSourceFlagSOURCE_HOST),
		External: has(bpf.PelagoSourceFlagSOURCE_EXTERNAL), Routed: has(bpf.PelagoSourceFlagSOURCE_ROUTED),
		Mapped: has(bpf.PelagoSourceFlagSOURCE_MAPPED), Open: has(bpf.PelagoSourceFlagSOURCE_OPEN),
	}
}

func encodeEndpoint(e dataplane.Endpoint) bpf.PelagoEndpoint {
	return bpf.PelagoEndpoint{Ifindex: e.Ifindex, Mac: e.MAC, Datapath: uint16(e.Datapath)}
}

func decodeEndpoint(v bpf.PelagoEndpoint) dataplane.Endpoint {
	return dataplane.Endpoint{Ifindex: v.Ifindex, MAC: v.Mac, Datapath: dataplane.Datapath(v.Datapath)}
}

func encodeEgress(first []uint16) bpf.PelagoEgress {
	var e bpf.PelagoEgress
	e.Count = uint32(copy(e.First[:], first))
	return e
}

func decodeEgress(v bpf.PelagoEgress) []uint16 {
	return append([]uint16(nil), v.First[:min(int(v.Count), len(v.First))]...)
}

func encodeGlobal(g dataplane.Global) bpf.PelagoGlobal {
	v := bpf.PelagoGlobal{Kind: uint8(g.Kind), Node: g.Node, Pod: be32(g.Pod)}
	if g.Restricted {
		v.Flags = uint8(bpf.PelagoGlobalFlagGLOBAL_RESTRICTED)
	}
	return v
}

func decodeGlobal(v bpf.PelagoGlobal) dataplane.Global {
	return dataplane.Global{
		Kind: dataplane.GlobalKind(v.Kind), Node: v.Node, Pod: addr(v.Pod),
		Restricted: v.Flags&uint8(bpf.PelagoGlobalFlagGLOBAL_RESTRICTED) != 0,
	}
}

func encodeBlockKey(k dataplane.BlockKey) bpf.PelagoBlockKey {
	return bpf.PelagoBlockKey{Address: be32(k.Address), Block: uint32(k.First) / dataplane.BlockPorts}
}

func decodeBlockKey(v bpf.PelagoBlockKey) dataplane.BlockKey {
	return dataplane.BlockKey{Address: addr(v.Address), First: uint16(v.Block * dataplane.BlockPorts)}
}

func encodeServiceKey(k dataplane.ServiceKey) bpf.PelagoServiceKey {
	return bpf.PelagoServiceKey{Address: be32(k.Address), Port: be16(k.Port), Proto: k.Protocol}
}

func decodeServiceKey(v bpf.PelagoServiceKey) dataplane.ServiceKey {
	return dataplane.ServiceKey{Address: addr(v.Address), Port: port(v.Port), Protocol: v.Proto}
}

func encodeService(s dataplane.Service) bpf.PelagoService {
	return bpf.PelagoService{Backends: uint32(len(s.Backends)), Slots: uint32(len(s.Table)), Affinity: s.Affinity}
}

func encodeVIPRange(p netip.Prefix) bpf.PelagoVipRange {
	if !p.IsValid() {
		return bpf.PelagoVipRange{}
	}
	var mask [4]byte
	binary.BigEndian.PutUint32(mask[:], ^uint32(0)<<(32-p.Bits()))
	return bpf.PelagoVipRange{Address: be32(p.Masked().Addr()), Mask: binary.NativeEndian.Uint32(mask[:])}
}

func decodeVIPRange(v bpf.PelagoVipRange) netip.Prefix {
	if v.Mask == 0 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(addr(v.Address), bits.OnesCount32(v.Mask))
}

func encodeVIPPod(k dataplane.VIPPod) bpf.PelagoVipPodKey {
	return bpf.PelagoVipPodKey{Vip: encodeServiceKey(k.VIP), Pod: be32(k.Pod)}
}

func decodeVIPPod(k bpf.PelagoVipPodKey) dataplane.VIPPod {
	return dataplane.VIPPod{VIP: decodeServiceKey(k.Vip), Pod: addr(k.Pod)}
}

func encodeVIP(p dataplane.VIP) bpf.PelagoVip {
	v := bpf.PelagoVip{Count: uint32(len(p.Targets)), Affinity: p.Affinity}
	for i, t := range p.Targets {
		v.Targets[i] = bpf.PelagoVipTarget{Address: be32(t.Address), Cluster: t.Cluster}
	}
	for i := copy(v.Slots[:], p.Slots); i < len(v.Slots); i++ {
		v.Slots[i] = uint8(bpf.PelagoVipSlotVIP_NO_TARGET)
	}
	return v
}

func decodeVIP(v bpf.PelagoVip) dataplane.VIP {
	p := dataplane.VIP{Affinity: v.Affinity}
	for _, t := range v.Targets[:min(int(v.Count), len(v.Targets))] {
		p.Targets = append(p.Targets, dataplane.VIPTarget{Cluster: t.Cluster, Address: addr(t.Address)})
	}
	if v.Slots[0] != uint8(bpf.PelagoVipSlotVIP_NO_TARGET) {
		p.Slots = slices.Clone(v.Slots[:dataplane.VIPSlots])
	}
	return p
}
