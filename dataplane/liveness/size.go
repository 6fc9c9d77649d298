package liveness

import "time"

// LargeProbe is the newest large probe to a peer.
type LargeProbe struct {
	// Size of the packet that it stands for, bytes; 0: none was sent yet.
	Size     int
	Answered bool
	// Sent is its age.
	Sent time.Duration
}

// Size is the result of the large probes of a path, in bytes of a pod's packet. Zero: not known
// yet.
type Size struct {
	// Full is the MTU of pelago0.
	Full int
	// Passes is the largest size that passes.
	Passes int
}

// BlackHole reports whether packets larger than Passes are lost.
func (s Size) BlackHole() bool { return s.Passes < s.Full }
