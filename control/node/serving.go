package node

import (
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// Gateways change without loss because their service overlaps: a new one is used (serves) only once the others know it; a
// drained one leaves only once another is seen to serve, and then keeps switching for the time drain, in which the remote
// gateways accept packets from it.

// introduction bounds how long a new gateway waits for the answers of remote gateways, which may be down.
const introduction = 10 * time.Second

// tenure is the gateway role of this node.
type tenure struct {
	gateway bool
	since   time.Time
	// until is the end of draining: after the role has ended the node keeps switching.
	until time.Time
	// serves: all remote gateways know this one, or introduction has passed.
	serves bool
}

// note records whether the node is a gateway now and returns whether the role has just ended. resumed: an earlier process
// of this boot was a gateway that served.
func (t *tenure) note(gateway, resumed bool, now time.Time) (ended bool) {
	ended = t.gateway && !gateway
	switch {
	case ended:
		t.until, t.serves = now.Add(drain), false
	case gateway && !t.gateway:
		t.since, t.serves = now, resumed
	}
	t.gateway = gateway
	return ended
}

// introduce returns whether the node serves from now on: every remote gateway has answered a probe since the role began. A
// gateway answers only those that it accepts packets from. waiting: some of them have no tunnel yet.
func (t *tenure) introduce(remote map[uint16][]dataplane.RemoteGateway, waiting bool, paths map[netip.Addr]loader.Path, now time.Time) (begins bool) {
	if !t.gateway || t.serves {
		return false
	}
	known := !waiting
	for _, gateways := range remote {
		for _, g := range gateways {
			p := paths[g.Hop.Address]
			known = known && p.Replies > 0 && p.Seen < now.Sub(t.since)
		}
	}
	t.serves = known || now.Sub(t.since) > introduction
	return t.serves
}

// resumed reports whether the node has served as a gateway in this boot, by its NodeIndex.
func resumed(objs Objects, boot string) bool {
	n := ownIndex(objs)
	return n.Status.Serving && n.Status.BootID == boot
}

// wanted reports whether this node is to be a gateway.
func wanted(objs Objects) bool { return wantedGateways(objs)[objs.Name] }

// wantedGateways are the nodes that are to be gateways, by what this node knows of them. Of one that takes over from
// others, its report does not suffice: it must answer this node's probes. Of one that is to leave the report suffices: the
// node itself decides when it can, and the programs steer around it if it has died.
func wantedGateways(objs Objects) map[string]bool {
	reported := map[string]*pelagov1alpha1.NodeIndex{}
	for i := range objs.NodeIndexes {
		reported[objs.NodeIndexes[i].Name] = &objs.NodeIndexes[i]
	}
	nodes := make(map[string]*corev1.Node, len(objs.Nodes))
	for i := range objs.Nodes {
		nodes[objs.Nodes[i].Name] = &objs.Nodes[i]
	}
	return topology.WantedGateways(objs.Nodes, func(name string) bool {
		node, index := nodes[name], reported[name]
		if index == nil || !topology.GatewayServing(node, index) {
			return false
		}
		_, drained := topology.Drained(node)
		return name == objs.Name || drained || !topology.IsGateway(node) || objs.Answering[name]
	})
}

// answering are the other gateways of the cluster that work, by their answers to probes: connected, and none of the
// clusters that this node reaches is unreachable for them.
func (l *links) answering(snap snapshot, unreachable map[uint16]bool) map[string]bool {
	out := map[string]bool{}
	for _, t := range snap.targets {
		w := l.ways[t.address]
		if t.far() || w == nil || w.status != submarinerv1.Connected {
			continue
		}
		out[t.gateway] = true
		for cluster := range snap.state.Clusters {
			if !unreachable[cluster] && !w.path.Reaches(cluster) {
				delete(out, t.gateway)
			}
		}
	}
	return out
}

// farewells are the remote gateways that have left recently, and the present ones.
type farewells struct {
	now  map[netip.Addr]dataplane.Peer
	left map[netip.Addr]farewell
}

type farewell struct {
	peer  dataplane.Peer
	until time.Time
}

// note records the peers and returns the former gateways from which packets are still accepted. Those of a cluster that is
// no longer accepted are not among them: revoking a cluster acts at once. some: one has left since the last call.
func (f *farewells) note(c config.Config, peers []pelagov1alpha1.Peer, now time.Time) (leaving map[netip.Addr]dataplane.Peer, some bool) {
	current, clusters := takenFrom(c, peers)
	for a, peer := range f.now {
		if _, still := current[a]; !still {
			if f.left == nil {
				f.left = map[netip.Addr]farewell{}
			}
			f.left[a] = farewell{peer, now.Add(drain)}
			some = true
		}
	}
	f.now = current
	leaving = map[netip.Addr]dataplane.Peer{}
	for a, l := range f.left {
		if _, back := current[a]; back || !clusters[l.peer.Cluster] || !now.Before(l.until) {
			delete(f.left, a)
			continue
		}
		leaving[a] = l.peer
	}
	return leaving, some
}

// takenFrom are the gateways from which packets are accepted, by outer address, and the indexes of the accepted clusters.
func takenFrom(c config.Config, peers []pelagov1alpha1.Peer) (gateways map[netip.Addr]dataplane.Peer, clusters map[uint16]bool) {
	gateways, clusters = map[netip.Addr]dataplane.Peer{}, map[uint16]bool{}
	for p := range routedPeers(peers) {
		cluster := uint16(p.Spec.ClusterIndex)
		clusters[cluster] = true
		for _, g := range p.Spec.Gateways {
			if a, err := cableAddress(c, g); err == nil {
				gateways[a] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: cluster, Node: uint16(g.NodeIndex)}
			}
		}
	}
	return gateways, clusters
}
