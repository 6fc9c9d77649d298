package check

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/rollout"
)

// Status summarizes a clusterset.
type Status struct {
	Verdict   Verdict         `json:"verdict"`
	Clusters  []ClusterStatus `json:"clusters"`
	Paths     []PathStatus    `json:"paths"`
	Workloads []HubStatus     `json:"workloads"`
	Findings  []Finding       `json:"findings"`

	result Result
}

// ClusterStatus is a cluster that was read, or that a hub has.
type ClusterStatus struct {
	Name string `json:"name"`
	// Context is empty if no context of the kubeconfig has reached the cluster.
	Context string `json:"context,omitempty"`
	// Planes are what the cluster takes part in: hub, network, workloads.
	Planes []string `json:"planes"`
	// Accepted and Ready are nil if they are not known.
	Accepted   *bool  `json:"accepted,omitempty"`
	Ready      *bool  `json:"ready,omitempty"`
	Kubernetes string `json:"kubernetes,omitempty"`
	// Version is that of the components.
	Version  string `json:"version,omitempty"`
	Nodes    *Part  `json:"nodes,omitempty"`
	Gateways *Part  `json:"gateways,omitempty"`
	Exports  *Part  `json:"exports,omitempty"`
	Imports  *Part  `json:"imports,omitempty"`
}

// Part is how many of all are ready.
type Part struct {
	Ready int `json:"ready"`
	All   int `json:"all"`
}

func (p *Part) String() string {
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%d/%d", p.Ready, p.All)
}

func (p *Part) add(ready bool) {
	p.All++
	if ready {
		p.Ready++
	}
}

// PathStatus sums up the connections of a member to another cluster.
type PathStatus struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Accepted: the member routes to the cluster.
	Accepted bool `json:"accepted"`
	// Gateways are the gateways of From that answer, Ready those with a connection to To.
	Gateways Part `json:"gateways"`
	// Connections are pairs of gateways, Ready those that are connected.
	Connections Part `json:"connections"`
	// RTT is the longest mean round-trip time of a connection, in nanoseconds; 0: none is known.
	RTT time.Duration `json:"rttNanoseconds"`
	// LossPercent is the largest share of probes that are lost.
	LossPercent int32 `json:"lossPercent"`
}

// HubStatus counts the workloads of a hub.
type HubStatus struct {
	Hub      string `json:"hub"`
	Policies Part   `json:"policies"` // accepted
	// Bindings are Ready with a decision that is applied.
	Bindings Part `json:"bindings"`
	// Pending have no decision.
	Pending int  `json:"pendingBindings"`
	Works   Part `json:"works"` // applied
}

