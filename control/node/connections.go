package node

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/probe"
)

const (
	// steady is how long a way must be good again before it is called so. Packets do not wait for it.
	steady = 3 * time.Second
	// firstAnswer is how long a gateway that has never answered is waited for.
	firstAnswer = 10 * time.Second
	// forgetOutage is how long after an outage loss may still be that of the outage.
	forgetOutage = 30 * time.Second
	// rttSamples is the length of the window of latencyRTT.
	rttSamples = 1000
)

// target is a gateway that this node probes.
type target struct {
	cluster, gateway string
	// address is the outer one, by which its path is known.
	address netip.Addr
	// peer and remote are set for gateways of other clusters.
	peer   *pelagov1alpha1.Peer
	remote pelagov1alpha1.PeerGateway
	fabric netip.Addr
	// way is what NAT discovery knows of it; zero: nothing.
	way natt.Verdict
	// refused says why the wire cannot go there; it has no address then.
	refused string
}

func (t target) far() bool { return t.peer != nil }

// targets are the gateways that this node probes, those of its own cluster first, and the remote ones to which its wire cannot go.
func targets(objs Objects, r Result) (out, refused []target) {
	own := map[uint16]netip.Addr{}
	for _, index := range r.State.Gateways {
		if hop, ok := r.State.Nodes[index]; ok {
			own[index] = hop.Address
		}
	}
	for i := range objs.NodeIndexes {
		n := &objs.NodeIndexes[i]
		if a, ok := own[uint16(n.Spec.Index)]; ok {
			out = append(out, target{cluster: objs.Config.ClusterID, gateway: n.Name, address: a})
		}
	}
	if !r.State.Settings.Gateway {
		return out, nil
	}
	for p, g := range remoteGateways(objs.Peers) {
		t := target{cluster: p.Name, gateway: g.Name, peer: p, remote: g, way: objs.Ways[wayName(p.Name, g.Name)]}
		t.fabric, _ = netip.ParseAddr(g.FabricAddress) // without one the wire says nothing of it
		a, err := cableAddress(objs.Config, g)
		if err != nil {
			t.refused = cmp.Or(t.way.Reason, err.Error())
			refused = append(refused, t)
			continue
		}
		t.address = a
		out = append(out, t)
	}
	return out, refused
}

// damped holds a bad verdict until the opposite was true for a while (steady).
type damped struct {
	bad  bool
	good time.Time // since when it looks good again; zero: it does not
}

func (d *damped) note(bad, good bool, now time.Time) {
	switch {
	case bad:
		*d = damped{bad: true}
	case !d.bad:
	case !good:
		d.good = time.Time{}
	case d.good.IsZero():
		d.good = now
	case now.Sub(d.good) >= steady:
		*d = damped{}
	}
}

// link is the way to one gateway as it is shown.
type link struct {
	first    time.Time // when it was looked at first
	answered bool      // ever
	path     loader.Path
	dead     damped
	lossy    damped
	loss     float64   // when it was too high last
	outage   time.Time // until when its probes are part of the loss at most; zero: they are not
	rtt      rttWindow
	status   submarinerv1.ConnectionStatus
	since    time.Time // of the status
	size     probe.Size
	overhead int // of the wire, on the uplinks
}

// note takes in the path as it is now; known: the kernel has it, which it does not while no tunnel leads there.
func (l *link) note(p loader.Path, known bool, now time.Time) {
	if l.first.IsZero() {
		l.first = now
	}
	l.path = p
	l.answered = l.answered || p.Replies > 0
	answers := known && p.Replies > 0 && !p.Suspect()
	lost := !known || p.Dead()
	l.dead.note(lost && (l.answered || now.Sub(l.first) >= firstAnswer), answers && p.Ready, now)
	switch {
	case l.dead.bad:
		l.outage = now.Add(forgetOutage)
	case !p.Degraded() || now.After(l.outage):
		l.outage = time.Time{}
	}
	if p.Degraded() {
		l.loss = p.Loss
	}
	l.lossy.note(known && p.Degraded() && l.outage.IsZero(), answers && !p.Degraded() || !l.outage.IsZero(), now)
	l.rtt.note(p)
	if s := l.judge(); s != l.status {
		l.status, l.since = s, now
	}
}

func (l *link) judge() submarinerv1.ConnectionStatus {
	switch {
	case l.dead.bad && l.dead.good.IsZero():
		return submarinerv1.ConnectionError
	case l.dead.bad || !l.answered || !l.path.Ready:
		return submarinerv1.Connecting
	}
	return submarinerv1.Connected
}

// message says why the status is what it is; way is the UDP port and address to look at.
func (l *link) message(way string) string {
	switch {
	case l.dead.bad && !l.dead.good.IsZero():
		return fmt.Sprintf("answers again; connected after %s without a gap", steady)
	case l.dead.bad && l.answered:
		return "probes are not answered any more: does the node run, and does " + way + " pass?"
	case l.dead.bad:
		return "no probe was ever answered: does " + way + " pass in both directions?"
	case !l.answered:
		return "waiting for the first answer to a probe"
	case !l.path.Ready:
		return "answers, but its tables are not complete yet"
	case l.lossy.bad:
		said := fmt.Sprintf("degraded: %.0f %% of the probes are lost", 100*l.loss)
		if more := l.lost(); more != "" {
			said += "; " + more
		}
		return said
	}
	return l.lost()
}

func (l *link) lost() string { return lost(l.size, l.overhead) }

// rttWindow sums up round-trip times (Welford's method for the deviation), rttSamples at a time.
type rttWindow struct {
	replies         uint64 // of the path when last looked at
	n               float64
	last, low, high time.Duration
	mean, squares   float64
}

// note takes in the last answer, if there is a new one. The first counts even if an earlier process sent its probe.
func (w *rttWindow) note(p loader.Path) {
	if p.Replies != w.replies && p.Replies > 0 {
		w.replies = p.Replies
		w.add(p.RTT)
	}
}

func (w *rttWindow) add(rtt time.Duration) {
	if w.n == rttSamples {
		*w = rttWindow{replies: w.replies}
	}
	if w.n == 0 || rtt < w.low {
		w.low = rtt
	}
	w.high, w.last = max(w.high, rtt), rtt
	w.n++
	delta := float64(rtt) - w.mean
	w.mean += delta / w.n
	w.squares += delta * (float64(rtt) - w.mean)
}

func (w *rttWindow) spec() *submarinerv1.LatencyRTTSpec {
	if w == nil || w.n == 0 {
		return nil
	}
	deviation := time.Duration(0)
	if w.n > 1 {
		deviation = time.Duration(math.Sqrt(w.squares / (w.n - 1)))
	}
	text := func(d time.Duration) string { return d.Round(time.Microsecond).String() }
	return &submarinerv1.LatencyRTTSpec{
		Last: text(w.last), Min: text(w.low), Average: text(time.Duration(w.mean)), Max: text(w.high), StdDev: text(deviation),
	}
}
