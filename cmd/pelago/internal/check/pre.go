package check

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
)

// before is what is read of a cluster that is to join.
type before struct {
	// Plugin is the name of the CNI plugin, PluginVersion its version, empty if it is not known.
	Plugin, PluginVersion string
	// Cilium and Proxy are the data of ConfigMaps cilium-config and kube-proxy, nil without them.
	Cilium, Proxy map[string]string
	// SharedGateway and LocalGateway are the modes of OVN-Kubernetes; neither is set if the mode is
	// not known.
	SharedGateway, LocalGateway bool
	// CalicoBPF: Calico's eBPF data plane is on.
	CalicoBPF bool
	// Submariner is the holder of its gateway lock.
	Submariner string

	Facts member.Facts
	// Refused is why ranges were not found.
	Refused error
	// Registered are the clusters at the hub of the broker-info.subm, if one was given.
	Registered []submarinerv1.Cluster

	// Nodes are facts that pods on the nodes have found; nil: none were run.
	Nodes []NodeFacts
	// Denied are the rights that are missing, as `verb resource`.
	Denied []string
	// Admission: ValidatingAdmissionPolicies are served.
	Admission bool
}

// readCNI reads what decides how the CNI plugin passes packets on.
func readCNI(ctx context.Context, m view.Member, c *Cluster) error {
	b := &c.Before
	sets, err := m.Typed.AppsV1().DaemonSets("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list DaemonSets: %w", err)
	}
	b.Plugin = view.Plugin(sets.Items)
	for i := range sets.Items {
		switch d := &sets.Items[i]; {
		case d.Name == "cilium":
			b.PluginVersion = imageVersion(d)
		case d.Name == "ovnkube-node" || strings.HasPrefix(d.Name, "ovnkube-node-"):
			b.Plugin = "OVNKubernetes"
			mode := gatewayMode(d)
			b.SharedGateway, b.LocalGateway = mode == "shared", mode == "local"
		}
	}
	for name, to := range map[string]*map[string]string{"cilium-config": &b.Cilium, "kube-proxy": &b.Proxy} {
		cm, err := m.Typed.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get ConfigMap kube-system/%s: %w", name, err)
		}
		*to = cm.Data
	}
	if b.Cilium != nil {
		b.Plugin = "cilium"
	}
	network, err := optional(ctx, m, "operator.openshift.io", "v1", "Network", "cluster")
	if err != nil {
		return err
	}
	kind, _, _ := unstructured.NestedString(network.Object, "spec", "defaultNetwork", "type") // absent or of another type: not OpenShift's
	if kind == "OVNKubernetes" {
		b.Plugin = kind
		path := []string{"spec", "defaultNetwork", "ovnKubernetesConfig", "gatewayConfig", "routingViaHost"}
		b.LocalGateway, _, _ = unstructured.NestedBool(network.Object, path...) // absent or of another type: false, the default
		b.SharedGateway = !b.LocalGateway
	}
	felix, err := optional(ctx, m, "crd.projectcalico.org", "v1", "FelixConfiguration", "default")
	if err != nil {
		return err
	}
	b.CalicoBPF, _, _ = unstructured.NestedBool(felix.Object, "spec", "bpfEnabled") // absent: false
	lease := &coordinationv1.Lease{}
	err = m.Client.Get(ctx, client.ObjectKey{Namespace: "submariner-operator", Name: "submariner-gateway-lock"}, lease)
	if err == nil && lease.Spec.HolderIdentity != nil {
		b.Submariner = *lease.Spec.HolderIdentity
	}
	return client.IgnoreNotFound(err)
}

// optional reads an object of a kind that may not be served; empty without it.
func optional(ctx context.Context, m view.Member, group, version, kind, name string) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	err := m.Client.Get(ctx, client.ObjectKey{Name: name}, u)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return &unstructured.Unstructured{Object: map[string]any{}}, nil
	}
	if err != nil {
		return u, fmt.Errorf("get %s %s: %w", kind, name, err)
	}
	return u, nil
}

var versionTag = regexp.MustCompile(`:v?([0-9]+\.[0-9]+\.[0-9]+)`)

// imageVersion is the version in the tag of the first image; empty if it has none.
func imageVersion(d *appsv1.DaemonSet) string {
	for _, c := range d.Spec.Template.Spec.Containers {
		if m := versionTag.FindStringSubmatch(c.Image); m != nil {
			return m[1]
		}
	}
	return ""
}

var gatewayModeArg = regexp.MustCompile(`--gateway-mode[= ]"?([a-z]+)`)

