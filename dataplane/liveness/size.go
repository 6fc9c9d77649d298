package liveness

import "time"

// LargeProbe is the newest large probe to a peer.
type LargeProbe struct {
	// Size of the packet that it stands for, bytes; 0: none was sent yet.
	Size     int
	Answered bool
	// Sent is its age.
	Sent time.Duration
	// GSOHanded are the GSO probes that entered the node's stack, GSOPassed those that left it at
	// pelago0. Both wrap.
	GSOHanded, GSOPassed uint16
}

// Size is the result of the large probes of a path, in bytes of a pod's packet. Zero: not known
// yet.
type Size struct {
	// Full is the MTU of pelago0.
	Full int
	// Passes is the largest size that passes.
	Passes int
	// GSOLost: GSO packets as the peer's bursts become by GRO are dropped between the uplink and
	// pelago0 of this node.
	GSOLost bool
}

// BlackHole reports whether packets larger than Passes are lost.
func (s Size) BlackHole() bool { return s.Passes < s.Full }
