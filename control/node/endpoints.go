package node

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// endpointRetries bounds how often the device of a pod that has not sent a packet yet is looked up
// after retry.
const endpointRetries = 15

// endpoints caches the devices of pods as long as they exist: the bridge and neighbour entries by
// which they are found expire.
type endpoints struct {
	known map[types.UID]dataplane.Endpoint
	tries map[types.UID]int
}

// find returns the endpoints of the pods that need one, by address. again: that of a new pod is not
// known yet.
func (e *endpoints) find(objs tables.Objects, d tables.PodDatapaths) (found map[netip.Addr]dataplane.Endpoint, again bool, err error) {
	pods := map[netip.Addr]*corev1.Pod{}
	var addresses []netip.Addr
	for i := range objs.Pods {
		p := &objs.Pods[i]
		if a, ok := tables.PodIP(p); ok && d.NeedsDevice(objs, p) {
			pods[a], addresses = p, append(addresses, a)
		}
	}
	known, tries := map[types.UID]dataplane.Endpoint{}, map[types.UID]int{}
	defer func() { e.known, e.tries = known, tries }()
	if len(pods) == 0 {
		return nil, false, nil
	}
	if found, err = netdev.Endpoints(addresses); err != nil {
		return nil, false, err
	}
	for a, p := range pods {
		v, ok := found[a]
		if !ok {
			if v, ok = e.known[p.UID]; ok {
				_, gone := netlink.LinkByIndex(int(v.Ifindex))
				ok = gone == nil
			}
		}
		if !ok {
			tries[p.UID] = e.tries[p.UID] + 1
			again = again || tries[p.UID] <= endpointRetries
			continue
		}
		v.Datapath = d.Of(p)
		found[a], known[p.UID] = v, v
	}
	return found, again, nil
}
