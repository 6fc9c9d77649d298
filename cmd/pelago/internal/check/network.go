package check

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/rollout"
)

// Bounds of what is near its end, in percent.
const (
	poolNearEnd  = 80
	quotaNearEnd = 90
)

const (
	// agentSilent is the age of the report of a RouteAgent after which its daemon counts as stale: it
	// writes at least every 5 minutes, and within seconds when something changes.
	agentSilent = 7 * time.Minute
	// leaseSilent is the age of a leader's Lease after which there is no leader.
	leaseSilent = 2 * time.Minute
	// settle is how long something new may take to get its condition.
	settle = time.Minute
	// skewWarning and skewError bound the difference of two clocks.
	skewWarning, skewError = 30 * time.Second, 5 * time.Minute
	// tokenNearEnd and certificateNearEnd are the time left from which on the end is near. A token
	// is renewed after half of its life, at the earliest.
	tokenNearEnd, certificateNearEnd = 2 * time.Hour, 14 * 24 * time.Hour
	// kubeletRenews is within what a kubelet that is alive renews its Lease.
	kubeletRenews = 40 * time.Second
)

// now is the time of the API server, which the ages of its objects are compared with.
func (c *Cluster) now(s *Set) time.Time { return s.Now.Add(c.Skew) }

func unreachable(_ *Set, c *Cluster, r *report) {
	if c.Err != nil {
		r.add(Unknown, "context "+c.Context, "", "%v", c.Err)
	}
}

func components(_ *Set, c *Cluster, r *report) {
	if c.Missing != "" {
		r.fail("", "a component is not installed: %s", c.Missing)
	}
	for _, of := range c.Components {
		if of.Done() {
			continue
		}
		object := of.Kind + " pelago-system/" + of.Name
		why := ""
		for _, p := range c.Pods {
			if reason := rollout.PodReason(p); p.Labels["app"] == of.Name && reason != "" {
				why += fmt.Sprintf("; pod %s on node %q: %s", p.Name, p.Spec.NodeName, reason)
			}
		}
		if !of.Current {
			why += "; its controller has not observed the newest template"
		}
		r.fail(object, "%d of %d pods of the newest template are ready%s", of.Ready, of.Want, why)
	}
}

func images(s *Set, c *Cluster, r *report) {
	for _, of := range c.Components {
		for _, p := range c.Pods {
			if p.Labels["app"] != of.Name || p.Status.Phase != corev1.PodRunning {
				continue
			}
			for _, container := range p.Spec.Containers {
				if container.Name == of.Name && container.Image != of.Image {
					r.warn("Pod pelago-system/"+p.Name, "it runs %s, its template has %s", container.Image, of.Image)
				}
			}
		}
		if of.Image != c.Components[0].Image {
			r.warn(of.Kind+" pelago-system/"+of.Name, "its image is %s, that of %s is %s", of.Image, c.Components[0].Name, c.Components[0].Image)
		}
	}
	if len(c.Components) == 0 {
		return
	}
	_, mine := view.SplitImage(c.Components[0].Image)
	for i := range s.Clusters {
		other := &s.Clusters[i]
		if len(other.Components) == 0 || other.Name() <= c.Name() { // each pair once
			continue
		}
		if _, theirs := view.SplitImage(other.Components[0].Image); theirs != mine {
			r.warn("", "its components are of version %s, those of cluster %s of %s", mine, other.Name(), theirs)
		}
	}
}

// Oldest versions that are tested.
var (
	testedMember = utilversion.MustParseGeneric("1.33")
	testedHub    = utilversion.MustParseGeneric("1.35")
)

func kubernetesVersion(_ *Set, c *Cluster, r *report) {
	if c.Version == "" {
		return
	}
	have, err := utilversion.ParseGeneric(c.Version)
	if err != nil {
		r.warn("", "its version %q cannot be read", c.Version)
		return
	}
	least, tested := manifests.MemberVersion, testedMember
	if c.Hub {
		least, tested = manifests.HubVersion, testedHub
	}
	switch {
	case have.LessThan(utilversion.MustParseGeneric(least)):
		r.fail("", "it runs Kubernetes %s: at least %s is needed", c.Version, least)
	case have.LessThan(tested):
		r.warn("", "it runs Kubernetes %s, older than the versions that are tested, from %s on", c.Version, tested)
	}
}

// What this version installs, decoded once.
var (
	memberCRDs         = sync.OnceValues(manifests.MemberCRDs)
	hubCRDs            = sync.OnceValues(manifests.HubCRDs)
	propagationCRDs    = sync.OnceValues(manifests.PropagationCRDs)
	hubObjects         = sync.OnceValues(manifests.HubObjects)
	propagationObjects = sync.OnceValues(func() ([]*unstructured.Unstructured, error) {
		return manifests.PropagationObjects(manifests.MemberOptions{}, false)
	})
)

