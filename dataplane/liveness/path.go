// Package liveness holds what is known of the path to a peer, and the rules by which the programs
// judge it (bpf/health.h). It is plain Go: package loader reads paths from the kernel, package
// probe sends the probes.
package liveness

import (
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Path is the liveness state of one peer. Ages are relative to the time of reading; what never
// happened is as old as the last boot.
type Path struct {
	// Probed reports whether this node probes the peer. A gateway does not probe nodes; their
	// probes show that they live.
	Probed          bool
	Probes, Replies uint64
	// Ages of the last reply, the last packet on the path, the peer's last probe, and this node's
	// last probe.
	Seen, Used, Heard, Sent time.Duration
	// RTT is that of the last reply; SRTT and RTTVar are smoothed (RFC 6298).
	RTT, SRTT, RTTVar time.Duration
	// Loss is the share of probes without a reply, 0–1, averaged over LIVENESS_LOSS_WINDOW of
	// bpf/types.h.
	Loss float64
	// Lossy: packets take other paths because of its loss.
	Lossy bool
	// Open is the number of probes since the last answered one, OldestOpen the age of the oldest
	// that the ring holds.
	Open       int
	OldestOpen time.Duration
	// The peer's tables, from its last reply: complete, number of changes, time since its daemon
	// confirmed them.
	Ready      bool
	Generation uint32
	Age        time.Duration
	// Histogram counts replies by RTT: bucket n those from 2^(n-1) to below 2^n µs, the last one
	// all longer ones.
	Histogram [dataplane.RTTBuckets]uint32

	noReply     bool // the peer, a node, reports that it gets no replies
	unreachable [dataplane.MaxClusters / 64]uint64
}

// Reaches reports whether the peer, a gateway of this cluster, gets replies from any gateway of a
// remote cluster.
func (p Path) Reaches(cluster uint16) bool {
	word := int(cluster) / 64
	return word >= len(p.unreachable) || p.unreachable[word]>>(cluster%64)&1 == 0
}

// WithUnreachable returns the path of a gateway that does not reach a remote cluster.
func (p Path) WithUnreachable(cluster uint16) Path {
	p.unreachable[int(cluster)/64%len(p.unreachable)] |= 1 << (cluster % 64)
	return p
}

// DeadAfter is how long a suspect path is silent, beyond its round-trip time, until it is dead:
// three probes of an idle path.
const DeadAfter = time.Duration(bpf.PelagoLivenessLIVENESS_GONE)

// Suspect reports whether packets are steered around the path: path_suspect_at() of bpf/health.h.
func (p Path) Suspect() bool {
	need := int(bpf.PelagoLivenessLIVENESS_UNANSWERED)
	if p.lossLow() {
		need = int(bpf.PelagoLivenessLIVENESS_UNANSWERED_LOSS)
	}
	return p.Open >= need && p.OldestOpen > p.SRTT+4*p.RTTVar+time.Duration(bpf.PelagoLivenessLIVENESS_FLOOR)
}

// Dead reports whether the peer has not answered for long: path_gone_at() of bpf/health.h. Status,
// events and DNS follow it; packets were steered away before.
func (p Path) Dead() bool {
	return p.Suspect() && p.Seen > DeadAfter+p.SRTT &&
		(p.Open > len(bpf.PelagoPath{}.Ring) || p.OldestOpen > DeadAfter-time.Duration(bpf.PelagoLivenessLIVENESS_FLOOR))
}

// Degraded reports whether the peer answers but probes are lost.
func (p Path) Degraded() bool { return !p.Dead() && p.lossLow() }

// lossLow reports whether so many probes are lost that the liveness rule tolerates more unanswered
// ones.
func (p Path) lossLow() bool { return p.Loss > float64(bpf.PelagoLivenessLIVENESS_LOSS_LOW)/lossUnit }

// lossUnit is 1 in the fixed-point unit of struct path.loss.
const lossUnit = 65536

// Decode reads an entry of the map paths. now is the clock of bpf_ktime_get_ns.
func Decode(v bpf.PelagoPath, now time.Duration) Path {
	since := func(t uint64) time.Duration { return time.Duration(max(0, int64(uint64(now)-t))) }
	p := Path{
		Probed: v.Probed != 0, Probes: v.Probes, Replies: v.Replies,
		Seen: since(v.Seen), Used: since(v.Used), Heard: since(v.Heard), Sent: since(v.Ring[v.Sequence%uint32(len(v.Ring))].Sent),
		RTT: time.Duration(v.Rtt), SRTT: time.Duration(v.Srtt), RTTVar: time.Duration(v.Rttvar), Loss: float64(v.Loss) / lossUnit, Lossy: v.Lossy != 0,
		Open: int(v.Sequence - v.Answered), Ready: v.Ready != 0, Generation: v.Generation, Age: time.Duration(v.Age) * time.Second,
		Histogram: v.Histogram, noReply: v.NoReply != 0, unreachable: v.Unreachable,
	}
	if p.Open > 0 {
		oldest := v.Sequence + 1 - uint32(min(p.Open, len(v.Ring)))
		p.OldestOpen = since(v.Ring[oldest%uint32(len(v.Ring))].Sent)
	}
	return p
}
