// Package status derives what a node reports: the status of its NodeIndex, Gateway and RouteAgent
// objects, Events, the metrics of its connections, and which clusters are dead. It is pure: the
// daemon feeds it the tables that it has applied and what probes and the wire show, and writes the
// results.
package status

import (
	"cmp"
	"net/netip"
	"slices"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// Snapshot is the outcome of a reconcile.
type Snapshot struct {
	State   dataplane.State
	Objects tables.Objects
	// Gateway: the node acts as a gateway.
	Gateway bool
	// Fleeting: the devices of the wire, or its keys, change when this process ends.
	Fleeting bool
	// Rotating: the keys of the wire are being rotated.
	Rotating bool
	// Wire is what other gateways must know to reach this one (backend_config of the Endpoint).
	Wire  map[string]string
	Reach tables.Reach
	// Targets are the gateways that this node probes.
	Targets []Target
	// LeftOut are the pods of this node that have been left out for some time.
	LeftOut []tables.LeftOut
	// SelfTest is the result of the last self-test.
	SelfTest observe.SelftestReport
	// refused are the remote gateways that the wire cannot reach.
	refused []Target
	// made is one of this reconcile alone.
	made *byte
}

// NewSnapshot returns the outcome of a reconcile; fleeting is tables.Wire's. Of the pods left out,
// r has those that are to be reported.
func NewSnapshot(objs tables.Objects, r tables.Result, reach tables.Reach, fleeting bool) Snapshot {
	s := Snapshot{
		State: r.State, Objects: objs, Gateway: r.Gateway, Fleeting: fleeting, Rotating: r.Rotation.Left > 0, Wire: r.Wire, Reach: reach,
		LeftOut: r.LeftOut, made: new(byte),
	}
	s.Targets, s.refused = targets(objs, r)
	return s
}

// Target is a gateway that this node probes.
type Target struct {
	// Address is the outer address, which identifies its path.
	Address netip.Addr

	cluster, gateway string
	// peer and spec are set for gateways of other clusters.
	peer   *pelagov1alpha1.Peer
	spec   pelagov1alpha1.PeerGateway
	fabric netip.Addr
	// discovered is the result of NAT discovery; the zero value without one.
	discovered natt.Reachability
	// refused is why the wire cannot reach it; the target has no address then.
	refused string
}

func (t Target) remote() bool { return t.peer != nil }

// targets returns the gateways that this node probes, those of its own cluster first, and the
// remote ones that its wire cannot reach.
func targets(objs tables.Objects, r tables.Result) (out, refused []Target) {
	own := map[uint16]netip.Addr{}
	for _, index := range r.State.Gateways {
		if hop, ok := r.State.Nodes[index]; ok {
			own[index] = hop.Address
		}
	}
	for i := range objs.NodeIndexes {
		n := &objs.NodeIndexes[i]
		if a, ok := own[uint16(n.Spec.Index)]; ok {
			out = append(out, Target{cluster: objs.Config.ClusterID, gateway: n.Name, Address: a})
		}
	}
	if !r.State.Settings.Gateway {
		return out, nil
	}
	for p, g := range tables.RemoteGateways(objs.Peers) {
		t := Target{cluster: p.Name, gateway: g.Name, peer: p, spec: g, discovered: objs.Discovered[tables.GatewayName(p.Name, g.Name)]}
		t.fabric, _ = netip.ParseAddr(g.FabricAddress) // without one the wire has no status of it
		a, err := tables.CableAddress(objs.Config, g)
		if err != nil {
			t.refused = cmp.Or(t.discovered.Reason, err.Error())
			refused = append(refused, t)
			continue
		}
		t.Address = a
		out = append(out, t)
	}
	return out, refused
}

// AwaitsTunnel reports whether a gateway of an accepted peer is missing in the tables because no
// tunnel leads to it yet.
func (s Snapshot) AwaitsTunnel() bool {
	for p := range tables.RoutedPeers(s.Objects.Peers) {
		if len(s.State.Clusters[uint16(p.Spec.ClusterIndex)]) < min(len(p.Spec.Gateways), dataplane.MaxGateways) {
			return true
		}
	}
	return false
}

// Connected reports whether a node that has just started can carry packets: at a gateway, once
// tunnels lead to all remote gateways and one of each cluster answers probes. Whether such a
// gateway is itself ready does not matter: of two that start at the same time, each would wait for
// the other.
func (s Snapshot) Connected(paths map[netip.Addr]liveness.Path) bool {
	if !s.Gateway {
		return true
	}
	if s.AwaitsTunnel() {
		return false
	}
	for _, gateways := range s.State.Clusters {
		answers := func(g dataplane.RemoteGateway) bool {
			p := paths[g.Hop.Address]
			return p.Replies > 0 && !p.Suspect()
		}
		if !slices.ContainsFunc(gateways, answers) {
			return false
		}
	}
	return true
}

// Unreachable returns the remote clusters of which no gateway answers, or which have none that the
// wire can reach, by index.
func (s Snapshot) Unreachable(paths map[netip.Addr]liveness.Path) map[uint16]bool {
	out := map[uint16]bool{}
	for p := range tables.RoutedPeers(s.Objects.Peers) {
		out[uint16(p.Spec.ClusterIndex)] = true
	}
	for index, gateways := range s.State.Clusters {
		out[index] = !slices.ContainsFunc(gateways, func(g dataplane.RemoteGateway) bool {
			p := paths[g.Hop.Address]
			return !p.Suspect() && p.Ready
		})
	}
	return out
}

// Lossy returns, by index, the remote clusters all of whose answering gateways are reached by lossy
// paths.
func (s Snapshot) Lossy(paths map[netip.Addr]liveness.Path) map[uint16]bool {
	out := map[uint16]bool{}
	for index, gateways := range s.State.Clusters {
		answering := slices.DeleteFunc(slices.Clone(gateways), func(g dataplane.RemoteGateway) bool {
			p := paths[g.Hop.Address]
			return p.Suspect() || !p.Ready
		})
		out[index] = len(answering) > 0 && !slices.ContainsFunc(answering, func(g dataplane.RemoteGateway) bool { return !paths[g.Hop.Address].Lossy })
	}
	return out
}
