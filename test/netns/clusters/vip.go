package clusters

import (
	"net/netip"
	"slices"

	"github.com/pelago-net/pelago/dataplane"
)

// vipRange is the range of ClusterSetIPs.
var vipRange = netip.MustParsePrefix("243.0.0.0/8")

// VIP is a port of a ClusterSetIP that one cluster serves, at its own ClusterIP, which nothing
// translates: there is no kube-proxy.
type VIP struct {
	Backends map[*Pod]uint16 // ready pod → port
	Global   netip.Addr      // of the service
	Affinity uint32          // seconds
	Local    bool            // internalTrafficPolicy
}

// clusterSetIPs adds the ClusterSetIPs.
func (n *Node) clusterSetIPs(s *dataplane.State) {
	s.VIPRange, s.VIPs, s.Hairpins = vipRange, map[dataplane.ServiceKey]dataplane.VIP{}, map[netip.Addr]netip.Addr{}
	for key, v := range n.Cluster.VIPs {
		target := dataplane.VIPTarget{Cluster: n.Cluster.Index, Address: n.Cluster.clusterIP(20)}
		served := dataplane.Service{Affinity: v.Affinity}
		for p, port := range v.Backends {
			if !v.Local || p.Node == n {
				served.Backends = append(served.Backends, netip.AddrPortFrom(p.Address, port))
			}
		}
		slices.SortFunc(served.Backends, netip.AddrPort.Compare)
		vip := dataplane.VIP{Affinity: v.Affinity}
		if len(served.Backends) > 0 {
			vip.Targets = []dataplane.VIPTarget{target}
			vip.Slots = dataplane.VIPTable(vip.Targets, []int{1})
		}
		s.VIPs[key] = vip
		s.ServeVIP(key, served)
		if v.Global.IsValid() && !v.Local {
			s.Hairpins[target.Address] = v.Global
		}
	}
}
