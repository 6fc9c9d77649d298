package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Path is the liveness state of one peer. Ages are relative to the time of reading; what never happened is as old as the last boot.
type Path struct {
	// Probed reports whether this node probes the peer. A gateway does not probe nodes; their probes show that they live.
	Probed          bool
	Probes, Replies uint64
	// Ages of the last reply, the last packet on the path, the peer's last probe, and this node's last probe.
	Seen, Used, Heard, Sent time.Duration
	// RTT is that of the last reply; SRTT and RTTVar are smoothed (RFC 6298).
	RTT, SRTT, RTTVar time.Duration
	// Loss is the share of probes without a reply, 0–1, averaged over LIVENESS_LOSS_WINDOW of bpf/types.h.
	Loss float64
	// Lossy: packets take other paths because of its loss.
	Lossy bool
	// Open is the number of probes since the last answered one, OldestOpen the age of the oldest that the ring holds.
	Open       int
	OldestOpen time.Duration
	// The peer's tables, from its last reply: complete, number of changes, time since its daemon confirmed them.
	Ready      bool
	Generation uint32
	Age        time.Duration
	// Histogram counts replies by RTT: bucket n those from 2^(n-1) to below 2^n µs, the last one all longer ones.
	Histogram [dataplane.RTTBuckets]uint32

	noReply     bool // the peer, a node, reports that it gets no replies
	unreachable [dataplane.MaxClusters / 64]uint64
}

// Reaches reports whether the peer, a gateway of this cluster, gets replies from any gateway of a remote cluster.
func (p Path) Reaches(cluster uint16) bool {
	word := int(cluster) / 64
	return word >= len(p.unreachable) || p.unreachable[word]>>(cluster%64)&1 == 0
}

// WithUnreachable returns the path of a gateway that does not reach a remote cluster.
func (p Path) WithUnreachable(cluster uint16) Path {
	p.unreachable[int(cluster)/64%len(p.unreachable)] |= 1 << (cluster % 64)
	return p
}

// DeadAfter is how long a suspect path is silent, beyond its round-trip time, until it is dead: three probes of an idle path.
const DeadAfter = time.Duration(bpf.PelagoLivenessLIVENESS_GONE)

// Suspect reports whether packets are steered around the path: path_suspect_at() of bpf/health.h.
func (p Path) Suspect() bool {
	need := int(bpf.PelagoLivenessLIVENESS_UNANSWERED)
	if p.lossLow() {
		need = int(bpf.PelagoLivenessLIVENESS_UNANSWERED_LOSS)
	}
	return p.Open >= need && p.OldestOpen > p.SRTT+4*p.RTTVar+time.Duration(bpf.PelagoLivenessLIVENESS_FLOOR)
}

// Dead reports whether the peer has not answered for long: path_gone_at() of bpf/health.h. Status, events and DNS follow it;
// packets were steered away before.
func (p Path) Dead() bool {
	return p.Suspect() && p.Seen > DeadAfter+p.SRTT &&
		(p.Open > len(bpf.PelagoPath{}.Ring) || p.OldestOpen > DeadAfter-time.Duration(bpf.PelagoLivenessLIVENESS_FLOOR))
}

// Degraded reports whether the peer answers but probes are lost.
func (p Path) Degraded() bool { return !p.Dead() && p.lossLow() }

// lossLow reports whether so many probes are lost that the liveness rule tolerates more unanswered ones.
func (p Path) lossLow() bool { return p.Loss > float64(bpf.PelagoLivenessLIVENESS_LOSS_LOW)/lossUnit }

// lossUnit is 1 in the fixed-point unit of struct path.loss.
const lossUnit = 65536

// Paths reads the state of every path, by the peer's outer address.
func (l *Loader) Paths() (map[netip.Addr]Path, error) {
	now := uint64(bootClock())
	return readMap(l.objs.Paths, addr, func(v bpf.PelagoPath) Path { return decodePath(v, now) })
}

// Path reads the state of one path; ok is false if there is none.
func (l *Loader) Path(peer netip.Addr) (p Path, ok bool, err error) {
	var v bpf.PelagoPath
	if err := l.objs.Paths.Lookup(be32(peer), &v); errors.Is(err, ebpf.ErrKeyNotExist) {
		return Path{}, false, nil
	} else if err != nil {
		return Path{}, false, fmt.Errorf("read map paths: %w", err)
	}
	return decodePath(v, uint64(bootClock())), true, nil
}

func decodePath(v bpf.PelagoPath, now uint64) Path {
	since := func(t uint64) time.Duration { return time.Duration(max(0, int64(now-t))) }
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

// applyPaths creates and removes entries. Entries that stay keep what the programs have written.
func (l *Loader) applyPaths(want map[netip.Addr]bool) error {
	have, err := l.Paths()
	if err != nil {
		return err
	}
	var errs []error
	for peer, probed := range want {
		old, ok := have[peer]
		if ok && old.Probed == probed {
			continue
		}
		errs = append(errs, put(l.objs.Paths, be32(peer), bpf.PelagoPath{Probed: uint32(flag(probed))}))
	}
	for peer := range have {
		if _, ok := want[peer]; !ok {
			errs = append(errs, remove(l.objs.Paths, be32(peer)))
		}
	}
	errs = append(errs, l.applyLargeProbes(want))
	return errors.Join(errs...)
}

// confirm advertises that the tables are up to date; peers prefer such gateways.
func (l *Loader) confirm() error { return l.advertise(bpf.PelagoAdvertisement{Confirm: 1}) }

// Reach replaces what this gateway advertises about the remote clusters: which it does not reach, and which only over lossy paths. The
// programs maintain this for the clusters that they send to; Reach corrects it for those without traffic.
func (l *Loader) Reach(unreachable, lossy map[uint16]bool) error {
	return l.advertise(bpf.PelagoAdvertisement{Replace: 1, Unreachable: clustersOf(unreachable), Lossy: clustersOf(lossy)})
}

func clustersOf(in map[uint16]bool) (out dataplane.ClusterSet) {
	for c := range in {
		if in[c] && c < dataplane.MaxClusters {
			out.Add(c)
		}
	}
	return out
}

// advertise runs the program that changes the map: user space cannot change single bits of it.
func (l *Loader) advertise(a bpf.PelagoAdvertisement) error {
	if l.objs.Advertise == nil {
		return errors.New("change what this node advertises: the programs are not loaded; use Open")
	}
	result, err := l.objs.Advertise.Run(&ebpf.RunOptions{Context: &a})
	if err == nil && result != 0 {
		err = fmt.Errorf("result %d", int32(result))
	}
	if err != nil {
		return fmt.Errorf("run advertise: %w", err)
	}
	return nil
}

// Leave makes this gateway reply to probes that it is not ready, so that peers use others; it keeps switching. The next Apply
// overwrites it.
func (l *Loader) Leave() error {
	var s bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &s); err != nil {
		return fmt.Errorf("read map settings: %w", err)
	}
	s.Leaving = 1
	l.Refresh()
	return put(l.objs.Settings, uint32(0), s)
}

// Marks returns the mark with which packets to our ports may leave, and the mark that turns a frame on pelago0 into a probe. Both
// are 0 before the first Apply.
func (l *Loader) Marks() (own, probe uint32, err error) {
	var s bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &s); err != nil {
		return 0, 0, fmt.Errorf("read map settings: %w", err)
	}
	return s.Cookie, s.ProbeMark, nil
}
