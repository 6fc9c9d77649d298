package dump

import "net/netip"

// Service is an exported port of this cluster as this node's programs see it.
type Service struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	ClientIP bool           `json:"clientIP"`
	// Affinity is the time for which a client keeps its backend, in seconds.
	Affinity uint32 `json:"affinitySeconds,omitempty"`
	// Backends are the ready pods on this node.
	Backends []netip.AddrPort `json:"backends"`
	// Weights are those of the nodes, sorted by index; only gateways have them.
	Weights []NodeWeight `json:"weights,omitempty"`
}

// NodeWeight is the share of the new flows that go to a node, 0–1.
type NodeWeight struct {
	Node  uint16  `json:"node"` // index
	Share float64 `json:"share"`
}
