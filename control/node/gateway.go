package node

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

const (
	// watchEvery is how often the paths are looked at.
	watchEvery = 100 * time.Millisecond
	// rewrite a Gateway object at the latest after this long, for its round-trip times; changes of a status at once.
	rewrite = 30 * time.Second
)

// links are the paths to remote gateways as the Gateway object shows them.
type links struct {
	rtt     map[netip.Addr]*rttWindow
	written string    // the statuses of the last write
	at      time.Time // of the last write
	exists  bool
}

func newLinks() *links { return &links{rtt: map[netip.Addr]*rttWindow{}} }

// rttWindow sums up round-trip times (Welford's method for the deviation).
type rttWindow struct {
	replies         uint64 // of the path when last looked at
	n               float64
	last, low, high time.Duration
	mean, squares   float64
}

func (w *rttWindow) add(rtt time.Duration) {
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

// watchPaths takes in what the probes show: it tells the nodes which clusters this gateway does not reach, notices that the
// remote gateways know it, and writes the Gateway object.
func (d *Daemon) watchPaths(ctx context.Context) {
	d.mu.Lock()
	snap := d.latest
	d.mu.Unlock()
	if err := d.watchPathsOnce(ctx, snap); err != nil && ctx.Err() == nil {
		d.log.Error("watch the paths", "error", err)
	}
}

func (d *Daemon) watchPathsOnce(ctx context.Context, snap snapshot) error {
	if !d.Ready() {
		return nil
	}
	paths, err := d.loader.Paths()
	if err != nil {
		return err
	}
	d.opts.Verdict.Publish(d.verdicts.note(snap, paths, time.Now()))
	if !snap.gateway {
		return d.removeGateway(ctx)
	}
	if err := d.loader.Unreachable(unreachable(snap.state.Clusters, paths)); err != nil {
		return err
	}
	if d.tenure.introduce(snap.state.Clusters, waiting(snap), paths, time.Now()) {
		d.wake() // to report it
	}
	d.links.note(snap.state.Clusters, paths)
	return d.writeGateway(ctx, snap, paths)
}

// unreachable are the clusters of which no gateway answers.
func unreachable(clusters map[uint16][]dataplane.RemoteGateway, paths map[netip.Addr]loader.Path) map[uint16]bool {
	out := map[uint16]bool{}
	for index, gateways := range clusters {
		out[index] = !slices.ContainsFunc(gateways, func(g dataplane.RemoteGateway) bool {
			p := paths[g.Hop.Address]
			return !p.Suspect() && (p.Ready || p.Replies == 0)
		})
	}
	return out
}

// note takes in the round-trip times.
func (l *links) note(clusters map[uint16][]dataplane.RemoteGateway, paths map[netip.Addr]loader.Path) {
	current := map[netip.Addr]bool{}
	for _, gateways := range clusters {
		for _, g := range gateways {
			a := g.Hop.Address
			current[a] = true
			w, p := l.rtt[a], paths[a]
			if w == nil {
				w = &rttWindow{} // the last answer counts even if an earlier process sent its probe
				l.rtt[a] = w
			}
			if p.Replies != w.replies && p.Replies > 0 {
				w.replies = p.Replies
				w.add(p.RTT)
			}
		}
	}
	for a := range l.rtt {
		if !current[a] {
			delete(l.rtt, a)
		}
	}
}

func (d *Daemon) writeGateway(ctx context.Context, snap snapshot, paths map[netip.Addr]loader.Path) error {
	status := submarinerv1.GatewayStatus{
		Version: d.opts.Version, HAStatus: submarinerv1.HAStatusActive, LocalEndpoint: localEndpoint(snap),
		Connections: connections(snap, paths, d.links.rtt),
	}
	var summary strings.Builder
	for _, c := range status.Connections {
		fmt.Fprintf(&summary, "%s %s %s %t;", c.Endpoint.ClusterID, c.UsingIP, c.Status, c.LatencyRTT != nil)
	}
	if d.links.exists && summary.String() == d.links.written && time.Since(d.links.at) < rewrite {
		return nil
	}
	key := types.NamespacedName{Namespace: d.opts.Namespace, Name: d.opts.NodeName}
	var g submarinerv1.Gateway
	err := d.client.Get(ctx, key, &g)
	switch {
	case apierrors.IsNotFound(err):
		g = submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Status: status}
		err = d.client.Create(ctx, &g)
	case err == nil:
		before := g.DeepCopy()
		g.Status = status
		err = d.client.Patch(ctx, &g, client.MergeFrom(before))
	}
	if err != nil {
		return fmt.Errorf("write Gateway %s: %w", key, err)
	}
	d.links.exists, d.links.written, d.links.at = true, summary.String(), time.Now()
	return nil
}

