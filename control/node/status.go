package node

import (
	"cmp"
	"net/netip"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane"
)

// nodeReport is what the kernel has reached, as it is to stand in objects of the agent.
type nodeReport struct {
	// index is this node's NodeIndex with its new status; nil: it has none.
	index *pelagov1alpha1.NodeIndex
	// released are the port blocks that the node does not use any more, as they were when it gave them up.
	released []*pelagov1alpha1.PortBlock
}

func (d *Daemon) nodeReport(objs Objects, r Result, reach Reach, applied bool) nodeReport {
	var out nodeReport
	if n := ownIndex(objs); n.Name != "" {
		out.index = d.indexReport(n, objs, r, reach, applied)
	}
	for i := range objs.PortBlocks {
		if p := &objs.PortBlocks[i]; d.releasable(p, objs) {
			out.released = append(out.released, p.DeepCopy())
		}
	}
	return out
}

func (d *Daemon) indexReport(n *pelagov1alpha1.NodeIndex, objs Objects, r Result, reach Reach, applied bool) *pelagov1alpha1.NodeIndex {
	want := n.DeepCopy()
	want.Status.Ready = applied && r.State.Settings.Ready
	want.Status.Gateway = applied && r.Gateway
	want.Status.Serving = want.Status.Gateway && d.tenure.serves
	want.Status.BootID = bootID()
	want.Status.NodeBootID = ownNode(objs).Status.NodeInfo.BootID
	want.Status.Mode = r.Datapath.String()
	want.Status.Address = ""
	if a := r.State.Settings.Address; a.IsValid() {
		want.Status.Address = a.String()
	}
	want.Status.Wire, want.Status.FabricAddress = nil, ""
	if r.Gateway {
		want.Status.Wire = r.Wire
		if encrypted(objs.Config) {
			want.Status.FabricAddress = r.State.Settings.CableAddress.String()
		}
	}
	want.Status.PathMTU = r.PathMTU
	want.Status.KeyRotation = rotationReport(r.Rotation)
	want.Status.PublicIP = reach.Public
	noteSettings(&want.Status.Conditions, reach.Settings)
	noteXDP(&want.Status.Conditions, d.xdp, d.xdpProblems)
	if applied { // what is not in the kernel is not acknowledged
		want.Status.Acks = r.Acks
	}
	want.Status.Demand = d.demandOf(objs)
	return want
}

// noteSettings keeps the condition of a gateway's settings; refused is nil where there is none.
func noteSettings(conditions *[]metav1.Condition, refused []string) {
	c := metav1.Condition{Type: pelagov1alpha1.NodeSettings, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonSettingsTaken}
	switch {
	case refused == nil:
		meta.RemoveStatusCondition(conditions, pelagov1alpha1.NodeSettings)
		return
	case len(refused) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, pelagov1alpha1.ReasonSettingsInvalid, strings.Join(refused, "; ")
	}
	meta.SetStatusCondition(conditions, c)
}

// releasable: the agent wants the block back, no new flow can begin in it (it is not in the tables), and a sweep begun
// after that has seen no flow in it.
func (d *Daemon) releasable(p *pelagov1alpha1.PortBlock, objs Objects) bool {
	if p.Spec.Node != objs.Name || p.Spec.State != pelagov1alpha1.BlockReleasing || p.Status.Released {
		delete(d.leaving, p.Name)
		return false
	}
	ip, err := netip.ParseAddr(p.Spec.EgressIP)
	if err != nil {
		return true
	}
	first := uint16(p.Spec.FirstPort)
	d.mu.Lock()
	used := slices.Contains(d.latest.state.Egresses[ip], first)
	d.mu.Unlock()
	since, seen := d.leaving[p.Name]
	if used || !seen {
		d.leaving[p.Name] = d.sweeps
		return false
	}
	return d.sweeps > since && !d.inUse[dataplane.BlockKey{Address: ip, First: first}]
}

// demandOf translates the demand per egress IP into that per pool.
func (d *Daemon) demandOf(objs Objects) []pelagov1alpha1.BlockDemand {
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
			want, known := d.demand.blocks[ip]
			if !known { // not looked at yet: it stays
				want = int(n)
			}
			need[pool] += int32(want)
		}
	}
	var out []pelagov1alpha1.BlockDemand
	for pool, n := range need {
		if n <= 1 { // the least that there is
			continue
		}
		out = append(out, pelagov1alpha1.BlockDemand{Pool: pool, Blocks: n})
	}
	slices.SortFunc(out, func(a, b pelagov1alpha1.BlockDemand) int {
		return cmp.Or(cmp.Compare(a.Pool.Namespace, b.Pool.Namespace), cmp.Compare(a.Pool.Name, b.Pool.Name))
	})
	return out
}

// bootID changes with every boot of the node: port claims of an earlier boot are gone with its memory.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