// gatewayMode is that of OVN-Kubernetes by the environment or the arguments of its DaemonSet; empty
// if neither has it.
func gatewayMode(d *appsv1.DaemonSet) string {
	for _, c := range d.Spec.Template.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == "OVN_GATEWAY_MODE" && e.Value != "" {
				return e.Value
			}
		}
		if m := gatewayModeArg.FindStringSubmatch(strings.Join(slices.Concat(c.Command, c.Args), " ")); m != nil {
			return m[1]
		}
	}
	return ""
}

// readRanges finds the ranges as join does, and reads what is registered at the hub.
func readRanges(ctx context.Context, m view.Member, c *Cluster) error {
	var err error
	c.Before.Facts, err = member.Discover(ctx, manifests.Cluster(m), c.Config)
	if err != nil {
		c.Before.Refused = err
	}
	if c.info == nil {
		return nil
	}
	hub, err := manifests.NewClient(c.info.Config())
	if err != nil {
		return err
	}
	var registered submarinerv1.ClusterList
	if err := hub.List(ctx, &registered, client.InNamespace(c.info.Namespace())); err != nil {
		return fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	c.Before.Registered = registered.Items
	return nil
}

// neededRights are rights without which join stops half-way: each as verb, group, resource,
// namespace.
var neededRights = [][4]string{
	{"create", "", "namespaces", ""}, {"create", "apiextensions.k8s.io", "customresourcedefinitions", ""},
	{"create", "rbac.authorization.k8s.io", "clusterroles", ""}, {"create", "rbac.authorization.k8s.io", "clusterrolebindings", ""},
	{"patch", "", "nodes", ""}, {"create", "apps", "daemonsets", manifests.SystemNamespace}, {"create", "apps", "deployments", manifests.SystemNamespace},
	{"create", "", "secrets", manifests.SystemNamespace}, {"create", "", "configmaps", manifests.SystemNamespace},
}

// hubRights are rights without which init and deploy-broker stop half-way.
var hubRights = [][4]string{
	{"create", "", "namespaces", ""}, {"create", "apiextensions.k8s.io", "customresourcedefinitions", ""},
	{"create", "rbac.authorization.k8s.io", "clusterroles", ""}, {"create", "rbac.authorization.k8s.io", "clusterrolebindings", ""},
	{"create", "admissionregistration.k8s.io", "validatingadmissionpolicies", ""},
	{"create", "", "secrets", manifests.BrokerNamespace}, {"create", "", "configmaps", manifests.BrokerNamespace},
	{"create", "", "serviceaccounts", manifests.BrokerNamespace},
}

func readRights(ctx context.Context, m view.Member, c *Cluster) error {
	needed := neededRights
	if c.Hosting {
		needed = hubRights
		_, err := m.Client.RESTMapper().RESTMapping(schema.GroupKind{Group: "admissionregistration.k8s.io", Kind: "ValidatingAdmissionPolicy"}, "v1")
		if err != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("find kind ValidatingAdmissionPolicy: %w", err)
		}
		c.Before.Admission = err == nil
	}
	for _, r := range needed {
		review, err := m.Typed.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r[0], Group: r[1], Resource: r[2], Namespace: r[3]}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("review the right to %s %s: %w", r[0], r[2], err)
		}
		if !review.Status.Allowed {
			c.Before.Denied = append(c.Before.Denied, r[0]+" "+r[2])
		}
	}
	return nil
}

// Versions of kernels: of amd64 and of arm64 from which on the programs can work, and that from
// which on tests run (docs/network.md).
var (
	oldestKernel      = utilversion.MustParseGeneric("5.14")
	oldestKernelArm64 = utilversion.MustParseGeneric("5.18")
	testedKernel      = utilversion.MustParseGeneric("6.1")
	// tcxKernel has TCX; Cilium's programs on clsact come before or after Pelago's by chance below.
	tcxKernel = utilversion.MustParseGeneric("6.6")
)

// kernelOf is the version of a node's kernel; nil if it cannot be read.
func kernelOf(n *corev1.Node) *utilversion.Version {
	v, err := utilversion.ParseGeneric(n.Status.NodeInfo.KernelVersion)
	if err != nil {
		return nil
	}
	return v
}