func (d *Daemon) removeGateway(ctx context.Context) error {
	if !d.links.exists && !d.links.at.IsZero() {
		return nil
	}
	g := &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: d.opts.Namespace, Name: d.opts.NodeName}}
	if err := client.IgnoreNotFound(d.client.Delete(ctx, g)); err != nil {
		return fmt.Errorf("remove Gateway %s/%s: %w", g.Namespace, g.Name, err)
	}
	d.links.exists, d.links.at = false, time.Now()
	return nil
}

// localEndpoint is this gateway as its Endpoint object describes it.
func localEndpoint(snap snapshot) submarinerv1.EndpointSpec {
	c, s := snap.objs.Config, snap.state.Settings
	subnets := []string{}
	for _, p := range c.Subnets() {
		subnets = append(subnets, p.String())
	}
	return submarinerv1.EndpointSpec{
		ClusterID: c.ClusterID, CableName: cableName(c.ClusterID, s.Address.String()), Hostname: snap.objs.Name, Subnets: subnets,
		PrivateIP: s.Address.String(), Backend: c.CableDriver,
		BackendConfig: map[string]string{
			submarinerv1.BackendUDPPort:      strconv.Itoa(int(c.CablePort)),
			submarinerv1.BackendClusterIndex: strconv.Itoa(int(c.ClusterIndex)),
			submarinerv1.BackendNodeIndex:    strconv.Itoa(int(s.Node)),
		},
	}
}

func cableName(cluster, address string) string {
	return "submariner-cable-" + cluster + "-" + strings.ReplaceAll(address, ".", "-")
}

// connections lists every gateway of every accepted peer with what the probes say.
func connections(snap snapshot, paths map[netip.Addr]loader.Path, rtt map[netip.Addr]*rttWindow) []submarinerv1.Connection {
	out := []submarinerv1.Connection{}
	for i := range snap.objs.Peers {
		p := &snap.objs.Peers[i]
		if !routed(p) {
			continue
		}
		for _, g := range p.Spec.Gateways {
			address, err := cableAddress(snap.objs.Config, g)
			if err != nil {
				continue
			}
			c := submarinerv1.Connection{
				Endpoint: peerEndpoint(p, g), UsingIP: g.Address, LatencyRTT: rtt[address].spec(),
			}
			c.Status, c.StatusMessage = judge(paths[address], g)
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b submarinerv1.Connection) int {
		return strings.Compare(a.Endpoint.CableName, b.Endpoint.CableName)
	})
	return out
}

func judge(p loader.Path, g pelagov1alpha1.PeerGateway) (submarinerv1.ConnectionStatus, string) {
	switch {
	case p.Replies == 0 && !p.Dead():
		return submarinerv1.Connecting, "waiting for the first answer to a probe"
	case p.Replies == 0:
		return submarinerv1.ConnectionError, fmt.Sprintf("no probe was ever answered: is UDP %d from here to %s open in both directions?", g.Port, g.Address)
	case p.Dead():
		return submarinerv1.ConnectionError, "probes are not answered any more"
	case !p.Ready:
		return submarinerv1.Connecting, "the remote gateway answers, but its tables are not complete yet"
	case p.Degraded():
		return submarinerv1.Connected, "degraded: probes are lost"
	}
	return submarinerv1.Connected, ""
}

func peerEndpoint(p *pelagov1alpha1.Peer, g pelagov1alpha1.PeerGateway) submarinerv1.EndpointSpec {
	return submarinerv1.EndpointSpec{
		ClusterID: p.Name, CableName: cableName(p.Name, g.Address), Hostname: g.Name, Subnets: p.Spec.Subnets,
		PrivateIP: g.Address, Backend: g.Wire,
		BackendConfig: map[string]string{
			submarinerv1.BackendUDPPort:      strconv.Itoa(int(g.Port)),
			submarinerv1.BackendClusterIndex: strconv.Itoa(int(p.Spec.ClusterIndex)),
			submarinerv1.BackendNodeIndex:    strconv.Itoa(int(g.NodeIndex)),
		},
	}
}
