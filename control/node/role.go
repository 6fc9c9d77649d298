package node

import (
	"net/netip"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// Gateways change without loss because their service overlaps: a new one is used (serves) only once
// the others know it; a drained one leaves only once another is seen to serve, and then forwards
// for drainTime, in which the remote gateways accept packets from it.

const (
	// introduction bounds how long a new gateway waits for replies of remote gateways, which may be
	// down.
	introduction = 10 * time.Second
	// drainTime is how long a node forwards after it ceased to be a gateway, and how long remote
	// gateways accept packets from it: until every node and every remote cluster has been notified.
	drainTime = 30 * time.Second
)

// role is that of this node as a gateway.
type role struct {
	gateway bool
	since   time.Time
	// until is the end of draining.
	until time.Time
	// serves: all remote gateways know this one, or introduction has passed.
	serves bool
}

func (r *role) current(now time.Time) status.Role {
	switch {
	case r.gateway && r.serves:
		return status.RoleServing
	case r.gateway:
		return status.RoleJoining
	case r.isDraining(now):
		return status.RoleDraining
	}
	return status.RoleNone
}

// isDraining reports whether the node is no gateway any more and still forwards.
func (r *role) isDraining(now time.Time) bool { return now.Before(r.until) }

// update records whether the node is a gateway and reports whether the role has just ended.
// resumed: an earlier process of this boot was a gateway that served.
func (r *role) update(gateway, resumed bool, now time.Time) (ended bool) {
	ended = r.gateway && !gateway
	switch {
	case ended:
		r.until, r.serves = now.Add(drainTime), false
	case gateway && !r.gateway:
		r.since, r.serves = now, resumed
	}
	r.gateway = gateway
	return ended
}

// introduce reports whether the node serves from now on: every remote gateway has answered a probe
// since the role began. A gateway answers only those that it accepts packets from. waiting: some of
// them have no tunnel yet.
func (r *role) introduce(remote map[uint16][]dataplane.RemoteGateway, waiting bool, paths map[netip.Addr]liveness.Path, now time.Time) (begins bool) {
	if !r.gateway || r.serves {
		return false
	}
	known := !waiting
	for _, gateways := range remote {
		for _, g := range gateways {
			p := paths[g.Hop.Address]
			known = known && p.Replies > 0 && p.Seen < now.Sub(r.since)
		}
	}
	r.serves = known || now.Sub(r.since) > introduction
	return r.serves
}

// resumed reports whether the node has served as a gateway in this boot, by its NodeIndex.
func resumed(objs tables.Objects, boot string) bool {
	n := tables.OwnIndex(objs)
	return n.Status.Serving && n.Status.BootID == boot
}

// drainingPeers are the present remote gateways, and those that have left within drainTime.
type drainingPeers struct {
	current map[netip.Addr]dataplane.Peer
	left    map[netip.Addr]drainingPeer
}

type drainingPeer struct {
	peer  dataplane.Peer
	until time.Time
}

// update records the peers and returns the former gateways from which packets are still accepted.
// Those of a cluster that is no longer accepted are not among them: revoking a cluster acts at
// once. some: one has left since the last call.
func (f *drainingPeers) update(c config.Config, peers []pelagov1alpha1.Peer, now time.Time) (draining map[netip.Addr]dataplane.Peer, some bool) {
	current, clusters := tables.AcceptedGateways(c, peers)
	for a, peer := range f.current {
		if _, still := current[a]; !still {
			if f.left == nil {
				f.left = map[netip.Addr]drainingPeer{}
			}
			f.left[a] = drainingPeer{peer, now.Add(drainTime)}
			some = true
		}
	}
	f.current = current
	draining = map[netip.Addr]dataplane.Peer{}
	for a, l := range f.left {
		if _, back := current[a]; back || !clusters[l.peer.Cluster] || !now.Before(l.until) {
			delete(f.left, a)
			continue
		}
		draining[a] = l.peer
	}
	return draining, some
}