func kernels(_ *Set, c *Cluster, r *report) {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		info, object := n.Status.NodeInfo, "Node "+n.Name
		if info.OperatingSystem != "" && info.OperatingSystem != "linux" {
			r.add(Warning, object, "none is needed: pods of other nodes take part", "its pods take no part in the network: the node runs %s", info.OperatingSystem)
			continue
		}
		if a := info.Architecture; a != "" && a != "amd64" && a != "arm64" {
			r.add(Error, object, "use nodes of amd64 or arm64", "there is no image for architecture %s", a)
		}
		oldest := oldestKernel
		if info.Architecture == "arm64" {
			oldest = oldestKernelArm64
		}
		switch v := kernelOf(n); {
		case v == nil:
			if info.KernelVersion != "" {
				r.warn(object, "its kernel version %q cannot be read", info.KernelVersion)
			}
		case v.LessThan(oldest):
			r.fail(object, "it runs Linux %s: the programs need at least %s", info.KernelVersion, oldest)
		case v.LessThan(testedKernel):
			r.warn(object, "it runs Linux %s, older than the kernels that are tested, from %s on", info.KernelVersion, testedKernel)
		}
	}
}

// hostRouting reports whether Cilium forwards packets of pods past the host's stack: it does where
// it replaces kube-proxy and masquerades in eBPF, unless legacy routing is set.
func hostRouting(cilium map[string]string) bool {
	replaces := cilium["kube-proxy-replacement"] == "true" || cilium["kube-proxy-replacement"] == "strict"
	return replaces && cilium["enable-bpf-masquerade"] == "true" && cilium["enable-host-legacy-routing"] != "true"
}

// obeysRoutes is the first version of Cilium whose host routing obeys the rules and routes of the
// host (bpf/lib/fib.h, fib_redirect).
var obeysRoutes = utilversion.MustParseGeneric("1.20")

func cni(_ *Set, c *Cluster, r *report) {
	b := &c.Before
	switch {
	case b.Cilium != nil:
		ciliumMode(c, r)
	case b.SharedGateway:
		r.add(Error, "OVN-Kubernetes", "set spec.defaultNetwork.ovnKubernetesConfig.gatewayConfig.routingViaHost=true in Network cluster of operator.openshift.io, "+
			"or OVN_GATEWAY_MODE=local",
			"it runs in shared gateway mode: packets of pods leave by a switch and never enter the host's routes")
	case b.LocalGateway:
		r.add(Warning, "OVN-Kubernetes", "test it before you rely on it; the self-test of each node (PLG-N020) finds packets that go elsewhere",
			"local gateway mode is tested in namespaces only, not with OVN-Kubernetes itself")
	case b.Plugin == "OVNKubernetes":
		r.add(Warning, "OVN-Kubernetes", "see that it runs in local gateway mode (routingViaHost=true)", "its gateway mode is not known")
	case b.CalicoBPF:
		r.add(Warning, "FelixConfiguration default", "use the iptables or nftables data plane of Calico, and veth devices",
			"Calico's eBPF data plane is on: it is not tested, and does not work where it makes netkit devices")
	case b.Plugin == "antrea" || b.Plugin == "kube-ovn":
		r.add(Warning, b.Plugin, "test it before you rely on it; the self-test of each node (PLG-N020) finds packets that go elsewhere",
			"plugins on Open vSwitch are tested in namespaces only, not with %s itself", b.Plugin)
	}
}

func ciliumMode(c *Cluster, r *report) {
	const object = "ConfigMap kube-system/cilium-config"
	data := c.Before.Cilium
	if strings.HasPrefix(data["datapath-mode"], "netkit") {
		r.add(Error, object, "set datapath-mode=veth", "datapath-mode is %s: the node does not see which pod a packet of a netkit device comes from", data["datapath-mode"])
	}
	if !hostRouting(data) {
		return
	}
	version, err := utilversion.ParseGeneric(c.Before.PluginVersion)
	switch {
	case err != nil:
		r.warn(object, "BPF host routing is on (kube-proxy-replacement and enable-bpf-masquerade), and the version of Cilium is not known: before 1.20 its packets bypass the host's routes")
	case version.LessThan(obeysRoutes):
		r.fail(object, "Cilium %s with BPF host routing (kube-proxy-replacement and enable-bpf-masquerade) sends packets of pods past the host's routes, so they never reach Pelago", c.Before.PluginVersion)
	default:
		for i := range c.Nodes {
			if v := kernelOf(&c.Nodes[i]); v != nil && v.LessThan(tcxKernel) {
				r.add(Warning, "Node "+c.Nodes[i].Name, "upgrade the kernel to 6.6 or newer, or set enable-host-legacy-routing=true in ConfigMap cilium-config",
					"Cilium's BPF host routing is tested on Linux 6.6 and newer; the node runs %s", c.Nodes[i].Status.NodeInfo.KernelVersion)
			}
		}
	}
}

