package view

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/rollout"
)

// MaxMembers bounds the number of members that are read at a time.
const MaxMembers = 16

// Member is an open member.
type Member struct {
	Config *rest.Config
	Client client.Client
	Typed  kubernetes.Interface
}

// View makes one table of a member.
type View struct {
	Name, Short string
	read        func(context.Context, Member, config.Config) (Table, error)
}

// Views are all of them.
var Views = []View{
	{"connections", "Connections to the gateways of other clusters", connections},
	{"endpoints", "Gateways of all clusters, as published to this cluster", endpoints},
	{"networks", "Address ranges", networks},
	{"gateways", "Gateways of this cluster", gateways},
	{"dns", "Where the cluster's DNS forwards the clusterset's names", clusterDNS},
	{"versions", "Running images", versions},
	{"services", "Services that are imported: who exports them, and which cluster gets the connections from here", services},
}

// State is the form of a member in -o json and -o yaml.
type State struct {
	Context string           `json:"context"`
	Cluster string           `json:"cluster"`
	Shown   map[string][]any `json:"shown"`
}

// Show reads views of a member, and prints their tables unless the output is JSON or YAML.
func Show(ctx context.Context, output, name string, m Member, c config.Config, shown []View, out io.Writer) (State, error) {
	state := State{Context: name, Cluster: c.ClusterID, Shown: map[string][]any{}}
	tables := make([]Table, len(shown))
	for i, v := range shown {
		var err error
		if tables[i], err = v.read(ctx, m, c); err != nil {
			return State{}, err
		}
		state.Shown[v.Name] = tables[i].Objects()
	}
	if output == "table" || output == "wide" {
		fmt.Fprintf(out, "Cluster %q\n", c.ClusterID)
		for _, t := range tables {
			if err := t.Print(out, output == "wide"); err != nil {
				return state, err
			}
		}
	}
	return state, nil
}

// The columns of these tables are those of Submariner's tool.

