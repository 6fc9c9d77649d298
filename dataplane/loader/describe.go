package loader

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/pelago-net/pelago/dataplane"
)

// Entries of the maps for people.

func describeSource(s dataplane.Source) string {
	text := "no egress IP"
	switch {
	case s.Own.IsValid():
		text = fmt.Sprintf("global IP %s", s.Own)
	case s.Egress.IsValid():
		text = fmt.Sprintf("egress IP %s", s.Egress)
	}
	switch {
	case s.Open:
		text += ", mapping and filtering of UDP independent of the endpoint"
	case s.Mapped:
		text += ", mapping of UDP independent of the endpoint"
	}
	if s.Host {
		return text + ", an address of the node"
	}
	return fmt.Sprintf("%s, device %d", text, s.Ifindex)
}

func describeService(k dataplane.ServiceKey) string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Address, k.Port), protocolName(k.Protocol))
}

func describePeer(p dataplane.Peer) string {
	switch p.Kind {
	case dataplane.PeerNode:
		return fmt.Sprintf("node %d of this cluster", p.Node)
	case dataplane.PeerGateway:
		return fmt.Sprintf("gateway %d of cluster %d", p.Node, p.Cluster)
	}
	return "none"
}

func describeGlobal(g dataplane.Global) string {
	switch g.Kind {
	case dataplane.GlobalEgress:
		return "egress IP"
	case dataplane.GlobalService:
		return "exported service"
	case dataplane.GlobalPod:
		if g.Pod.IsValid() {
			return fmt.Sprintf("pod %s on node %d", g.Pod, g.Node)
		}
		return fmt.Sprintf("pod on node %d", g.Node)
	case dataplane.GlobalExternal:
		if g.Pod.IsValid() {
			return fmt.Sprintf("endpoint %s outside the cluster", g.Pod)
		}
		return "endpoint outside the cluster, served by gateways"
	}
	return "none"
}

func describeVIP(v dataplane.VIP) string {
	if len(v.Targets) == 0 {
		return "no cluster"
	}
	var targets []string
	for _, t := range v.Targets {
		targets = append(targets, fmt.Sprintf("cluster %d at %s", t.Cluster, t.Address))
	}
	return strings.Join(targets, ", ")
}