var proxyMode = regexp.MustCompile(`(?m)^mode:[ \t]*"?([a-z]*)`)

func kubeProxyMode(_ *Set, c *Cluster, r *report) {
	if m := proxyMode.FindStringSubmatch(c.Before.Proxy["config.conf"]); m != nil && !slices.Contains([]string{"", "iptables", "nftables", "ipvs"}, m[1]) {
		r.warn("ConfigMap kube-system/kube-proxy", "its mode is %s", m[1])
	}
}

func rangesFound(_ *Set, c *Cluster, r *report) {
	if c.Before.Refused != nil {
		r.fail("", "%v", c.Before.Refused)
	}
}

func rights(_ *Set, c *Cluster, r *report) {
	if len(c.Before.Denied) > 0 {
		r.fail("", "the user may not %s", strings.Join(c.Before.Denied, ", "))
	}
}

func gatewayCandidates(_ *Set, c *Cluster, r *report) {
	n := 0
	for i := range c.Nodes {
		if nodeReady(&c.Nodes[i]) {
			n++
		}
	}
	if n < 2 {
		r.warn("", "%d nodes are ready", n)
	}
}

func reachable(_ *Set, c *Cluster, r *report) {
	if len(c.Before.Registered) == 0 {
		return // no other cluster
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Annotations[submarinerv1.AnnotationPublicIP] != "" {
			return
		}
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && (a.Type == corev1.NodeExternalIP || !ip.IsPrivate()) {
				return
			}
		}
	}
	r.warn("", "all nodes have private addresses only: other clusters reach the gateways in the same network, or through NAT that forwards to them")
}

func submariner(_ *Set, c *Cluster, r *report) {
	if c.Before.Submariner != "" {
		r.warn("Lease submariner-operator/submariner-gateway-lock", "Submariner's gateway %s holds it: it runs, or has run here", c.Before.Submariner)
	}
}

// NodeFacts are what a pod in the network of a node finds there.
type NodeFacts struct {
	Node string `json:"node"`
	// Device has the node's address, MTU is its own, in bytes.
	Device string `json:"device"`
	MTU    int    `json:"mtu"`
	// UDP are the ports on which a process of the node listens.
	UDP []uint16 `json:"udp,omitempty"`
}

// smallestMTU is that of an uplink, in bytes, below which little is left for packets of pods.
const smallestMTU = 1400

func uplinks(_ *Set, c *Cluster, r *report) {
	largest := 0
	for _, n := range c.Before.Nodes {
		largest = max(largest, n.MTU)
	}
	for _, n := range c.Before.Nodes {
		switch {
		case n.MTU < smallestMTU:
			r.fail("Node "+n.Node, "its uplink %s has an MTU of %d", n.Device, n.MTU)
		case n.MTU < largest:
			r.warn("Node "+n.Node, "its uplink %s has an MTU of %d, that of another node %d: larger packets between the two may be lost", n.Device, n.MTU, largest)
		}
	}
}

// portsOfGateways are UDP ports that each node which may become a gateway needs free, and
// portOfNodes that of every node (docs/network.md).
var portsOfGateways = []uint16{4490, 4500, 4504}

const portOfNodes = 4800

func udpPorts(_ *Set, c *Cluster, r *report) {
	if c.Member {
		return // its own
	}
	for _, n := range c.Before.Nodes {
		for _, port := range n.UDP {
			switch {
			case port == portOfNodes:
				r.fail("Node "+n.Node, "a process listens on UDP %d", port)
			case slices.Contains(portsOfGateways, port):
				r.warn("Node "+n.Node, "a process listens on UDP %d, which the node needs as a gateway", port)
			}
		}
	}
}

func fitsClusterset(_ *Set, c *Cluster, r *report) {
	mine := slices.Concat(c.Before.Facts.PodCIDRs, c.Before.Facts.ServiceCIDRs)
	for _, o := range c.Before.Registered {
		if len(o.Spec.GlobalCIDR) > 0 || o.Name == c.Config.ClusterID {
			continue
		}
		for _, text := range slices.Concat(o.Spec.ClusterCIDR, o.Spec.ServiceCIDR) {
			theirs, err := netip.ParsePrefix(text)
			if err != nil {
				continue // the hub has refused it
			}
			for _, p := range mine {
				if p.Overlaps(theirs) {
					r.fail("Cluster "+o.Name+" at the hub", "range %s of this cluster overlaps its range %s", p, theirs)
				}
			}
		}
	}
}
