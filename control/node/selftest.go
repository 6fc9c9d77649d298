package node

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/observe"
)

const (
	// selftestInterval bounds how long nothing is tested; changes of firewall rules are not
	// notified.
	selftestInterval = 10 * time.Minute
	// selftestPause is the minimum time between two self-tests: on a busy node, devices change all
	// the time.
	selftestPause = 15 * time.Second
	// selftestRetry is the interval while a path is not as it should be.
	selftestRetry = time.Minute
	// selftestConfirm is when a new finding is tested again before it is reported: the pod may just
	// have ended.
	selftestConfirm = 5 * time.Second
)

// selftest is the state of the self-tests of the node (observe.Selftest).
type selftest struct {
	// changed: devices, rules, routes or filters have changed since the last one began. Written by
	// any goroutine.
	changed atomic.Bool

	// Of the loop of Run alone.
	running, suspected bool
	ended              time.Time // zero: none has
	revision           string
	report             observe.SelftestReport
	// devices are those that the last reconcile has found.
	devices map[netip.Addr]netdev.PodDevice
}

// tested is a self-test that has ended.
type tested struct {
	report observe.SelftestReport
	err    error
}

// due reports whether a self-test is to begin. revision returns that of the programs at the devices
// tested last.
func (s *selftest) due(now time.Time, revision func(string) string) bool {
	age := now.Sub(s.ended)
	switch {
	case s.running:
		return false
	case s.ended.IsZero() || age >= selftestInterval:
		return true
	case s.suspected && len(s.report.Findings) == 0:
		return age >= selftestConfirm
	case age < selftestPause:
		return false
	}
	return s.changed.Load() || s.suspected && age >= selftestRetry || revision(s.revision) != s.revision
}

// note takes a result, and reports whether what is reported of it has changed. New findings are
// reported once a second test confirms them.
func (s *selftest) note(r observe.SelftestReport, now time.Time) (changed bool) {
	s.running, s.ended, s.revision = false, now, r.Revision
	confirmed := s.suspected
	if s.suspected = len(r.Findings) > 0; s.suspected && !confirmed {
		return false
	}
	changed = status.SelfTestDiffers(s.report, r)
	s.report = r
	return changed
}

// beginSelftest starts a self-test if one is due. It waits for lost datagrams, for which the loop
// must not.
func (d *Daemon) beginSelftest() {
	if !d.ready.Load() || !d.selftest.due(time.Now(), observe.SelftestRevision) {
		return
	}
	d.mu.Lock()
	snap := d.latest
	d.mu.Unlock()
	pods, to := selftestPods(snap.Objects, snap.State, d.selftest.devices), selftestTargets(snap.State)
	d.selftest.running = true
	d.selftest.changed.Store(false)
	edge := snap.State.Settings.Edge
	go func() {
		report, err := observe.Selftest(d.loader, edge, pods, to)
		d.tested <- tested{report, err}
	}()
}

// noteSelftest takes the result. Errors are of single pods, such as one that has just ended.
func (d *Daemon) noteSelftest(t tested) {
	if t.err != nil {
		d.log.Debug("test the paths of pods", "error", t.err)
	}
	if d.selftest.note(t.report, time.Now()) {
		d.wake() // to report it
	}
}

// endSelftest waits for the self-test that is under way.
func (d *Daemon) endSelftest() {
	if d.selftest.running {
		d.noteSelftest(<-d.tested)
	}
}

// selftestPods are the local pods in the tables.
func selftestPods(objs tables.Objects, s dataplane.State, devices map[netip.Addr]netdev.PodDevice) []observe.SelftestPod {
	var out []observe.SelftestPod
	for i := range objs.Pods {
		p := &objs.Pods[i]
		a, ok := tables.PodIP(p)
		source, known := s.Sources[a]
		if !ok || !known || source.Host || p.DeletionTimestamp != nil || !tables.IsLocal(objs, p) {
			continue
		}
		endpoint, programs := s.Endpoints[a]
		v := observe.SelftestPod{
			Name: p.Namespace + "/" + p.Name, Address: a, Source: source.Ifindex, Device: endpoint.Ifindex, MAC: endpoint.MAC, Programs: programs, Datapath: endpoint.Datapath,
		}
		if found, ok := devices[a]; ok {
			v.Namespace = found.Namespace
			if !programs {
				v.Device, v.MAC = found.Endpoint.Ifindex, found.Endpoint.MAC
			}
		}
		out = append(out, v)
	}
	return out
}

// selftestTargets are addresses that no pod or service has: the first ones of the range of another
// cluster, and of the range of ClusterSetIPs.
func selftestTargets(s dataplane.State) []observe.SelftestTarget {
	var remote []netip.Addr
	for p, cluster := range s.Routes {
		if cluster != s.Settings.Cluster {
			remote = append(remote, p.Addr())
		}
	}
	var out []observe.SelftestTarget
	if len(remote) > 0 {
		out = append(out, observe.SelftestTarget{Address: slices.MinFunc(remote, netip.Addr.Compare)})
	}
	if s.VIPRange.IsValid() {
		out = append(out, observe.SelftestTarget{Address: s.VIPRange.Addr(), VIP: true})
	}
	return out
}
