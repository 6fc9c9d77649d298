package status

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// reportInterval bounds how long a change of numbers alone, such as round-trip times, waits to be
// reported.
const reportInterval = 30 * time.Second

// Role of this node as a gateway: the values of the label state of pelago_gateway_state.
type Role string

const (
	RoleNone     Role = "none"
	RoleJoining  Role = "joining"  // some remote gateways do not accept its packets yet
	RoleServing  Role = "serving"  // it is used
	RoleDraining Role = "draining" // it is no gateway any more and forwards what still arrives
)

// Tracker derives from probes how this node reaches gateways and clusters. The daemon's loop calls
// Observe, scrapes call View.
type Tracker struct {
	version string // of the daemon

	mu    sync.Mutex
	paths map[netip.Addr]*trackedPath // by outer address
	// other clusters by index, as the gateways of this one reach them
	clusters map[uint16]*clusterState
	wire     map[netip.Addr]cable.Status
	role     Role
	made     *byte  // that of the last snapshot
	urgent   string // urgentKey of the last report
	reported time.Time
	reports  uint64
	created  time.Time           // of the Gateway object
	lost     map[netip.Addr]bool // connections whose loss an Event has reported
	verdict  Verdict
	isolated isolation
}

// NewTracker returns an empty tracker; version is the daemon's, for reports.
func NewTracker(version string) *Tracker {
	return &Tracker{version: version, paths: map[netip.Addr]*trackedPath{}, clusters: map[uint16]*clusterState{}, lost: map[netip.Addr]bool{}}
}

// SetCreated records when the Gateway object was created.
func (t *Tracker) SetCreated(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.created = at
}

// Observation is what the data plane shows at one time.
type Observation struct {
	Snapshot
	Role  Role
	Paths map[netip.Addr]liveness.Path // by outer address
	Sizes map[netip.Addr]liveness.Size // by outer address
	Peers map[netip.Addr]cable.Status  // the wire's, by fabric address
	// Verdict is that of UnreachableClusters.
	Verdict Verdict
	Now     time.Time
}

// Update is what follows from an observation.
type Update struct {
	// Answering are the other nodes of the cluster that work as gateways
	// (tables.Objects.Answering).
	Answering map[string]bool
	// Events are about the Gateway object, NodeEvents about the Node.
	Events, NodeEvents []Event
	// Report is nil while nothing but numbers has changed since the last one, for up to
	// reportInterval.
	Report *Report
}

// Report is the desired status of the Gateway object (nil: there is to be none) and of the
// RouteAgent object.
type Report struct {
	Gateway    *submarinerv1.GatewayStatus
	RouteAgent RouteAgent
}

// Event is a Kubernetes Event.
type Event struct{ Type, Reason, Message string }

// Observe records an observation.
func (t *Tracker) Observe(o Observation) Update {
	t.mu.Lock()
	defer t.mu.Unlock()
	endpoint := func(a, b cable.Status) bool { return a.Endpoint == b.Endpoint }
	changed := o.made == nil || o.made != t.made || o.Role != t.role || !maps.EqualFunc(o.Peers, t.wire, endpoint)
	t.made, t.role, t.wire = o.made, o.Role, o.Peers
	changed = t.update(o.Snapshot, o.Paths, o.Sizes, o.Now) || changed
	changed = changed || o.Verdict.Known != t.verdict.Known || o.Verdict.Isolated != t.verdict.Isolated || !slices.Equal(o.Verdict.Unreachable, t.verdict.Unreachable)
	t.verdict = o.Verdict
	u := Update{NodeEvents: t.isolated.update(o.Snapshot, o.Verdict, o.Now), Answering: t.answering(o.Snapshot, o.Unreachable(o.Paths)), Events: t.events(o.Snapshot)}
	key := t.urgent
	if changed { // expensive with many gateways
		key = t.urgentKey(o.Snapshot)
	}
	if key != t.urgent || o.Now.Sub(t.reported) >= reportInterval {
		t.urgent, t.reported = key, o.Now
		t.reports++
		u.Report = &Report{t.gateway(o.Snapshot), t.routeAgent(o.Snapshot)}
	}
	return u
}

