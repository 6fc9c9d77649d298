package node

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
)

// XDP says on which uplinks a gateway has XDP do the simple work.
type XDP string

const (
	XDPAuto XDP = config.XDPAuto // on network cards
	XDPOn   XDP = config.XDPOn   // on every uplink
	XDPOff  XDP = config.XDPOff
)

// ParseXDP reads the value of --xdp; if empty, the cluster's configuration says it.
func ParseXDP(s string) (XDP, error) {
	if s == "" || slices.Contains(config.XDPSettings(), s) {
		return XDP(s), nil
	}
	return "", fmt.Errorf("XDP %q: use %s", s, strings.Join(config.XDPSettings(), ", "))
}

// or is what the node's own command line says, else the cluster's configuration.
func (x XDP) or(c config.Config) XDP {
	if x != "" {
		return x
	}
	return XDP(c.XDP)
}

// devices are those of a gateway's uplinks that XDP goes onto. kind is that of a device as the kernel names it.
func (x XDP) devices(gateway bool, uplinks []int, kind func(ifindex int) string) []int {
	if !gateway || x == XDPOff || x == "" {
		return nil
	}
	if x == XDPOn {
		return uplinks
	}
	return slices.DeleteFunc(slices.Clone(uplinks), func(ifindex int) bool { return kind(ifindex) != networkCard })
}

// networkCard is what netlink calls a device that a driver has made, not a user.
const networkCard = "device"

// deviceKind is "" for a device that is gone.
func deviceKind(ifindex int) string {
	link, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return ""
	}
	return link.Type()
}

// noteXDP keeps the condition of XDP; a node that is not to have any has none.
func noteXDP(conditions *[]metav1.Condition, asked bool, problems []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeXDP, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonXDPAttached}
	switch {
	case len(problems) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pelagov1alpha1.ReasonXDPNotAttached, strings.Join(problems, "; ")
	case !asked:
		meta.RemoveStatusCondition(conditions, pelagov1alpha1.NodeXDP)
		return
	}
	meta.SetStatusCondition(conditions, c)
}

// callers are the addresses that remote gateways have: as they say, and as those that have proved who they are were last
// heard from.
func callers(peers []cable.Peer, status map[netip.Addr]cable.Status) []netip.Addr {
	known := map[netip.Addr]bool{}
	for _, p := range peers {
		known[p.Address.Unmap()] = true
		if s := status[p.Fabric]; !s.Handshake.IsZero() {
			known[s.Endpoint.Addr().Unmap()] = true
		}
	}
	delete(known, netip.Addr{})
	return slices.SortedFunc(maps.Keys(known), netip.Addr.Compare)
}

// guard has the programs watch over the ports of a WireGuard wire.
func (d *Daemon) guard(c config.Config, w Wire) error {
	var ports []uint16
	var known []netip.Addr
	if c.CableDriver == config.CableWireGuard && len(w.Ports) > 0 {
		d.links.mu.Lock()
		ports, known = w.Ports, callers(d.wirePeers, d.links.wire)
		d.links.mu.Unlock()
	}
	guarded := fmt.Sprint(ports, known)
	if guarded == d.guarded && !d.assert {
		return nil
	}
	if err := d.loader.Guard(ports, known); err != nil {
		return err
	}
	d.guarded = guarded
	return nil
}
