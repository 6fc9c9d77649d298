package dump

import "github.com/pelago-net/pelago/bpf"

// Counter counts the packets with one verdict at one hook.
type Counter struct {
	Hook string `json:"hook"` // edge-out, uplink-in, uplink-xdp, …
	// the word of enum verdict in bpf/types.h, for example drop-bad-token
	Verdict string `json:"verdict"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Dropped reports whether the packets ended there.
func (c Counter) Dropped() bool {
	v, ok := bpf.ParseVerdict(c.Verdict)
	return ok && v.Dropped()
}