func memberDefinitions(_ *Set, c *Cluster, r *report) {
	want, err := memberCRDs()
	definitions(c, r, want, err)
}

// definitions compares the definitions of the cluster with those of this version.
func definitions(c *Cluster, r *report, want []*unstructured.Unstructured, err error) {
	if err != nil {
		r.add(Unknown, "", "", "read the definitions of this program: %v", err)
		return
	}
	for _, w := range want {
		object := "CustomResourceDefinition " + w.GetName()
		i := slices.IndexFunc(c.CRDs, func(d apiextensionsv1.CustomResourceDefinition) bool { return d.Name == w.GetName() })
		if i < 0 {
			r.fail(object, "it is not installed")
			continue
		}
		for _, is := range c.CRDs[i].Status.Conditions {
			if is.Type == apiextensionsv1.Established && is.Status == apiextensionsv1.ConditionFalse {
				r.fail(object, "it is not served: %s", is.Message)
			}
		}
	}
}

func daemons(s *Set, c *Cluster, r *report) {
	for _, n := range c.Nodes {
		if !nodeReady(&n) {
			r.warn("Node "+n.Name, "the node is not ready")
			continue
		}
		var pod *corev1.Pod
		for i := range c.Pods {
			if c.Pods[i].Labels["app"] == manifests.NodeDaemonSet && c.Pods[i].Spec.NodeName == n.Name && (pod == nil || rollout.PodReason(c.Pods[i]) == "") {
				pod = &c.Pods[i]
			}
		}
		switch {
		case pod == nil:
			r.add(Error, "Node "+n.Name, "see the tolerations and node affinity of DaemonSet pelago-node, and the taints of the node", "no pod of pelago-node runs on the node")
			continue
		case rollout.PodReason(*pod) != "":
			continue // another check has the reason
		}
		if !slices.ContainsFunc(c.Indexes, func(i pelagov1alpha1.NodeIndex) bool { return i.Name == n.Name }) {
			r.add(Error, "Node "+n.Name, "see the log of pelago-agent, which makes it", "the node has no NodeIndex, so its daemon waits")
			continue
		}
		for _, a := range c.RouteAgents {
			if age, ok := reportAge(a.Annotations, c.now(s)); a.Name == n.Name && ok && age > agentSilent {
				r.fail("RouteAgent "+a.Name, "the daemon of the node has reported nothing for %s: its tables may be stale", age.Round(time.Second))
			}
		}
	}
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// reportAge is the time since a node daemon has written an object.
func reportAge(annotations map[string]string, now time.Time) (time.Duration, bool) {
	seconds, err := strconv.ParseInt(annotations[submarinerv1.AnnotationUpdated], 10, 64)
	return now.Sub(time.Unix(seconds, 0)), err == nil
}

func tablesWritten(_ *Set, c *Cluster, r *report) {
	for _, n := range c.Indexes {
		if !n.Status.Ready {
			r.fail("NodeIndex "+n.Name, "the programs are not attached, or the tables are not in the kernel yet")
		}
	}
	byRules(c, r)
}

// gateways are the nodes that are to be gateways.
func (c *Cluster) gateways() (out []string) {
	for i := range c.Nodes {
		if topology.IsGateway(&c.Nodes[i]) {
			out = append(out, c.Nodes[i].Name)
		}
	}
	return out
}

func hasGateway(_ *Set, c *Cluster, r *report) {
	labelled := c.gateways()
	if len(labelled) == 0 {
		r.fail("", "no node has the label %s=true", submarinerv1.LabelGateway)
	}
	for _, name := range labelled {
		if !slices.ContainsFunc(c.Gateways, func(g submarinerv1.Gateway) bool { return g.Name == name }) {
			r.add(Error, "Node "+name, "see the log of pelago-node on the node", "the node is labelled as a gateway and has no Gateway object: its daemon has not reported as one")
		}
	}
}

func secondGateway(_ *Set, c *Cluster, r *report) {
	if one := c.gateways(); len(one) == 1 {
		r.warn("Gateway "+one[0], "it is the only gateway of the cluster")
	}
}

func gatewaysAlive(_ *Set, c *Cluster, r *report) {
	for _, g := range c.Gateways {
		h := c.Health[g.Name]
		switch {
		case h.Gone():
			r.fail("Gateway "+g.Name, "the gateway is gone: %s", h.Text())
		case h.Text() != "":
			r.warn("Gateway "+g.Name, "%s", h.Text())
		}
		if g.Status.StatusFailure != "" && !h.Gone() {
			r.fail("Gateway "+g.Name, "%s", g.Status.StatusFailure)
		}
	}
}

// connections reports each pair of gateways that is not connected: an error where no pair of the
// two clusters is.
func connections(_ *Set, c *Cluster, r *report) {
	up, seen := map[string]bool{}, map[string]bool{}
	alive := func(g submarinerv1.Gateway) bool { return !c.Health[g.Name].Gone() }
	for _, g := range c.Gateways {
		for _, is := range g.Status.Connections {
			seen[is.Endpoint.ClusterID] = true
			up[is.Endpoint.ClusterID] = up[is.Endpoint.ClusterID] || alive(g) && is.Status == submarinerv1.Connected
		}
	}
	for _, g := range c.Gateways {
		if !alive(g) {
			continue
		}
		for _, is := range g.Status.Connections {
			if is.Status == submarinerv1.Connected {
				continue
			}
			v := Error
			if up[is.Endpoint.ClusterID] {
				v = Warning
			}
			why := is.StatusMessage
			if why == "" {
				why = "no reason is reported"
			}
			r.add(v, "Gateway "+g.Name, "", "the connection to gateway %s of cluster %s at %s is %s: %s", is.Endpoint.Hostname, is.Endpoint.ClusterID,
				is.UsingIP, is.Status, why)
		}
	}
	for _, p := range c.Peers {
		if len(c.Gateways) > 0 && len(p.Spec.Gateways) > 0 && !seen[p.Name] && accepted(&p) {
			r.fail("Peer "+p.Name, "no gateway of this cluster reports a connection to cluster %s", p.Name)
		}
	}
}

func accepted(p *pelagov1alpha1.Peer) bool {
	for _, is := range p.Status.Conditions {
		if is.Type == pelagov1alpha1.PeerAccepted {
			return is.Status == "True"
		}
	}
	return false
}

func nodesReachGateways(_ *Set, c *Cluster, r *report) {
	for _, a := range c.RouteAgents {
		var silent []string
		for name := range strings.SplitSeq(a.Annotations[submarinerv1.AnnotationSilentGateways], ",") {
			if name != "" && !c.Health[name].Gone() {
				silent = append(silent, name)
			}
		}
		if len(silent) == 0 {
			continue
		}
		others := len(c.Gateways) - len(silent)
		if slices.ContainsFunc(c.Gateways, func(g submarinerv1.Gateway) bool { return g.Name == a.Name }) {
			others-- // it does not probe itself
		}
		if others > 0 {
			r.warn("RouteAgent "+a.Name, "node %s gets no answer from gateway %s, which others reach", a.Name, strings.Join(silent, ", "))
			continue
		}
		r.fail("RouteAgent "+a.Name, "node %s gets no answer from any other gateway of the cluster (%s), which answer other nodes", a.Name, strings.Join(silent, ", "))
	}
}

func loss(_ *Set, c *Cluster, r *report) {
	for _, g := range c.Gateways {
		for _, is := range g.Status.Connections {
			if is.LossPercent > 0 && is.Status == submarinerv1.Connected && !c.Health[g.Name].Gone() {
				r.warn("Gateway "+g.Name, "%d %% of the probes to gateway %s of cluster %s are lost", is.LossPercent, is.Endpoint.Hostname, is.Endpoint.ClusterID)
			}
		}
	}
}

func publicAddresses(_ *Set, c *Cluster, r *report) {
	for _, n := range c.Indexes {
		if p := n.Status.PublicIP; p != nil && p.Message != "" && n.Status.Gateway {
			if p.Address == "" {
				r.fail("NodeIndex "+n.Name, "the public address of the gateway is not known: %s: %s", p.Source, p.Message)
				continue
			}
			r.warn("NodeIndex "+n.Name, "the public address of the gateway is still %s: %s: %s", p.Address, p.Source, p.Message)
		}
	}
}

func rotations(_ *Set, c *Cluster, r *report) {
	for _, n := range c.Indexes {
		if k := n.Status.KeyRotation; k != nil && (k.TunnelsLeft > 0 || k.Message != "") {
			r.warn("NodeIndex "+n.Name, "the key rotation of %s has %d tunnels left: %s", k.Request, k.TunnelsLeft, k.Message)
		}
	}
}

func podsLeftOut(_ *Set, c *Cluster, r *report) {
	for _, a := range c.RouteAgents {
		if n := a.Annotations[submarinerv1.AnnotationPodsLeftOut]; n != "" && n != "0" {
			r.warn("RouteAgent "+a.Name, "%s pods of node %s are not connected, or not as configured: %s", n, a.Name, a.Status.StatusFailure)
		}
	}
}

func pathMTU(_ *Set, c *Cluster, r *report) {
	for _, n := range c.Indexes {
		for _, cluster := range sortedKeys(n.Status.PathMTU) {
			if n.Status.Gateway {
				r.warn("NodeIndex "+n.Name, "packets of more than %d bytes to cluster %s are lost between the gateways", n.Status.PathMTU[cluster], cluster)
			}
		}
	}
}

// overlaps compares the cluster with those after it, so that each pair is reported once.
func overlaps(s *Set, c *Cluster, r *report) {
	for i := range s.Clusters {
		other := &s.Clusters[i]
		if !other.Member || other.Config.WorkloadsOnly || other.Name() <= c.Name() || other.Config.HubID != c.Config.HubID {
			continue
		}
		for _, a := range c.Config.Subnets() {
			for _, b := range other.Config.Subnets() {
				if a.Overlaps(b) {
					r.fail("ConfigMap pelago-system/pelago-config", "its range %s overlaps range %s of cluster %s", a, b, other.Name())
				}
			}
		}
	}
}

// used reports a pool of addresses that is near its end.
func used(r *report, object string, n int, of uint64, what string) {
	switch percent := uint64(n) * 100 / max(of, 1); {
	case uint64(n) >= of:
		r.fail(object, "all %d %s are in use", of, what)
	case percent >= poolNearEnd:
		r.warn(object, "%d of %d %s are in use", n, of, what)
	}
}

// size is the number of addresses of all ranges.
func size(ranges []netip.Prefix) (n uint64) {
	for _, p := range ranges {
		n += uint64(1) << min(p.Addr().BitLen()-p.Bits(), 62)
	}
	return n
}

// claimed is the number of claims in the ranges.
func claimed(all []pelagov1alpha1.GlobalAddress, ranges []netip.Prefix) (n int) {
	for _, a := range all {
		ip, err := netip.ParseAddr(a.Spec.IP)
		if err == nil && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			n++
		}
	}
	return n
}

