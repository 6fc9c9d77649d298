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

// Path is what is known of the liveness of one peer. Ages are measured back from the reading; those of what never happened
// are as old as the boot.
type Path struct {
	// Probed: this node probes the peer. The others (nodes, at a gateway) are only listened for.
	Probed          bool
	Probes, Replies uint64
	// Seen is the age of the last answer, Used that of the last packet that took the path, Heard that of the peer's last
	// probe, Sent that of the last probe of ours.
	Seen, Used, Heard, Sent time.Duration
	// RTT is that of the last answer; SRTT and RTTVar are smoothed (RFC 6298).
	RTT, SRTT, RTTVar time.Duration
	// Loss is the share of probes that found no answer lately, 0–1.
	Loss float64
	// Open is the number of probes since the last answered one, OldestOpen the age of the first of them.
	Open       int
	OldestOpen time.Duration
	// Ready, Generation and Age are what the peer told: whether its tables are complete, how often they changed, and how
	// long ago its daemon confirmed them.
	Ready      bool
	Generation uint32
	Age        time.Duration
	// Histogram counts answers by RTT: place n those below 2^n µs that are in no earlier place; the last one holds the rest.
	Histogram [dataplane.RTTBuckets]uint32

	unreachable [dataplane.MaxClusters / 64]uint64
}

// Reaches says whether the peer, a gateway of this cluster, gets answers from any gateway of a remote cluster.
func (p Path) Reaches(cluster uint16) bool {
	word := int(cluster) / 64
	return word >= len(p.unreachable) || p.unreachable[word]>>(cluster%64)&1 == 0
}

// WithUnreachable is the path of a gateway that does not reach a remote cluster.
func (p Path) WithUnreachable(cluster uint16) Path {
	p.unreachable[int(cluster)/64%len(p.unreachable)] |= 1 << (cluster % 64)
	return p
}

// The rule by which the programs steer around a path (bpf/live.h).
const (
	unanswered      = 3
	unansweredLossy = 6
	lossy           = 0.05
	suspectFloor    = 30 * time.Millisecond
)

// Suspect: packets are steered around the path.
func (p Path) Suspect() bool {
	need := unanswered
	if p.Loss > lossy {
		need = unansweredLossy
	}
	return p.Open >= need && p.OldestOpen > p.SRTT+4*p.RTTVar+suspectFloor
}

// DeadAfter is how long a suspect path is silent before it is called dead: three probes of an idle path. The programs rank it
// behind one that is only suspect from then on (gone_after).
const DeadAfter = 450 * time.Millisecond

// Dead: the peer has not answered for long. It is a verdict for people and for DNS; packets were steered away before.
func (p Path) Dead() bool {
	return p.Suspect() && p.Seen > DeadAfter+p.SRTT && p.OldestOpen > DeadAfter-suspectFloor
}

// Degraded: the peer answers, but probes are lost.
func (p Path) Degraded() bool { return !p.Dead() && p.Loss > lossy }

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
		RTT: time.Duration(v.Rtt), SRTT: time.Duration(v.Srtt), RTTVar: time.Duration(v.Rttvar), Loss: float64(v.Loss) / 65536,
		Open: int(v.Sequence - v.Answered), Ready: v.Ready != 0, Generation: v.Generation, Age: time.Duration(v.Age) * time.Second,
		Histogram: v.Histogram, unreachable: v.Unreachable,
	}
	if p.Open > 0 {
		oldest := v.Sequence + 1 - uint32(min(p.Open, len(v.Ring)))
		p.OldestOpen = since(v.Ring[oldest%uint32(len(v.Ring))].Sent)
	}
	return p
}

// applyPaths makes and removes entries. What the programs have written into those that stay is kept.
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

// Confirm tells the peers that this node's tables are up to date; they prefer gateways that say so. Apply does it as well.
func (l *Loader) Confirm() error { return l.confirm() }

func (l *Loader) confirm() error {
	var own bpf.PelagoStanding
	if err := l.objs.Standings.Lookup(uint32(0), &own); err != nil {
		return fmt.Errorf("read map standings: %w", err)
	}
	own.Confirmed = uint64(bootClock())
	return put(l.objs.Standings, uint32(0), own)
}

// Unreachable corrects what this gateway tells of the clusters that no packet goes to at present: the programs notice
// only of those that they send to.
func (l *Loader) Unreachable(clusters map[uint16]bool) error {
	var own bpf.PelagoStanding
	if err := l.objs.Standings.Lookup(uint32(0), &own); err != nil {
		return fmt.Errorf("read map standings: %w", err)
	}
	want := own
	for i := range want.Unreachable {
		want.Unreachable[i] = 0
	}
	for c := range clusters {
		if word := int(c) / 64; clusters[c] && word < len(want.Unreachable) {
			want.Unreachable[word] |= 1 << (c % 64)
		}
	}
	if want == own {
		return nil
	}
	return put(l.objs.Standings, uint32(0), want)
}

// Leave tells the peers of a gateway, in its answers to their probes, to take others. It goes on switching what still comes.
// The next Apply says what holds then.
func (l *Loader) Leave() error {
	var s bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &s); err != nil {
		return fmt.Errorf("read map settings: %w", err)
	}
	s.Leaving = 1
	l.Refresh()
	return put(l.objs.Settings, uint32(0), s)
}

// Marks are the mark of our own packets, which the guards let out, and the one that makes a frame on pelago0 a probe. 0 before the
// first Apply.
func (l *Loader) Marks() (own, probe uint32, err error) {
	var s bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &s); err != nil {
		return 0, 0, fmt.Errorf("read map settings: %w", err)
	}
	return s.Cookie, s.ProbeMark, nil
}
