package observe

import (
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/dataplane/dump"
)

// View is what the daemon knows of the gateways that this node probes. Names are bounded: clusters
// and gateways.
type View struct {
	// Cluster, Node and Address are this node's own; Driver is the wire of the clusterset.
	Cluster, Node, Address, Driver string
	// State of this node as a gateway: one of States.
	State string
	// Peers are the gateways of this cluster and, at a gateway, those of all others.
	Peers []Peer
	// Isolated: no gateway has answered this node for some seconds.
	Isolated bool
	// Reports counts how often state was queued for the Gateway and RouteAgent objects.
	Reports uint64
	// Of a gateway: when its Gateway object was made, how many gateways this cluster has, and its
	// global addresses.
	Created  time.Time
	Gateways int
	Ranges   []Range
	// SelfTest counts the kinds of paths of this node's pods by the outcome of the last self-test;
	// nil: there was none.
	SelfTest map[SelftestOutcome]int
	// Flows is what the last sweep counted.
	Flows map[dump.FlowKind]int
}

// States of a node as a gateway.
var States = []string{"none", "joining", "serving", "draining"}

// Peer is a gateway that this node probes.
type Peer struct {
	Cluster, Gateway string
	// Path is its outer address, under which the kernel keeps the path.
	Path netip.Addr
	// Up is the verdict on the path, with hysteresis.
	Up bool
	// MTU is the largest packet of a pod that passes, in bytes; 0: not known yet. BlackHole: larger
	// ones should, and are lost.
	MTU       int
	BlackHole bool
	// GSOLost: see liveness.Size.
	GSOLost bool
	// Connection is set for gateways of other clusters.
	Connection *Connection
}

// Connection is the state of a remote gateway in the Gateway object.
type Connection struct {
	IP, Status  string
	Established time.Time // zero: it is not
	// Counted: the wire counts bytes.
	Counted          bool
	RxBytes, TxBytes uint64
}

// Range is one GlobalCIDR: its number of usable addresses, and how many are allocated to each kind
// of owner.
type Range struct {
	CIDR                                   string
	Usable, Egress, ClusterEgress, Ingress int
}