func globalPool(_ *Set, c *Cluster, r *report) {
	if of := c.Config.GlobalCIDRs; len(of) > 0 {
		used(r, "GlobalCIDR "+strings.Join(view.Texts(of), ", "), claimed(c.Addresses, of), size(of), "addresses")
	}
}

func clusterSetIPPool(_ *Set, c *Cluster, r *report) {
	if of := c.Config.ClusterSetIPCIDRs; len(of) > 0 {
		used(r, "ClusterSetIPs "+strings.Join(view.Texts(of), ", "), claimed(c.Addresses, of), size(of), "addresses")
	}
}

// blocksOfIP is the number of port blocks of an egress IP.
const blocksOfIP = (65536 - pelagov1alpha1.FirstBlockPort) / pelagov1alpha1.BlockPorts

func portBlocks(_ *Set, c *Cluster, r *report) {
	if c.EgressIPs > 0 {
		used(r, "egress IPs", len(c.Blocks), uint64(c.EgressIPs)*blocksOfIP, "port blocks")
	}
}

func missingPeers(s *Set, c *Cluster, r *report) {
	for i := range s.Clusters {
		hub := &s.Clusters[i]
		for _, o := range hub.Registered {
			young := hub.now(s).Sub(o.CreationTimestamp.Time) < settle
			known := slices.ContainsFunc(c.Peers, func(p pelagov1alpha1.Peer) bool { return p.Name == o.Name })
			own := slices.ContainsFunc(hub.Registered, func(m submarinerv1.Cluster) bool { return m.Name == c.Config.ClusterID })
			if o.Name != c.Config.ClusterID && own && !known && !young && o.Annotations[pelagov1alpha1.AnnotationWorkloadsOnly] != "true" {
				r.fail("Cluster "+o.Name+" at the hub", "cluster %s is registered and has no Peer here", o.Name)
			}
		}
	}
}

