package member

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Facts are the properties of a cluster that join needs.
type Facts struct {
	UID                    string // of the namespace kube-system
	PodCIDRs, ServiceCIDRs []netip.Prefix
	Nodes                  []corev1.Node
	// Needed are the addresses of its API server and name servers, APIServer is the host of the
	// kubeconfig's server; empty for one inside the cluster.
	Needed    []netip.Addr
	APIServer string
}

// Discover reads the facts of a cluster as join does, with what an earlier join has left. Its
// errors are those that join refuses the cluster with.
func Discover(ctx context.Context, c manifests.Cluster, former config.Config) (Facts, error) {
	return readFacts(ctx, c, spec.Member{}, former, false, func(string, ...any) {})
}

// readFacts reads the facts of the cluster that is to join. Ranges are the given ones, else those
// of an earlier join, so that a node added since does not change them, else discovered. Ranges that
// lack addresses of running pods are refused unless accept is set; those of an earlier join stay,
// with a message.
func readFacts(ctx context.Context, c manifests.Cluster, want spec.Member, former config.Config, accept bool, progress manifests.Progress) (f Facts, err error) {
	if f.UID, err = broker.ClusterUID(ctx, c.Client); err != nil {
		return f, err
	}
	nodes, err := c.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return f, fmt.Errorf("list nodes: %w", err)
	}
	f.Nodes = nodes.Items
	if err := checkClusterIPs(ctx, c.Typed, want, progress); err != nil {
		return f, err
	}
	ranges := func(what, field string, given, former []netip.Prefix, find func() ([]netip.Prefix, string, error)) ([]netip.Prefix, error) {
		if len(given) > 0 {
			return given, nil
		}
		if len(former) > 0 {
			return former, nil
		}
		prefixes, source, err := find()
		if err != nil {
			return nil, spec.Refuse(field, "find the cluster's %s ranges: %v: give them with spec.%s", what, err, field)
		}
		var texts []string
		for _, p := range prefixes {
			texts = append(texts, p.String())
		}
		progress("The cluster's %s ranges are %s (%s)", what, strings.Join(texts, ", "), source)
		return prefixes, nil
	}
	pods, err := runningPods(ctx, c.Typed)
	if err != nil {
		return f, err
	}
	f.PodCIDRs, err = ranges("pod", "clusterCIDR", want.ClusterCIDR, former.PodCIDRs, func() ([]netip.Prefix, string, error) {
		return discoverPodCIDRs(ctx, c.Typed, c.Client, f.Nodes, pods, accept)
	})
	if err != nil {
		return f, err
	}
	switch outside := outsideOf(f.PodCIDRs, pods); {
	case outside == "":
	case len(want.ClusterCIDR) > 0 && !accept:
		return f, spec.Refuse("clusterCIDR", "the ranges %s do not contain %s: give all pod ranges with spec.clusterCIDR, or confirm with --yes that other clusters "+
			"need not reach such pods", f.PodCIDRs, outside)
	default:
		progress("Other clusters do not reach %s: outside of the pod ranges %s; join again with --clustercidr, the present ranges or larger ones, and theirs", outside, f.PodCIDRs)
	}
	f.ServiceCIDRs, err = ranges("service", "serviceCIDR", want.ServiceCIDR, former.ServiceCIDRs, func() ([]netip.Prefix, string, error) {
		return discoverServiceCIDRs(ctx, c.Typed)
	})
	if err != nil {
		return f, err
	}
	f.Needed, f.APIServer, err = needed(ctx, c, slices.Concat(f.PodCIDRs, f.ServiceCIDRs), f.NodeAddresses())
	return f, err
}

// checkClusterIPs refuses what needs the nodes' stack to translate ClusterIPs where Cilium replaces
// kube-proxy: it translates them at the sockets of pods and nodes, not in packets that the gateway
// forwards.
func checkClusterIPs(ctx context.Context, c kubernetes.Interface, want spec.Member, progress manifests.Progress) error {
	if !want.RouteServiceCIDR && len(want.ExternalCIDR) == 0 {
		return nil
	}
	data, err := configMap(ctx, c, "cilium-config")
	if err != nil {
		return err
	}
	if replaces := data["kube-proxy-replacement"]; replaces != "true" && replaces != "strict" {
		return nil
	}
	if want.RouteServiceCIDR {
		return spec.Refuse("routeServiceCIDR", "Cilium replaces kube-proxy in this cluster (kube-proxy-replacement in ConfigMap kube-system/cilium-config) and does not "+
			"translate ClusterIPs in packets that a gateway forwards: leave spec.routeServiceCIDR out and export the services")
	}
	progress("Warning: hosts of %s reach exported services and pods, not ClusterIPs: Cilium replaces kube-proxy in this cluster and does not translate "+
		"them in packets that a gateway forwards", want.ExternalCIDR)
	return nil
}

