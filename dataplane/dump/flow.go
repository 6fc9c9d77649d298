package dump

import (
	"net/netip"
	"time"
)

// Role is the side of a flow that is on this node.
type Role string

// Roles.
const (
	RoleClient Role = "client" // a local pod opened it; its source is translated on the way out
	// a remote client opened it; its destination is translated on the way in
	RoleServer Role = "server"
)

// Tuple is one end-to-end view of a flow.
type Tuple struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
}

// Flow is a translated flow, or an endpoint-independent mapping, whose destinations are not valid.
type Flow struct {
	Role     Role   `json:"role"`
	Protocol string `json:"protocol"`
	// Opening is the tuple of its opener's packets as they reach this node's edge, Translated as
	// they leave it.
	Opening    Tuple `json:"opening"`
	Translated Tuple `json:"translated"`
	// Pod is the local address.
	Pod netip.Addr `json:"pod"`
	// Cluster and Node are the indexes of the far cluster and, once an answer came, of the far
	// node.
	Cluster uint16 `json:"cluster"`
	Node    uint16 `json:"node,omitempty"`
	// State is opening, established or closed for TCP, mapping for a mapping, active for the rest.
	State string `json:"state"`
	// Idle is the time since the last packet, in nanoseconds, at the kernel's resolution of about a
	// second.
	Idle time.Duration `json:"idle"`
}

// StateMapping is the state of a mapping.
const StateMapping = "mapping"

// FlowKind is what flows are counted by; the words are those of Flow.
type FlowKind struct {
	Role            Role
	Protocol, State string
}