func credential(s *Set, c *Cluster, r *report) {
	switch left := c.Token.Sub(c.now(s)); {
	case c.Token.IsZero():
	case left <= 0:
		r.fail("Secret pelago-system/submariner-broker-secret", "the credential expired at %s", c.Token.UTC().Format(time.RFC3339))
	case left < tokenNearEnd:
		r.warn("Secret pelago-system/submariner-broker-secret", "the credential expires at %s and was not renewed", c.Token.UTC().Format(time.RFC3339))
	}
}

func agentLeases(s *Set, c *Cluster, r *report) {
	for _, of := range c.Components {
		if of.Name == manifests.AgentDeployment || of.Name == manifests.ExecutionDeployment {
			leads(s, c, r, of.Name)
		}
	}
}

// leads reports a Lease of the system namespace that is not renewed.
func leads(s *Set, c *Cluster, r *report, name string) {
	for _, l := range c.Leases {
		if l.Name != name {
			continue
		}
		holder := ptr.Deref(l.Spec.HolderIdentity, "")
		switch {
		case holder == "" || l.Spec.RenewTime == nil:
			r.fail("Lease pelago-system/"+name, "nobody holds it")
		case c.now(s).Sub(l.Spec.RenewTime.Time) > leaseSilent:
			r.fail("Lease pelago-system/"+name, "%s has not renewed it for %s", holder, c.now(s).Sub(l.Spec.RenewTime.Time).Round(time.Second))
		}
		return
	}
	r.fail("Lease pelago-system/"+name, "it does not exist: no process has led yet")
}