// NodeAddresses are the addresses of the nodes inside the cluster.
func (f Facts) NodeAddresses() []netip.Addr {
	var out []netip.Addr
	for _, node := range f.Nodes {
		for _, a := range node.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				out = append(out, ip)
			}
		}
	}
	return out
}

// fromArguments reads --cluster-cidr of kube-controller-manager.
func fromArguments(pods []corev1.Pod) []netip.Prefix {
	for _, pod := range pods {
		for _, container := range pod.Spec.Containers {
			for _, arg := range slices.Concat(container.Command, container.Args) {
				if text, ok := strings.CutPrefix(arg, "--cluster-cidr="); ok {
					if prefixes, err := spec.ParseRanges(strings.Split(text, ",")); err == nil {
						return prefixes
					}
				}
			}
		}
	}
	return nil
}

// Texts that contain ranges: clusterCIDR of a KubeProxyConfiguration, and the API server's refusal
// of a ClusterIP.
var (
	proxyClusterCIDR = regexp.MustCompile(`(?m)^clusterCIDR:[ \t]*"?([0-9a-fA-F.:/,]+)`)
	refusedClusterIP = regexp.MustCompile(`[Tt]he range of valid IPs is ([0-9a-fA-F.:]+/[0-9]+)`)
)

// fromText reads the ranges that the pattern finds, none if one of them is invalid.
func fromText(pattern *regexp.Regexp, text string) []netip.Prefix {
	match := pattern.FindStringSubmatch(text)
	if match == nil {
		return nil
	}
	prefixes, _ := spec.ParseRanges(strings.Split(match[1], ","))
	return prefixes
}

// fromNodes is, for each address family, the smallest range that covers the ranges of all nodes.
func fromNodes(nodes []corev1.Node) []netip.Prefix {
	cover := map[bool]netip.Prefix{}
	for _, node := range nodes {
		texts := node.Spec.PodCIDRs
		if len(texts) == 0 && node.Spec.PodCIDR != "" {
			texts = []string{node.Spec.PodCIDR}
		}
		for _, text := range texts {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				continue
			}
			if sum, ok := cover[p.Addr().Is4()]; ok {
				p = covering(sum, p)
			}
			cover[p.Addr().Is4()] = p.Masked()
		}
	}
	var out []netip.Prefix
	for _, is4 := range []bool{true, false} {
		if p, ok := cover[is4]; ok {
			out = append(out, p)
		}
	}
	return out
}

// covering is the smallest range that holds both, which are of one family.
func covering(a, b netip.Prefix) netip.Prefix {
	for bits := min(a.Bits(), b.Bits()); ; bits-- {
		p := netip.PrefixFrom(a.Addr(), bits).Masked()
		if p.Contains(b.Addr()) {
			return p
		}
	}
}

// discoverServiceCIDRs discovers the ranges of ClusterIPs and returns their source.
func discoverServiceCIDRs(ctx context.Context, c kubernetes.Interface) ([]netip.Prefix, string, error) {
	list, err := c.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	if err == nil {
		var texts []string
		for _, item := range list.Items {
			texts = append(texts, item.Spec.CIDRs...)
		}
		prefixes, err := spec.ParseRanges(texts)
		return prefixes, "from ServiceCIDR objects", err
	}
	// Before Kubernetes 1.33 only the error of a refusal has it. The address is the documentation's
	// (RFC 5737).
	_, err = c.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pelago-"},
		Spec:       corev1.ServiceSpec{ClusterIP: "192.0.2.1", Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return nil, "", errors.New("the API server accepted a ClusterIP of 192.0.2.0/24, which is for documentation")
	}
	prefixes := fromText(refusedClusterIP, err.Error())
	if len(prefixes) == 0 {
		return nil, "", fmt.Errorf("the API server does not report it: %w", err)
	}
	return prefixes, "from the API server", nil
}
