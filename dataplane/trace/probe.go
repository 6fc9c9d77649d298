package trace

import (
	"net/netip"

	"github.com/pelago-net/pelago/dataplane/dump"
)

// Probe is a packet to follow. It is recognised by Marker, which no translation changes: the
// sequence number of a TCP SYN, the first bytes of the payload of others.
type Probe struct {
	Packet Packet `json:"packet"`
	Marker uint32 `json:"marker"`
}

// Sighting is a probe, or its answer, at a device.
type Sighting struct {
	Device string `json:"device"`
	// Out: it left by the device, else it came in.
	Out bool `json:"out"`
	// Answer: it answers the probe.
	Answer bool   `json:"answer"`
	Packet Packet `json:"packet"`
	// From and To are the outer addresses of an overlay or cable packet.
	From *netip.Addr `json:"from,omitempty"`
	To   *netip.Addr `json:"to,omitempty"`
}

// Watched is what a node observed during Watch.
type Watched struct {
	Sightings []Sighting `json:"sightings"`
	// Drops counts all packets that the programs dropped meanwhile, not only the probe.
	Drops []dump.Counter `json:"drops"`
}