// NewStatus summarizes what was read, with the findings of r.
func NewStatus(s *Set, r Result) Status {
	out := Status{Verdict: r.Verdict, Clusters: []ClusterStatus{}, Paths: []PathStatus{}, Workloads: []HubStatus{}, Findings: r.Findings(), result: r}
	at := map[string]int{}
	for i := range s.Clusters {
		c := &s.Clusters[i]
		at[c.Name()] = len(out.Clusters)
		out.Clusters = append(out.Clusters, c.status())
		if c.Member && c.Err == nil {
			out.Paths = append(out.Paths, c.paths()...)
		}
		if c.Hub && c.Propagates() {
			out.Workloads = append(out.Workloads, c.workloads())
		}
	}
	for i := range s.Clusters {
		s.Clusters[i].membersOf(&out, at)
	}
	slices.SortStableFunc(out.Clusters, func(a, b ClusterStatus) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// status is what the cluster's own objects tell.
func (c *Cluster) status() ClusterStatus {
	out := ClusterStatus{Name: c.Name(), Context: c.Context, Planes: []string{}, Kubernetes: c.Version}
	if c.Err != nil {
		out.Ready = ptr.To(false)
		return out
	}
	if c.Hub {
		out.Planes = append(out.Planes, "hub")
		if c.unread[fromReadyz] == nil {
			out.Ready = ptr.To(len(c.Ready) == 0)
		}
	}
	if !c.Member {
		return out
	}
	if c.unread[fromComponents] == nil {
		ready := c.Missing == "" && !slices.ContainsFunc(c.Components, func(of rollout.Component) bool { return !of.Done() })
		out.Ready = ptr.To(ready && ptr.Deref(out.Ready, true))
		if len(c.Components) > 0 {
			_, out.Version = view.SplitImage(c.Components[0].Image)
		}
	}
	if c.Config.WorkloadsOnly {
		out.Planes = append(out.Planes, "workloads")
		return out
	}
	out.Planes = append(out.Planes, "network")
	part := func(from source) *Part {
		if c.unread[from] != nil {
			return nil
		}
		return &Part{}
	}
	if out.Nodes = part(fromIndexes); out.Nodes != nil {
		for _, n := range c.Indexes {
			out.Nodes.add(n.Status.Ready)
		}
	}
	if out.Gateways = part(fromGateways); out.Gateways != nil {
		for _, g := range c.Gateways {
			out.Gateways.add(!c.Health[g.Name].Gone() && g.Status.StatusFailure == "")
		}
	}
	if out.Exports = part(fromExports); out.Exports != nil {
		for _, e := range c.Exports {
			out.Exports.add(meta.IsStatusConditionTrue(e.Status.Conditions, string(mcs.ServiceExportConditionReady)))
		}
	}
	if out.Imports = part(fromImports); out.Imports != nil {
		for _, i := range c.Imports {
			out.Imports.add(!meta.IsStatusConditionFalse(i.Status.Conditions, string(mcs.ServiceImportConditionReady)))
		}
	}
	return out
}

// paths has one entry for each other cluster.
func (c *Cluster) paths() (out []PathStatus) {
	for i := range c.Peers {
		p := &c.Peers[i]
		path := PathStatus{From: c.Name(), To: p.Name, Accepted: accepted(p)}
		for _, g := range c.Gateways {
			if c.Health[g.Name].Gone() {
				continue
			}
			up := false
			for _, is := range g.Status.Connections {
				if is.Endpoint.ClusterID != p.Name {
					continue
				}
				connected := is.Status == submarinerv1.Connected
				path.Connections.add(connected)
				up = up || connected
				if connected {
					path.LossPercent = max(path.LossPercent, is.LossPercent)
				}
				if connected && is.LatencyRTT != nil {
					// a time that cannot be read is not known
					if rtt, err := time.ParseDuration(is.LatencyRTT.Average); err == nil {
						path.RTT = max(path.RTT, rtt)
					}
				}
			}
			path.Gateways.add(up)
		}
		out = append(out, path)
	}
	return out
}

func (c *Cluster) workloads() HubStatus {
	out := HubStatus{Hub: c.Name()}
	for _, p := range c.Policies {
		out.Policies.add(!meta.IsStatusConditionFalse(p.conditions, policyv1alpha1.ConditionAccepted))
	}
	for _, b := range c.Bindings {
		scheduled := meta.IsStatusConditionTrue(b.conditions, workv1alpha2.ConditionScheduled)
		out.Bindings.add(scheduled && meta.IsStatusConditionTrue(b.conditions, workv1alpha2.ConditionFullyApplied))
		if !scheduled {
			out.Pending++
		}
	}
	for _, w := range c.Works {
		out.Works.add(meta.IsStatusConditionTrue(w.Status.Conditions, workv1alpha1.ConditionApplied))
	}
	return out
}

// membersOf adds what the hub has of its members to those that were read, and the members that no
// context has reached.
func (c *Cluster) membersOf(s *Status, at map[string]int) {
	of := func(name string) *ClusterStatus {
		i, ok := at[name]
		if !ok {
			i = len(s.Clusters)
			at[name] = i
			s.Clusters = append(s.Clusters, ClusterStatus{Name: name, Planes: []string{}})
		}
		return &s.Clusters[i]
	}
	plane := func(m *ClusterStatus, name string) {
		if !slices.Contains(m.Planes, name) {
			m.Planes = append(m.Planes, name)
		}
	}
	for _, r := range c.Registered {
		if m := of(r.Name); r.Annotations[pelagov1alpha1.AnnotationWorkloadsOnly] != "true" {
			plane(m, "network")
			m.Accepted = ptr.To(!waits(&r))
		}
	}
	for i := range c.Workloads {
		w := &c.Workloads[i]
		m := of(w.Name)
		plane(m, "workloads")
		m.Accepted = ptr.To(ptr.Deref(m.Accepted, true) && w.Accepted())
		if ready := w.Ready(); ready != nil {
			m.Ready = ptr.To(ptr.Deref(m.Ready, true) && ready.Status == "True")
		}
		m.Kubernetes = cmp.Or(m.Kubernetes, w.Status.KubernetesVersion)
	}
}

// Print writes one screen, or JSON or YAML.
func (s Status) Print(out io.Writer, output string) error {
	if output == "json" || output == "yaml" {
		return view.Encode(out, output, s)
	}
	known := func(is *bool) string {
		switch {
		case is == nil:
			return "-"
		case *is:
			return "yes"
		}
		return "no"
	}
	clusters := view.Table{
		Header: []string{"CLUSTER", "PLANES", "ACCEPTED", "READY", "NODES", "GATEWAYS", "EXPORTS", "IMPORTS", "VERSION"}, Wide: []string{"KUBERNETES", "CONTEXT"},
	}
	for _, c := range s.Clusters {
		clusters.Rows = append(clusters.Rows, view.Row{
			Cells: []string{c.Name, dash(strings.Join(c.Planes, ",")), known(c.Accepted), known(c.Ready), c.Nodes.String(), c.Gateways.String(),
				c.Exports.String(), c.Imports.String(), dash(c.Version)},
			Wide: []string{dash(c.Kubernetes), dash(c.Context)},
		})
	}
	paths := view.Table{Header: []string{"FROM", "TO", "ACCEPTED", "GATEWAYS", "CONNECTIONS", "WORST RTT", "LOSS"}}
	for _, p := range s.Paths {
		rtt := "-"
		if p.RTT > 0 {
			rtt = p.RTT.Round(10 * time.Microsecond).String()
		}
		paths.Add(p.From, p.To, known(&p.Accepted), p.Gateways.String(), p.Connections.String(), rtt, fmt.Sprintf("%d %%", p.LossPercent))
	}
	workloads := view.Table{Header: []string{"HUB", "POLICIES ACCEPTED", "BINDINGS APPLIED", "BINDINGS PENDING", "WORKS APPLIED"}}
	for _, w := range s.Workloads {
		workloads.Add(w.Hub, w.Policies.String(), w.Bindings.String(), fmt.Sprint(w.Pending), w.Works.String())
	}
	for _, t := range []view.Table{clusters, paths, workloads} {
		if len(t.Rows) == 0 {
			continue
		}
		if err := t.Print(out, output == "wide"); err != nil {
			return err
		}
	}
	return s.result.Print(out, "table") // wide would list all checks
}
