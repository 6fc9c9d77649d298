package loader

import (
	"net/netip"
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/dataplane"
)

var equal = []cmp.Option{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty(),
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// The generators draw any value that the types allow, sense or nonsense: the maps keep what they
// are given.

func drawAddr(t *rapid.T, label string) netip.Addr {
	b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, label)
	if b[0]|b[1]|b[2]|b[3] == 0 {
		b[3] = 1 // 0.0.0.0 stands for "none"
	}
	return netip.AddrFrom4([4]byte(b))
}

func drawMaybe(t *rapid.T, label string) netip.Addr {
	if rapid.Bool().Draw(t, "no "+label) {
		return netip.Addr{}
	}
	return drawAddr(t, label)
}

func drawHop(t *rapid.T) dataplane.Hop {
	return dataplane.Hop{Address: drawAddr(t, "hop"), Next: drawAddr(t, "next hop"), Ifindex: rapid.Uint32().Draw(t, "device")}
}

func drawMap[K comparable, V any](t *rapid.T, label string, key func(*rapid.T) K, value func(*rapid.T) V) map[K]V {
	out := map[K]V{}
	for range rapid.IntRange(0, 4).Draw(t, label) {
		out[key(t)] = value(t)
	}
	return out
}

func drawState(t *rapid.T) dataplane.State {
	u16 := func(t *rapid.T) uint16 { return rapid.Uint16().Draw(t, "number") }
	address := func(t *rapid.T) netip.Addr { return drawAddr(t, "address") }
	tokens := func() dataplane.Tokens {
		token := rapid.Uint32Range(0, 1<<24-1)
		return dataplane.Tokens{Current: token.Draw(t, "token"), Old: token.Draw(t, "old token")}
	}
	block := rapid.Custom(func(t *rapid.T) uint16 { return 256 * rapid.Uint16Range(4, 255).Draw(t, "block") })
	return dataplane.State{
		Settings: dataplane.Settings{
			Address: drawAddr(t, "node"), CableAddress: drawAddr(t, "cable address"), Node: u16(t), Cluster: u16(t), Gateway: rapid.Bool().Draw(t, "gateway"), MSS: u16(t),
			Overlay: tokens(), Cable: tokens(), CablePort: u16(t), Ready: rapid.Bool().Draw(t, "ready"),
			Edge: rapid.Uint32().Draw(t, "edge"),
		},
		Gateways: rapid.SliceOfN(rapid.Uint16(), 0, dataplane.MaxGateways).Draw(t, "gateways"),
		Routes: drawMap(t, "routes", func(t *rapid.T) netip.Prefix {
			return netip.PrefixFrom(drawAddr(t, "prefix"), rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
		}, u16),
		Nodes: drawMap(t, "nodes", u16, drawHop),
		Clusters: drawMap(t, "clusters", func(t *rapid.T) uint16 { return rapid.Uint16Range(1, 1000).Draw(t, "cluster") },
			func(t *rapid.T) []dataplane.RemoteGateway {
				return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) dataplane.RemoteGateway {
					return dataplane.RemoteGateway{Hop: drawHop(t), Node: u16(t), Port: u16(t), Tunnels: rapid.SliceOfN(rapid.Uint32Min(1), 0, dataplane.MaxTunnels).Draw(t, "tunnels")}
				}), 0, dataplane.MaxGateways).Draw(t, "remote gateways")
			}),
		Peers: drawMap(t, "peers", address, func(t *rapid.T) dataplane.Peer {
			kind := rapid.SampledFrom([]dataplane.PeerKind{dataplane.PeerNode, dataplane.PeerGateway}).Draw(t, "kind")
			return dataplane.Peer{Kind: kind, Cluster: u16(t), Node: u16(t)}
		}),
		Sources: drawMap(t, "sources", address, func(t *rapid.T) dataplane.Source {
			return dataplane.Source{
				Egress: drawMaybe(t, "egress"), Own: drawMaybe(t, "own"), Ifindex: rapid.Uint32().Draw(t, "device"), Host: rapid.Bool().Draw(t, "host"),
				Mapped: rapid.Bool().Draw(t, "mapped"), Open: rapid.Bool().Draw(t, "open"),
			}
		}),
		Externals: drawMap(t, "externals", func(t *rapid.T) netip.Prefix {
			return netip.PrefixFrom(drawAddr(t, "prefix"), rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
		}, func(t *rapid.T) dataplane.Source {
			return dataplane.Source{External: rapid.Bool().Draw(t, "external"), Routed: rapid.Bool().Draw(t, "routed"), Ifindex: rapid.Uint32().Draw(t, "device")}
		}),
		Endpoints: drawMap(t, "endpoints", address, func(t *rapid.T) dataplane.Endpoint {
			datapath := rapid.SampledFrom([]dataplane.Datapath{dataplane.Strict, dataplane.Hybrid, dataplane.Fast})
			return dataplane.Endpoint{
				Ifindex: rapid.Uint32().Draw(t, "device"), MAC: [6]byte(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "MAC")), Datapath: datapath.Draw(t, "datapath"),
			}
		}),
		Egresses: drawMap(t, "egresses", address, func(t *rapid.T) []uint16 {
			blocks := rapid.SliceOfNDistinct(block, 0, dataplane.MaxBlocks, rapid.ID).Draw(t, "blocks")
			slices.Sort(blocks)
			return blocks
		}),
		Globals: drawMap(t, "globals", address, func(t *rapid.T) dataplane.Global {
			kind := rapid.SampledFrom([]dataplane.GlobalKind{dataplane.GlobalEgress, dataplane.GlobalService, dataplane.GlobalPod}).Draw(t, "kind")
			return dataplane.Global{Kind: kind, Node: u16(t), Pod: drawMaybe(t, "pod"), Restricted: rapid.Bool().Draw(t, "restricted")}
		}),
		Audiences: drawMap(t, "audiences", address, func(t *rapid.T) (set dataplane.ClusterSet) {
			set.Add(rapid.Uint16Range(0, dataplane.MaxClusters-1).Draw(t, "cluster"))
			return set
		}),
		Blocks: drawMap(t, "blocks", func(t *rapid.T) dataplane.BlockKey {
			return dataplane.BlockKey{Address: drawAddr(t, "egress IP"), First: block.Draw(t, "first port")}
		}, u16),
		Services: drawMap(t, "services", func(t *rapid.T) dataplane.ServiceKey {
			return dataplane.ServiceKey{Address: drawAddr(t, "service"), Port: u16(t), Protocol: rapid.Byte().Draw(t, "protocol")}
		}, func(t *rapid.T) dataplane.Service {
			backends := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) netip.AddrPort {
				return netip.AddrPortFrom(drawAddr(t, "backend"), u16(t))
			}), 0, 5).Draw(t, "backends")
			table := rapid.SliceOfN(rapid.Uint16Range(1, 9), 0, 300).Draw(t, "table")
			return dataplane.Service{Backends: backends, Table: table, Affinity: rapid.Uint32Range(0, 86400).Draw(t, "affinity")}
		}),
	}
}