// update records the paths and removes those to former gateways. It reports whether state that is
// reported at once has changed.
func (t *Tracker) update(snap Snapshot, paths map[netip.Addr]liveness.Path, sizes map[netip.Addr]liveness.Size, now time.Time) (changed bool) {
	current := make(map[netip.Addr]bool, len(snap.Targets))
	for _, target := range snap.Targets {
		current[target.Address] = true
		s := t.paths[target.Address]
		if s == nil {
			s = &trackedPath{}
			t.paths[target.Address] = s
		}
		p, known := paths[target.Address]
		before := s.shown()
		s.size, s.overhead = sizes[target.Address], cable.Overhead(snap.Objects.Config.CableDriver)
		s.update(p, known, now)
		changed = changed || s.shown() != before
	}
	for a := range t.paths {
		if !current[a] {
			delete(t.paths, a)
			delete(t.lost, a)
		}
	}
	return t.updateClusters(snap, now) || changed
}

// urgentKey changes with whatever is reported at once: everything but numbers.
func (t *Tracker) urgentKey(snap Snapshot) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%t %s %s %q %+v;", snap.Gateway, t.haStatus(snap), tables.DescribeLeftOut(snap.LeftOut), SelfTestMessages(snap.SelfTest), t.verdict)
	for _, target := range snap.Targets {
		s := t.paths[target.Address]
		fmt.Fprintf(&b, "%s %s %s %s %t %t %t %s %s;", target.cluster, target.gateway, s.status, t.usingIP(target), s.lossy.bad, s.rtt.n > 0,
			t.usingNAT(target), target.discovered.State, s.largeLost())
	}
	for _, target := range snap.refused {
		fmt.Fprintf(&b, "%s %s refused;", target.cluster, target.gateway)
	}
	if p := snap.Reach.Public; p != nil {
		fmt.Fprintf(&b, "%s;", p.Address)
	}
	for p := range tables.RoutedPeers(snap.Objects.Peers) {
		if c := t.clusters[uint16(p.Spec.ClusterIndex)]; c != nil {
			fmt.Fprintf(&b, "%s %s %d;", p.Name, c.status(), len(p.Spec.Gateways))
		}
	}
	return b.String()
}

// answering returns the other gateways of the cluster that work, by their answers to probes: they
// are connected and reach every cluster that this node reaches.
func (t *Tracker) answering(snap Snapshot, unreachable map[uint16]bool) map[string]bool {
	out := map[string]bool{}
	for _, target := range snap.Targets {
		s := t.paths[target.Address]
		if target.remote() || s == nil || s.status != submarinerv1.Connected {
			continue
		}
		out[target.gateway] = true
		for cluster := range snap.State.Clusters {
			if !unreachable[cluster] && !s.path.Reaches(cluster) {
				delete(out, target.gateway)
			}
		}
	}
	return out
}

// usingIP returns the address at which a remote gateway is reached: the wire's own, if it has one.
// It is empty if the wire cannot reach it.
func (t *Tracker) usingIP(target Target) string {
	switch e := t.wire[target.fabric].Endpoint; {
	case target.refused != "":
		return ""
	case e.IsValid():
		return e.Addr().Unmap().String()
	case target.spec.Address == "" && target.discovered.Source.IsValid():
		// it initiates the handshake, from there
		return target.discovered.Source.Addr().Unmap().String()
	}
	return target.spec.Address
}

// usingNAT reports whether addresses or ports are rewritten between this and a remote gateway: by
// NAT discovery, and without a result of it, by whether the gateway is reached at another address
// than its private one.
func (t *Tracker) usingNAT(target Target) bool {
	if e := t.wire[target.fabric].Endpoint; e.IsValid() && !isOwnPort(target.spec, e.Port()) {
		return true
	}
	if target.discovered.State == natt.Confirmed || target.discovered.Source.IsValid() {
		return target.discovered.NAT()
	}
	using := t.usingIP(target)
	return using != "" && using != privateAddress(target.spec)
}

// events returns those about connections that were lost or restored since the last call.
func (t *Tracker) events(snap Snapshot) []Event {
	if !snap.Gateway {
		return nil
	}
	var out []Event
	for _, target := range snap.Targets {
		s := t.paths[target.Address]
		if !target.remote() || t.lost[target.Address] == (s.status == submarinerv1.ConnectionError) {
			continue
		}
		connection := fmt.Sprintf("from gateway %s of %s to gateway %s of %s (%s, %s)",
			snap.Objects.Name, snap.Objects.Config.ClusterID, target.gateway, target.cluster, t.usingIP(target), target.spec.Wire)
		switch s.status {
		case submarinerv1.ConnectionError:
			t.lost[target.Address] = true
			out = append(out, Event{corev1.EventTypeWarning, "ConnectionLost",
				fmt.Sprintf("the connection %s is dead: %s %s", connection, t.message(target), t.alternatives(snap, target))})
		case submarinerv1.Connected:
			delete(t.lost, target.Address)
			out = append(out, Event{corev1.EventTypeNormal, "ConnectionRestored",
				fmt.Sprintf("the connection %s is back: probes were answered for %s", connection, steady)})
		}
	}
	return out
}

