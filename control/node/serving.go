package node

import (
	"net/netip"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// A gateway comes and goes without a loss by overlaps: it is used (serves) only once the others know it, it goes on
// switching for a while after it was taken out of service, and for as long the others go on taking packets from it.

// introduction bounds how long a new gateway waits for remote gateways that do not answer: they may be down.
const introduction = 10 * time.Second

// tenure is what a node remembers of its own being a gateway.
type tenure struct {
	gateway bool
	since   time.Time
	// until: after the end of its tenure it goes on switching.
	until time.Time
	// serves: the remote gateways know this one, or did not say so in time.
	serves bool
}

// note takes in whether the node is a gateway now. resumed: an earlier process of this boot has introduced it already.
// It returns whether the tenure has just ended.
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

// introduce looks whether every remote gateway has answered a probe since the tenure began: a gateway answers only those
// that it takes packets from. waiting: to some of them no tunnel leads yet. It returns whether the node serves from now on.
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

// resumed says whether the NodeIndex of a node tells that it served in this boot.
func resumed(objs Objects, boot string) bool {
	n := ownIndex(objs)
	return n.Status.Serving && n.Status.BootID == boot
}

// wanted says whether the node is to be a gateway.
func wanted(objs Objects) bool { return topology.WantedGateways(objs.Nodes)[objs.Name] }

// farewells are the remote gateways that were taken out of service a while ago, and those of now.
type farewells struct {
	now  map[netip.Addr]dataplane.Peer
	left map[netip.Addr]farewell
}

type farewell struct {
	peer  dataplane.Peer
	until time.Time
}

// note takes in the peers and returns those gateways that packets are still taken from. One whose cluster is no longer
// accepted is not among them: revoking a cluster acts at once. some: one has left since the last call.
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

// takenFrom are the gateways that packets are taken from, by outer address, and the indexes of the clusters accepted.
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
