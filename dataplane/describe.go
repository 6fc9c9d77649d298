package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
)

// Describe returns the entry in words.
func (s Source) Describe() string {
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

// Describe returns the entry in words.
func (k ServiceKey) Describe() string {
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(k.Address, k.Port), ProtocolName(k.Protocol))
}

// Describe returns the entry in words.
func (p Peer) Describe() string {
	switch p.Kind {
	case PeerNode:
		return fmt.Sprintf("node %d of this cluster", p.Node)
	case PeerGateway:
		return fmt.Sprintf("gateway %d of cluster %d", p.Node, p.Cluster)
	}
	return "none"
}

// Describe returns the entry in words.
func (g Global) Describe() string {
	switch g.Kind {
	case GlobalEgress:
		return "egress IP"
	case GlobalService:
		return "exported service"
	case GlobalPod:
		if g.Pod.IsValid() {
			return fmt.Sprintf("pod %s on node %d", g.Pod, g.Node)
		}
		return fmt.Sprintf("pod on node %d", g.Node)
	case GlobalExternal:
		if g.Pod.IsValid() {
			return fmt.Sprintf("endpoint %s outside the cluster", g.Pod)
		}
		return "endpoint outside the cluster, served by gateways"
	}
	return "none"
}

// Describe returns the entry in words.
func (v VIP) Describe() string {
	if len(v.Targets) == 0 {
		return "no cluster"
	}
	var targets []string
	for _, t := range v.Targets {
		targets = append(targets, fmt.Sprintf("cluster %d at %s", t.Cluster, t.Address))
	}
	return strings.Join(targets, ", ")
}

// Protocols, by their IANA numbers.
const (
	ProtocolICMP = 1
	ProtocolTCP  = 6
	ProtocolUDP  = 17
	ProtocolSCTP = 132
)

// ProtocolName is the name of an IANA protocol number, in lower case.
func ProtocolName(p uint8) string {
	switch p {
	case ProtocolICMP:
		return "icmp"
	case ProtocolTCP:
		return "tcp"
	case ProtocolUDP:
		return "udp"
	case ProtocolSCTP:
		return "sctp"
	}
	return fmt.Sprint(p)
}
