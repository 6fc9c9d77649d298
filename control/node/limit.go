package node

import "github.com/pelago-net/pelago/dataplane/cable"

// limited is the MTU of pelago0, at most mtu, with which packets fit through the wire of every gateway that they may meet: of
// this cluster and of the others.
func limited(objs Objects, mtu int) int {
	if !encrypted(objs.Config) {
		return mtu
	}
	for i := range objs.NodeIndexes {
		if s := &objs.NodeIndexes[i].Status; s.Gateway {
			mtu = cable.Limit(s.Wire, mtu)
		}
	}
	for p := range routedPeers(objs.Peers) {
		for _, g := range p.Spec.Gateways {
			mtu = cable.Limit(g.Identity, mtu)
		}
	}
	return mtu
}