// listGateways returns the gateways of this cluster by name, and the health of each as others
// observe it.
func listGateways(ctx context.Context, m Member) ([]submarinerv1.Gateway, map[string]Health, error) {
	list := &submarinerv1.GatewayList{}
	if err := m.Client.List(ctx, list, client.InNamespace(config.SystemNamespace)); err != nil {
		return nil, nil, fmt.Errorf("list Gateways: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b submarinerv1.Gateway) int { return strings.Compare(a.Name, b.Name) })
	healths, err := GatewayHealth(ctx, m.Client, list.Items, time.Now())
	return list.Items, healths, err
}

// connections has a row for each pair of a gateway here and a gateway there.
func connections(ctx context.Context, m Member, _ config.Config) (Table, error) {
	t := Table{
		Header: []string{"GATEWAY", "CLUSTER", "REMOTE IP", "NAT", "CABLE DRIVER", "SUBNETS", "STATUS", "RTT avg.", "LOCAL GATEWAY"},
		Wide:   []string{"MESSAGE"},
		Empty:  "No connections: no other cluster has joined, or no gateway reports yet.",
	}
	gateways, healths, err := listGateways(ctx, m)
	if err != nil {
		return t, err
	}
	for _, gateway := range gateways {
		h := healths[gateway.Name]
		connections := slices.Clone(gateway.Status.Connections)
		slices.SortFunc(connections, func(a, b submarinerv1.Connection) int {
			return strings.Compare(a.Endpoint.ClusterID+" "+a.Endpoint.Hostname, b.Endpoint.ClusterID+" "+b.Endpoint.Hostname)
		})
		for _, c := range connections {
			if h.Gone() { // its last report is stale
				c.Status, c.LatencyRTT = submarinerv1.ConnectionNone, nil
				c.StatusMessage = fmt.Sprintf("gateway %s: %s", gateway.Name, h.Text())
			}
			rtt := ""
			if c.LatencyRTT != nil {
				rtt = c.LatencyRTT.Average
			}
			t.Rows = append(t.Rows, Row{
				Cells: []string{c.Endpoint.Hostname, c.Endpoint.ClusterID, c.UsingIP, yesNo(c.UsingNAT), c.Endpoint.Backend,
					strings.Join(c.Endpoint.Subnets, ", "), string(c.Status), rtt, gateway.Name},
				Wide: []string{c.StatusMessage},
				Object: struct {
					LocalGateway string                  `json:"localGateway"`
					Connection   submarinerv1.Connection `json:"connection"`
				}{gateway.Name, c},
			})
		}
	}
	return t, nil
}

// endpoints has a row for each gateway of each cluster.
func endpoints(ctx context.Context, m Member, c config.Config) (Table, error) {
	t := Table{
		Header: []string{"CLUSTER", "ENDPOINT IP", "PUBLIC IP", "CABLE DRIVER", "TYPE"},
		Wide:   []string{"HOSTNAME", "PORT", "TUNNELS", "SUBNETS"},
		Empty:  "No endpoints: no gateway has been published yet.",
	}
	list := &submarinerv1.EndpointList{}
	if err := m.Client.List(ctx, list, client.InNamespace(config.SystemNamespace)); err != nil {
		return t, fmt.Errorf("list Endpoints: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b submarinerv1.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range list.Items {
		kind := "remote"
		if e.Spec.ClusterID == c.ClusterID {
			kind = "local"
		}
		t.Rows = append(t.Rows, Row{
			Cells:  []string{e.Spec.ClusterID, e.Spec.PrivateIP, e.Spec.PublicIP, e.Spec.Backend, kind},
			Wide:   []string{e.Spec.Hostname, e.Spec.BackendConfig[submarinerv1.BackendUDPPort], tunnels(e.Spec), strings.Join(e.Spec.Subnets, ", ")},
			Object: e.Spec,
		})
	}
	return t, nil
}

// tunnels is the number of tunnels of a gateway; empty: its wire has none.
func tunnels(e submarinerv1.EndpointSpec) string {
	if e.Backend == config.CableVXLAN {
		return ""
	}
	return cmp.Or(e.BackendConfig[submarinerv1.BackendTunnels], "1")
}

// networks has one row.
func networks(ctx context.Context, m Member, c config.Config) (Table, error) {
	t := Table{
		Header: []string{"NETWORK PLUGIN", "SERVICE CIDRS", "CLUSTER CIDRS", "GLOBAL CIDR", "CLUSTERSET CIDR"},
		Wide:   []string{"CLUSTER INDEX", "MODE", "FABRIC CIDR", "EXTERNAL CIDRS"},
	}
	plugin, err := networkPlugin(ctx, m.Typed)
	if err != nil {
		return t, err
	}
	external := Texts(c.ExternalCIDRs)
	services, pods, globals, vips := Texts(c.ServiceCIDRs), Texts(c.PodCIDRs), Texts(c.GlobalCIDRs), Texts(c.ClusterSetIPCIDRs)
	t.Rows = []Row{{
		Cells: []string{plugin, strings.Join(services, ", "), strings.Join(pods, ", "), strings.Join(globals, ", "), strings.Join(vips, ", ")},
		Wide:  []string{strconv.Itoa(int(c.ClusterIndex)), string(c.Mode), c.FabricCIDR.String(), strings.Join(external, ", ")},
		Object: struct {
			NetworkPlugin     string   `json:"networkPlugin"`
			ServiceCIDRs      []string `json:"serviceCIDRs"`
			ClusterCIDRs      []string `json:"clusterCIDRs"`
			GlobalCIDRs       []string `json:"globalCIDRs"`
			ClusterSetIPCIDRs []string `json:"clusterSetIPCIDRs"`
			ClusterIndex      uint16   `json:"clusterIndex"`
			Mode              string   `json:"mode"`
			FabricCIDR        string   `json:"fabricCIDR"`
			ExternalCIDRs     []string `json:"externalCIDRs,omitempty"`
			RouteServiceCIDR  bool     `json:"routeServiceCIDR,omitempty"`
		}{plugin, services, pods, globals, vips, c.ClusterIndex, string(c.Mode), c.FabricCIDR.String(), external, c.RouteServiceCIDR},
	}}
	return t, nil
}

// gateways has a row for each gateway of this cluster.
func gateways(ctx context.Context, m Member, _ config.Config) (Table, error) {
	t := Table{
		Header: []string{"NODE", "HA STATUS", "SUMMARY"},
		Wide:   []string{"PUBLIC IP", "SOURCE", "VERSION", "FAILURE"},
		Empty:  "No gateways: no node has the label " + submarinerv1.LabelGateway + "=true, or none reports yet.",
	}
	gateways, healths, err := listGateways(ctx, m)
	if err != nil {
		return t, err
	}
	addresses, err := publicAddresses(ctx, m)
	if err != nil {
		return t, err
	}
	for _, g := range gateways {
		h, public := healths[g.Name], cmp.Or(addresses[g.Name], &pelagov1alpha1.PublicIP{})
		text := summary(g.Status.Connections)
		switch {
		case h.Gone():
			text = "Gateway is gone: " + h.Text()
		case h.Text() != "":
			text += "; " + h.Text()
		}
		if len(gateways) == 1 {
			text += "; it is the only one: while it is down the cluster has no connection, label another node or join with --gateways 2"
		}
		t.Rows = append(t.Rows, Row{
			Cells: []string{g.Name, string(g.Status.HAStatus), text},
			Wide:  []string{public.Address, publicSource(public), g.Status.Version, g.Status.StatusFailure},
			Object: struct {
				Node     string                     `json:"node"`
				Gone     bool                       `json:"gone"`
				SilentTo []string                   `json:"silentTo,omitempty"`
				PublicIP *pelagov1alpha1.PublicIP   `json:"publicIP,omitempty"`
				Status   submarinerv1.GatewayStatus `json:"status"`
			}{g.Name, h.Gone(), h.silentTo, addresses[g.Name], g.Status},
		})
	}
	return t, nil
}

// publicAddresses are what the gateways know of their public addresses, by node.
func publicAddresses(ctx context.Context, m Member) (map[string]*pelagov1alpha1.PublicIP, error) {
	list := &pelagov1alpha1.NodeIndexList{}
	if err := m.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list NodeIndexes: %w", err)
	}
	out := map[string]*pelagov1alpha1.PublicIP{}
	for _, n := range list.Items {
		out[n.Name] = n.Status.PublicIP
	}
	return out, nil
}

// publicSource is what a public address comes from, and why that gives none any more.
func publicSource(p *pelagov1alpha1.PublicIP) string {
	if p.Message != "" {
		return p.Source + " (" + p.Message + ")"
	}
	return p.Source
}

// summary counts the established connections, in the form of Submariner's tool.
func summary(connections []submarinerv1.Connection) string {
	if len(connections) == 0 {
		return "There are no connections"
	}
	established := 0
	for _, c := range connections {
		if c.Status == submarinerv1.Connected {
			established++
		}
	}
	if established == len(connections) {
		return fmt.Sprintf("All connections (%d) are established", len(connections))
	}
	return fmt.Sprintf("%d connections out of %d are established", established, len(connections))
}

// staleAfter is the age of a Gateway object after which its gateway counts as dead: three times the
// interval of its reports.
const staleAfter = 90 * time.Second

// overdueAfter is the age at which a report is missing: the interval, and the time to write it.
const overdueAfter = 40 * time.Second

// Health is a gateway as others observe it: the last report of a dead one stays.
type Health struct {
	// silentTo are the nodes without an answer from it, of those that probe it.
	silentTo []string
	probed   int
	// witnessed: a node that probes it gets an answer of some gateway. Else the fault may be the
	// node's.
	witnessed bool
	// overdue: it has written no report in the interval of its reports.
	overdue bool
	// silence is the time since its last report if that is too long ago, else 0.
	silence time.Duration
}

// Gone reports whether no node gets an answer or its report is stale. Then its own status is
// invalid. A single node that gets an answer of no gateway is no proof, unless a report is missing.
func (h Health) Gone() bool {
	silent := h.probed > 0 && len(h.silentTo) == h.probed
	return h.silence > 0 || silent && (h.witnessed || h.probed > 1 || h.overdue)
}

// Text is the problem, empty if none exists.
func (h Health) Text() string {
	var out []string
	switch n := len(h.silentTo); {
	case n == 0:
	case n == 1:
		out = append(out, fmt.Sprintf("1 of %d nodes gets no answer", h.probed))
	default:
		out = append(out, fmt.Sprintf("%d of %d nodes get no answer", n, h.probed))
	}
	if h.silence > 0 {
		out = append(out, fmt.Sprintf("no report for %.0f minutes", max(1, h.silence.Minutes())))
	}
	return strings.Join(out, ", ")
}

// GatewayHealth reads the reports of the nodes about each gateway. Those of a gateway that itself
// does not answer are ignored: they may be stale.
func GatewayHealth(ctx context.Context, c client.Reader, gateways []submarinerv1.Gateway, now time.Time) (map[string]Health, error) {
	agents := &submarinerv1.RouteAgentList{}
	err := c.List(ctx, agents, client.InNamespace(config.SystemNamespace))
	if err != nil && !meta.IsNoMatchError(err) { // a member of an older version has none
		return nil, fmt.Errorf("list RouteAgents: %w", err)
	}
	silent := map[string][]string{} // gateway → nodes without an answer from it
	for _, a := range agents.Items {
		for name := range strings.SplitSeq(a.Annotations[submarinerv1.AnnotationSilentGateways], ",") {
			if name != "" {
				silent[name] = append(silent[name], a.Name)
			}
		}
	}
	out := map[string]Health{}
	for _, g := range gateways {
		h := Health{}
		for _, a := range agents.Items {
			if a.Name == g.Name || len(silent[a.Name]) > 0 {
				continue
			}
			h.probed++
			if _, witness := a.Annotations[submarinerv1.AnnotationUnreachableClusters]; witness {
				h.witnessed = true
			}
			if slices.Contains(silent[g.Name], a.Name) {
				h.silentTo = append(h.silentTo, a.Name)
			}
		}
		slices.Sort(h.silentTo)
		if seconds, err := strconv.ParseInt(g.Annotations[submarinerv1.AnnotationUpdated], 10, 64); err == nil {
			age := now.Sub(time.Unix(seconds, 0))
			if h.overdue = age > overdueAfter; age > staleAfter {
				h.silence = age
			}
		}
		out[g.Name] = h
	}
	return out, nil
}

// plugins maps the DaemonSets of network plugins to their names.
var plugins = map[string]string{
	"calico-node": "calico", "canal": "canal-flannel", "kube-flannel-ds": "flannel", "kindnet": "kindnet",
	"weave-net": "weave-net", "cilium": "cilium", "ovnkube-node": "OVNKubernetes", "antrea-agent": "antrea", "kube-ovn-cni": "kube-ovn",
}

// networkPlugin is the name of the cluster's network plugin; "generic" if it is unknown.
func networkPlugin(ctx context.Context, c kubernetes.Interface) (string, error) {
	list, err := c.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list DaemonSets: %w", err)
	}
	return Plugin(list.Items), nil
}

// Plugin is the name of the network plugin that one of the DaemonSets belongs to; "generic" if it
// is unknown.
func Plugin(sets []appsv1.DaemonSet) string {
	i := slices.IndexFunc(sets, func(d appsv1.DaemonSet) bool { return plugins[d.Name] != "" })
	if i < 0 {
		return "generic"
	}
	return plugins[sets[i].Name]
}

// running is a component and its images.
type running struct {
	Component  string   `json:"component"`
	Repository string   `json:"repository"`
	Configured string   `json:"configured"`
	Running    []string `json:"running"`
	Arch       []string `json:"arch"`
}

// versions has a row for each component of the network, or that of workloads where it is the only
// one.
func versions(ctx context.Context, m Member, of config.Config) (Table, error) {
	t := Table{Header: []string{"COMPONENT", "REPOSITORY", "CONFIGURED", "RUNNING", "ARCH"}}
	components, err := rollout.Installed(ctx, m.Typed, of.WorkloadsOnly)
	if err != nil {
		return t, err
	}
	pods, err := m.Typed.CoreV1().Pods(manifests.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list the pods of namespace %s: %w", manifests.SystemNamespace, err)
	}
	nodes, err := m.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return t, fmt.Errorf("list nodes: %w", err)
	}
	for _, c := range components {
		if c.Name == manifests.ExecutionDeployment && !of.WorkloadsOnly {
			continue
		}
		r := runs(c.Name, c.Image, pods.Items, nodes.Items)
		t.Rows = append(t.Rows, Row{
			Cells:  []string{r.Component, r.Repository, r.Configured, strings.Join(r.Running, ", "), strings.Join(r.Arch, ", ")},
			Object: r,
		})
	}
	return t, nil
}

// runs is what the component's pods run, and on what.
func runs(name, image string, pods []corev1.Pod, nodes []corev1.Node) running {
	r := running{Component: name}
	r.Repository, r.Configured = SplitImage(image)
	for _, pod := range pods {
		if pod.Labels["app"] != name || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, c := range pod.Spec.Containers {
			_, tag := SplitImage(c.Image)
			r.Running = append(r.Running, tag)
		}
		for _, n := range nodes {
			if n.Name == pod.Spec.NodeName {
				r.Arch = append(r.Arch, n.Status.NodeInfo.Architecture)
			}
		}
	}
	slices.Sort(r.Running)
	slices.Sort(r.Arch)
	r.Running, r.Arch = slices.Compact(r.Running), slices.Compact(r.Arch)
	return r
}

// SplitImage splits a reference into repository and version (tag or digest); a port is no tag.
func SplitImage(image string) (repository, version string) {
	if repository, digest, ok := strings.Cut(image, "@"); ok {
		return repository, digest
	}
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i], image[i+1:]
	}
	return image, "latest"
}

// Texts are ranges as text, not nil.
func Texts(prefixes []netip.Prefix) []string {
	out := []string{}
	for _, p := range prefixes {
		out = append(out, p.String())
	}
	return out
}
