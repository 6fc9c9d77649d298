package status

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// Node is what the daemon knows of itself besides objects and tables.
type Node struct {
	// Ready: the programs are attached, and full tables have been written; Gateway: also those of a
	// gateway.
	Ready, Gateway bool
	// Written: the tables are in the kernel. Err is the error of the last reconcile.
	Written bool
	Err     error
	// Serving: remote gateways accept packets of this one.
	Serving bool
	// BootID is that of the running kernel.
	BootID string
	Reach  tables.Reach
	// XDP: some uplink is to have XDP; XDPProblems are why some have none.
	XDP         bool
	XDPProblems []string
	// Foreign is what others have on the node that keeps packets from the programs.
	Foreign []string
	// RulesMissing is why rules that accept packets are missing; Blocked are the packets that rules
	// of others drop.
	RulesMissing error
	Blocked      []string
	// SelfTest is the result of the last self-test; without paths: there was none.
	SelfTest observe.SelftestReport
	Demand   []pelagov1alpha1.BlockDemand
}

// NodeIndex returns this node's NodeIndex with its desired status; nil if it has none.
func NodeIndex(objs tables.Objects, r tables.Result, n Node) *pelagov1alpha1.NodeIndex {
	have := tables.OwnIndex(objs)
	if have.Name == "" {
		return nil
	}
	out := have.DeepCopy()
	s := &out.Status
	s.Ready, s.Gateway = n.Ready, n.Gateway
	s.Serving = s.Gateway && n.Serving
	s.BootID, s.NodeBootID = n.BootID, tables.OwnNode(objs).Status.NodeInfo.BootID
	s.Mode = r.Datapath
	s.Address = ""
	if a := r.State.Settings.Address; a.IsValid() {
		s.Address = a.String()
	}
	s.Wire, s.FabricAddress = nil, ""
	if r.Gateway {
		s.Wire = r.Wire
		if tables.Encrypted(objs.Config) {
			s.FabricAddress = r.State.Settings.CableAddress.String()
		}
	}
	s.Needed = nil
	for _, a := range r.Needed[:min(len(r.Needed), maxNeeded)] {
		s.Needed = append(s.Needed, a.String())
	}
	s.PathMTU = r.PathMTU
	s.KeyRotation = keyRotation(r.Rotation)
	s.PublicIP = n.Reach.Public
	setSettings(&s.Conditions, n.Reach.Settings)
	setXDP(&s.Conditions, n.XDP, n.XDPProblems)
	setHost(&s.Conditions, slices.Concat(n.Foreign, named(r.Unreached)))
	setFirewall(&s.Conditions, n.RulesMissing, n.Blocked)
	setSelfTest(&s.Conditions, n.SelfTest)
	setReconciled(&s.Conditions, n.Err)
	setRanges(&s.Conditions, objs, r.Outside)
	if n.Written { // what is not in the kernel is not acknowledged
		s.Acks = r.Acks
	}
	s.Demand = n.Demand
	return out
}

// maxNeeded bounds the needed addresses in a NodeIndex.
const maxNeeded = 64

// maxMessage bounds the message of a condition, in bytes (metav1.Condition): the API server refuses
// a status with a longer one, such as a log of the verifier.
const maxMessage = 32768

// setCondition sets a condition with times as the API server returns them: another one would be a
// change, and written again.
func setCondition(conditions *[]metav1.Condition, c metav1.Condition) {
	if len(c.Message) > maxMessage {
		c.Message = strings.ToValidUTF8(c.Message[:maxMessage-3], "") + "..."
	}
	c.LastTransitionTime = metav1.Now().Rfc3339Copy()
	meta.SetStatusCondition(conditions, c)
}

// setSettings sets the condition of a gateway's settings; refused is nil on other nodes.
func setSettings(conditions *[]metav1.Condition, refused []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeSettings, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonSettingsTaken}
	switch {
	case refused == nil:
		meta.RemoveStatusCondition(conditions, pelagov1alpha1.NodeSettings)
		return
	case len(refused) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pelagov1alpha1.ReasonSettingsInvalid, strings.Join(refused, "; ")
	}
	setCondition(conditions, c)
}

// setXDP sets the condition of XDP; a node without has none.
func setXDP(conditions *[]metav1.Condition, wanted bool, problems []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeXDP, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonXDPAttached}
	switch {
	case len(problems) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pelagov1alpha1.ReasonXDPNotAttached, strings.Join(problems, "; ")
	case !wanted:
		meta.RemoveStatusCondition(conditions, pelagov1alpha1.NodeXDP)
		return
	}
	setCondition(conditions, c)
}

// setHost sets the condition of what on the node keeps packets from the programs.
func setHost(conditions *[]metav1.Condition, obstacles []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeHost, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonHostClear}
	if len(obstacles) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pelagov1alpha1.ReasonHostObstructed, strings.Join(obstacles, "; ")
	}
	setCondition(conditions, c)
}

// maxOutside bounds the pods that the condition of ranges names.
const maxOutside = 8

