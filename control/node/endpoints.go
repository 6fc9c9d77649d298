package node

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// endpointRetries bounds how often the device of a pod that is not known yet is looked up after
// retry.
const endpointRetries = 15

// endpoints caches the devices of pods as long as they exist: where a pod's namespace is not
// visible, the bridge and neighbour entries by which its device is found expire.
type endpoints struct {
	known map[types.UID]dataplane.Endpoint
	tries map[types.UID]int
}

// find adds to host the endpoints of the pods that need one, and why others have none. again: that
// of a new pod is not known yet.
func (e *endpoints) find(objs tables.Objects, d tables.PodDatapaths, devices map[netip.Addr]netdev.PodDevice, host *tables.Host) (again bool) {
	known, tries := map[types.UID]dataplane.Endpoint{}, map[types.UID]int{}
	host.Endpoints = map[netip.Addr]dataplane.Endpoint{}
	for i := range objs.Pods {
		p := &objs.Pods[i]
		a, ok := tables.PodIP(p)
		if !ok || !d.NeedsDevice(objs, p) {
			continue
		}
		device := devices[a]
		v := device.Endpoint
		if v.Ifindex == 0 {
			if former, ok := e.known[p.UID]; ok {
				if _, gone := netlink.LinkByIndex(int(former.Ifindex)); gone == nil {
					v = former
				}
			}
		}
		v.Datapath = d.Of(p)
		problem := device.Problem
		if v.Ifindex != 0 {
			known[p.UID], problem = v, ""
			if device.Strict != "" && v.Datapath != dataplane.Strict {
				v.Datapath, problem = dataplane.Strict, device.Strict
			}
			host.Endpoints[a] = v
		} else {
			tries[p.UID] = e.tries[p.UID] + 1
			again = again || tries[p.UID] <= endpointRetries
		}
		wanted := d.Of(p)
		if d.Adapts(p) {
			wanted = dataplane.Strict // less is what the setting means
		}
		if reason := missing(objs, wanted, v, problem); reason != "" {
			host.Limited[a] = reason
		}
	}
	e.known, e.tries = known, tries
	return again
}

// missing describes what a pod lacks by its endpoint; empty: nothing.
func missing(objs tables.Objects, wanted dataplane.Datapath, v dataplane.Endpoint, problem string) string {
	switch {
	case problem == "":
		return ""
	case v.Ifindex == 0 && !objs.Config.Globalnet() && len(objs.Imports) > 0:
		return "it does not reach the services of its own cluster at ClusterSetIPs: " + problem
	case wanted != dataplane.Strict:
		return fmt.Sprintf("its packets pass the node's stack, as with datapath %s: %s", dataplane.Strict, problem)
	}
	return ""
}

// leftOutAfter is how long a pod is left out before it is reported: devices of starting pods come
// late.
const leftOutAfter = 10 * time.Second

// leftOut is since when pods are left out, and which of them an Event has reported.
type leftOut struct {
	since    map[types.UID]time.Time
	reported map[types.UID]string // the reason
}

// update returns the pods of current that have been left out for leftOutAfter, those whose Event is
// due, and whether others have not been so for long enough.
func (l *leftOut) update(current []tables.LeftOut, now time.Time) (lasting, due []tables.LeftOut, waiting bool) {
	since, reported := map[types.UID]time.Time{}, map[types.UID]string{}
	for _, p := range current {
		at, ok := l.since[p.UID]
		if !ok {
			at = now
		}
		since[p.UID] = at
		if now.Sub(at) < leftOutAfter {
			waiting = true
			continue
		}
		lasting = append(lasting, p)
		if l.reported[p.UID] != p.Reason {
			due = append(due, p)
		}
		reported[p.UID] = p.Reason
	}
	l.since, l.reported = since, reported
	return lasting, due, waiting
}

// reportLeftOut records Events on the pods that are left out and returns those for the RouteAgent.
func (d *Daemon) reportLeftOut(current []tables.LeftOut) []tables.LeftOut {
	lasting, due, waiting := d.leftOut.update(current, time.Now())
	if waiting {
		d.wakeLater()
	}
	if d.opts.Events == nil {
		return lasting
	}
	for _, p := range due {
		about := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Pod.Namespace, Name: p.Pod.Name, UID: p.UID}
		reason, text := "NotConnected", "no traffic with other clusters: "
		if p.Connected {
			reason, text = "PartlyConnected", ""
		}
		d.opts.Events.Event(about, corev1.EventTypeWarning, reason, text+p.Reason)
	}
	return lasting
}
