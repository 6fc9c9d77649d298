package observe

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// SelftestOutcome is what became of the datagrams of one kind of path. It is a value of the label
// outcome of pelago_selftest_paths.
type SelftestOutcome string

const (
	// SelftestPassed: edge_out received the datagram from the device in the tables.
	SelftestPassed SelftestOutcome = "passed"
	// SelftestLost: it was seen nowhere else. A NetworkPolicy has the same effect.
	SelftestLost SelftestOutcome = "lost"
	// SelftestBypassed: edge_out received it, and the program on the pod's own device did not.
	SelftestBypassed SelftestOutcome = "bypassed"
	// SelftestDiverted: it took another way: left by another device, arrived from another one, or
	// with another source address.
	SelftestDiverted SelftestOutcome = "diverted"
)

// SelftestOutcomes are all, from the best to the worst.
var SelftestOutcomes = []SelftestOutcome{SelftestPassed, SelftestLost, SelftestBypassed, SelftestDiverted}

func (o SelftestOutcome) worse(than SelftestOutcome) bool {
	for _, v := range SelftestOutcomes {
		if v == than {
			return o != than
		}
		if v == o {
			return false
		}
	}
	return false
}

// SelftestFinding is a kind of path whose packets do not arrive as they should, by an example.
type SelftestFinding struct {
	Outcome SelftestOutcome
	Pod     string // namespace/name
	// Message names pod, device, what was seen and a remedy.
	Message string
}

// observed is what was seen of one datagram.
type observed struct {
	probed
	// at is the device that it was injected at, source the one at which the stack is to receive it.
	at, source string
	// edge: edge_out received it, from ingress, with the source address.
	edge    bool
	ingress string
	address netip.Addr
	// pod: pod_out received it. uplink is the uplink by which it was about to leave.
	pod    bool
	uplink string
	// seen are the devices that it was seen at, in order.
	seen []trace.Sighting
	// programs of others are at the ingress of at, in order.
	programs []string
}

// judge explains the path of a datagram.
func (o observed) judge() SelftestFinding {
	f := SelftestFinding{Pod: o.probed.pod.Name}
	about := fmt.Sprintf("a packet of pod %s (%s) to %s", f.Pod, o.at, o.to.Address)
	say := func(outcome SelftestOutcome, format string, args ...any) SelftestFinding {
		f.Outcome, f.Message = outcome, about+" "+fmt.Sprintf(format, args...)
		return f
	}
	left := o.uplink
	if left == "" {
		left = o.lastLeft()
	}
	expected := o.probed.pod.Programs && (o.to.VIP || o.probed.pod.Datapath != 0)
	switch {
	case o.edge && o.address != o.probed.pod.Address:
		return say(SelftestDiverted, "reaches pelago0 with the source address %s: a rule of the node translates it; exempt the ranges of other clusters from masquerading", o.address)
	case o.edge && o.ingress != o.source:
		return say(SelftestDiverted, "enters the node's stack by %s, and the tables have %s: such packets are dropped (drop-unknown-source); "+
			"give the node a route to the pod by %s", o.ingress, o.source, o.ingress)
	case o.edge && expected && !o.pod:
		return say(SelftestBypassed, "does not reach Pelago's program at %s%s: its datapath is strict, and ClusterSetIPs of services of its own cluster may fail; "+
			"detach what is before it, or let that return TCX_NEXT", o.at, o.others())
	case o.edge:
		return say(SelftestPassed, "arrives")
	case !o.route.Overlay && o.route.Error != "":
		return say(SelftestDiverted, "has no route to pelago0 from %s (%s): a rule of the node has precedence over rule %d; compare `ip rule`, and give it a priority above %d",
			o.source, o.route.Error, netdev.RulePriority, netdev.RulePriority)
	case !o.route.Overlay:
		return say(SelftestDiverted, "is routed by %s and not by pelago0: a rule of the node has precedence over rule %d; compare `ip rule`, and give it a priority above %d",
			o.route.Device, netdev.RulePriority, netdev.RulePriority)
	case left != "":
		return say(SelftestDiverted, "leaves by %s and not by pelago0, though the node's rules route it there: a program or switch sends it%s; "+
			"let the CNI pass packets for other clusters to the node's stack (with Cilium, bpf.hostLegacyRouting; with OVN-Kubernetes, routingViaHost)", left, o.others())
	}
	return say(SelftestLost, "does not reach pelago0 and was last seen at %s%s: unless NetworkPolicies deny the egress of all pods tested, a program or firewall of the node drops it; "+
		"see `pelago trace --live` and the condition Firewall", o.lastSeen(), o.others())
}

// lastLeft is the device by which the datagram was last seen to leave, if it was seen nowhere after;
// empty: none.
func (o observed) lastLeft() string {
	if n := len(o.seen); n > 0 && o.seen[n-1].Out {
		return o.seen[n-1].Device
	}
	return ""
}

func (o observed) lastSeen() string {
	if n := len(o.seen); n > 0 {
		return o.seen[n-1].Device
	}
	return o.at
}

func (o observed) others() string {
	if len(o.programs) == 0 {
		return ""
	}
	return fmt.Sprintf(" (programs of others at %s: %s)", o.at, strings.Join(o.programs, ", "))
}