// setRanges sets the condition of pods outside of the registered ranges; with globalnet none is
// routed.
func setRanges(conditions *[]metav1.Condition, objs tables.Objects, outside []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeRanges, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonRangesCoverPods}
	switch {
	case objs.Config.Globalnet():
		meta.RemoveStatusCondition(conditions, pelagov1alpha1.NodeRanges)
		return
	case len(outside) > 0:
		slices.Sort(outside)
		more := ""
		if n := len(outside) - maxOutside; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonRangesOutgrown
		c.Message = fmt.Sprintf("%s%s: outside of the registered pod ranges %s, so other clusters do not reach them and drop what they send; "+
			"join again with --clustercidr and ranges that contain the present ones and theirs", strings.Join(outside[:min(len(outside), maxOutside)], ", "), more, objs.Config.PodCIDRs)
	}
	setCondition(conditions, c)
}

// setFirewall sets the condition of the node's firewall rules.
func setFirewall(conditions *[]metav1.Condition, missing error, blocked []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeFirewall, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonFirewallOpen}
	messages := named(blocked)
	if missing != nil {
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonFirewallRulesMissing
		messages = append(messages, named(strings.Split(missing.Error(), "\n"))...)
	}
	if len(blocked) > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonFirewallBlocks
	}
	c.Message = strings.Join(messages, "; ")
	setCondition(conditions, c)
}

// namedErrors bounds the errors in a condition, whose message the API server limits to 32 KiB.
const namedErrors = 10

// setReconciled sets the condition of the last reconcile. Its message depends on the set of errors
// only: a new message is a write, whose event causes the next reconcile.
func setReconciled(conditions *[]metav1.Condition, err error) {
	c := metav1.Condition{
		Type: pelagov1alpha1.NodeReconciled, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonReconciled,
	}
	if err != nil {
		all := named(strings.Split(err.Error(), "\n"))
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pelagov1alpha1.ReasonReconcileFailed, strings.Join(all, "; ")
	}
	setCondition(conditions, c)
}

// named returns the set of the messages, sorted and bounded.
func named(messages []string) []string {
	all := slices.Compact(slices.Sorted(slices.Values(messages)))
	if more := len(all) - namedErrors; more > 0 {
		all = append(all[:namedErrors], fmt.Sprintf("and %d more", more))
	}
	return all
}

// keyRotation is nil if no rotation was requested.
func keyRotation(r cable.Rotation) *pelagov1alpha1.KeyRotation {
	if r.Request == "" {
		return nil
	}
	return &pelagov1alpha1.KeyRotation{Request: r.Request, TunnelsLeft: int32(r.Left), Message: r.Waits}
}

// crowded is the share of an egress IP's ports in use towards one remote endpoint above which more
// blocks are requested.
const crowded = 0.6

// Demand is the number of port blocks that the node needs, by the flows of the last sweep.
type Demand struct {
	exhausted uint64 // counter at the last update
	// blocks is the number wanted, by egress IP; nil before the first sweep.
	blocks map[netip.Addr]int
}

// Update takes the result of a sweep: the largest number of flows towards one remote endpoint by
// egress IP, the first ports of the blocks that the node has, and the counter of new flows that
// found no port.
func (d *Demand) Update(crowding map[netip.Addr]int, have map[netip.Addr][]uint16, exhausted uint64) {
	dropped := exhausted > d.exhausted
	d.exhausted = exhausted
	d.blocks = map[netip.Addr]int{}
	for ip, first := range have {
		need := int(float64(crowding[ip])/(crowded*dataplane.BlockPorts)) + 1
		if dropped && crowding[ip] > len(first)*dataplane.BlockPorts/2 {
			need = max(need, 2*len(first))
		}
		// Fewer are requested only when half would suffice: else blocks would go back and forth.
		if n := len(first); need < n && 2*need > n {
			need = n
		}
		d.blocks[ip] = min(need, dataplane.MaxBlocks)
	}
}

// Blocks returns the demand by pool.
func (d *Demand) Blocks(objs tables.Objects) []pelagov1alpha1.BlockDemand {
	need := map[pelagov1alpha1.EgressPool]int32{}
	held := map[pelagov1alpha1.EgressPool]map[netip.Addr]int32{}
	for i := range objs.PortBlocks {
		p := &objs.PortBlocks[i]
		ip, err := netip.ParseAddr(p.Spec.EgressIP)
		if err != nil || p.Spec.Node != objs.Name || p.Spec.State == pelagov1alpha1.BlockReleasing {
			continue
		}
		if held[p.Spec.Pool] == nil {
			held[p.Spec.Pool] = map[netip.Addr]int32{}
		}
		held[p.Spec.Pool][ip]++
	}
	for pool, ips := range held {
		for ip, n := range ips {
			want, known := d.blocks[ip]
			if !known { // not swept yet: it stays
				want = int(n)
			}
			need[pool] += int32(want)
		}
	}
	var out []pelagov1alpha1.BlockDemand
	for pool, n := range need {
		if n <= 1 { // the minimum
			continue
		}
		out = append(out, pelagov1alpha1.BlockDemand{Pool: pool, Blocks: n})
	}
	slices.SortFunc(out, func(a, b pelagov1alpha1.BlockDemand) int {
		return cmp.Or(cmp.Compare(a.Pool.Namespace, b.Pool.Namespace), cmp.Compare(a.Pool.Name, b.Pool.Name))
	})
	return out
}