// alternatives names the gateways that packets of a dead connection take instead.
func (t *Tracker) alternatives(snap Snapshot, dead Target) string {
	var names []string
	for _, target := range snap.Targets {
		if target.remote() && target.cluster == dead.cluster && t.paths[target.Address].status == submarinerv1.Connected {
			names = append(names, target.gateway)
		}
	}
	if len(names) == 0 {
		return "From here no other gateway of " + dead.cluster + " answers."
	}
	return "Packets go to " + strings.Join(names, ", ") + " instead."
}

// message describes the connection to a remote gateway, by probes, the wire and NAT discovery.
func (t *Tracker) message(target Target) string {
	if target.refused != "" {
		return target.refused
	}
	s := t.paths[target.Address]
	main := s.message(fmt.Sprintf("UDP %d to %s of node %s", target.spec.Port, t.usingIP(target), target.gateway))
	var more []string
	if e := t.wire[target.fabric].Error; e != "" {
		more = append(more, "the wire says: "+e)
	}
	if target.discovered.Reason != "" && s.status != submarinerv1.Connected {
		more = append(more, "NAT discovery says: it "+target.discovered.Reason)
	}
	switch {
	case len(more) == 0:
		return main
	case main == "":
		return strings.Join(more, "; ")
	}
	return main + " (" + strings.Join(more, "; ") + ")"
}

// View returns what a scrape shows of the gateways that this node probes. It may be called from any
// goroutine.
func (t *Tracker) View(snap Snapshot) observe.View {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := observe.View{
		Cluster: snap.Objects.Config.ClusterID, Node: snap.Objects.Name, Driver: snap.Objects.Config.CableDriver, State: string(t.role),
		Reports: t.reports, Isolated: t.isolated.reported,
	}
	if a := snap.State.Settings.Address; a.IsValid() {
		v.Address = a.String()
	}
	for _, target := range snap.Targets {
		s := t.paths[target.Address]
		if s == nil {
			continue // not observed yet
		}
		p := observe.Peer{
			Cluster: target.cluster, Gateway: target.gateway, Path: target.Address, Up: s.status == submarinerv1.Connected,
			MTU: s.size.Passes, BlackHole: s.size.BlackHole(),
			GSOLost: s.size.GSOLost,
		}
		if target.remote() && snap.Gateway {
			c := &observe.Connection{IP: t.usingIP(target), Status: string(s.status)}
			if s.status == submarinerv1.Connected {
				c.Established = s.since
			}
			if w, ok := t.wire[target.fabric]; ok && snap.Objects.Config.CableDriver != cable.VXLANDriver {
				c.Counted, c.RxBytes, c.TxBytes = true, w.RxBytes, w.TxBytes
			}
			p.Connection = c
		}
		v.Peers = append(v.Peers, p)
	}
	if snap.Gateway {
		v.Created, v.Gateways, v.Ranges = t.created, len(snap.State.Gateways), ranges(snap.Objects)
	}
	return v
}

// ranges counts the allocated global IPs by range.
func ranges(objs tables.Objects) []observe.Range {
	out := make([]observe.Range, len(objs.Config.GlobalCIDRs))
	for i, p := range objs.Config.GlobalCIDRs {
		out[i].CIDR = p.String()
		// the first and the last address are not allocated
		if bits := p.Addr().BitLen() - p.Bits(); bits >= 2 {
			out[i].Usable = 1<<bits - 2
		}
	}
	count := func(kind func(*observe.Range) *int, texts ...string) {
		for _, text := range texts {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			for i, p := range objs.Config.GlobalCIDRs {
				if p.Contains(a) {
					*kind(&out[i])++
				}
			}
		}
	}
	if objs.ClusterEgress != nil {
		count(func(r *observe.Range) *int { return &r.ClusterEgress }, objs.ClusterEgress.Status.AllocatedIPs...)
	}
	for i := range objs.EgressIPs {
		count(func(r *observe.Range) *int { return &r.Egress }, objs.EgressIPs[i].Status.AllocatedIPs...)
	}
	for i := range objs.IngressIPs {
		count(func(r *observe.Range) *int { return &r.Ingress }, objs.IngressIPs[i].Status.AllocatedIP)
	}
	return out
}