func clocks(s *Set, c *Cluster, r *report) {
	off := func(object, remedy, format string, by time.Duration, args ...any) {
		v := Warning
		if by.Abs() >= skewError {
			v = Error
		}
		if by.Abs() >= skewWarning {
			r.add(v, object, remedy, format, append([]any{by.Abs().Round(time.Second), map[bool]string{true: "ahead of", false: "behind"}[by > 0]}, args...)...)
		}
	}
	// compared with the hub's clock, which issues tokens; without a hub with that of this machine
	reference, whose := time.Duration(0), "this machine's"
	for i := range s.Clusters {
		if h := &s.Clusters[i]; h.Hub && h.Err == nil && h.unread[fromServer] == nil && h.Version != "" {
			reference, whose = h.Skew, "the hub's ("+h.Name()+")"
			break
		}
	}
	if c.Hub {
		reference, whose = 0, "this machine's"
	}
	off("", "", "the clock of its API server is %s %s %s", c.Skew-reference, whose)
	for _, l := range c.NodeLeases {
		i := slices.IndexFunc(c.Nodes, func(n corev1.Node) bool { return n.Name == l.Name })
		if i < 0 || l.Spec.RenewTime == nil || !nodeReady(&c.Nodes[i]) {
			continue
		}
		by := l.Spec.RenewTime.Sub(c.now(s))
		if by < 0 { // renewed some time ago, or by a slow clock
			by = min(by+kubeletRenews, 0)
		}
		off("Node "+l.Name, "", "the clock of the node is %s %s its API server's", by)
	}
}

func certificate(s *Set, c *Cluster, r *report) {
	switch left := c.Certificate.Sub(c.now(s)); {
	case c.Certificate.IsZero():
	case left <= 0:
		r.fail("", "the certificate of its API server expired at %s", c.Certificate.UTC().Format(time.RFC3339))
	case left < certificateNearEnd:
		r.warn("", "the certificate of its API server expires at %s, in %d days", c.Certificate.UTC().Format(time.RFC3339), int(left.Hours()/24))
	}
}

func dnsForwards(_ *Set, c *Cluster, r *report) {
	for _, s := range c.DNS {
		if !s.Forwards {
			r.fail(s.Configuration, "it does not forward %s to %s: %s", strings.Join(s.Zones, ", "), s.NameServer, s.Message)
		}
	}
	if len(c.DNS) == 0 && c.DNSMissing != "" {
		first, _, _ := strings.Cut(c.DNSMissing, "\n")
		r.add(Warning, "Service pelago-system/pelago-dns", "`pelago show dns` prints what to add", "%s", first)
	}
}

func exportsWithoutPods(_ *Set, c *Cluster, r *report) {
	for _, e := range c.Exports {
		ready, slicesOf := 0, c.Slices[client.ObjectKey{Namespace: e.Namespace, Name: e.Name}]
		for _, s := range slicesOf {
			for _, p := range s.Endpoints {
				if ptr.Deref(p.Conditions.Ready, true) {
					ready++
				}
			}
		}
		if ready == 0 && serviceExists(&e) {
			r.warn("ServiceExport "+e.Namespace+"/"+e.Name, "the Service has no ready pod here: %s", countEndpoints(slicesOf))
		}
	}
}

func countEndpoints(all []discoveryv1.EndpointSlice) string {
	n := 0
	for _, s := range all {
		n += len(s.Endpoints)
	}
	if n == 0 {
		return "its selector matches none"
	}
	return fmt.Sprintf("%d pods are not ready", n)
}
