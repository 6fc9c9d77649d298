package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/agent/ranges"
	"github.com/pelago-net/pelago/deploy/spec"
)

// found is what a source has of the pod ranges.
type found struct {
	ranges []netip.Prefix
	source string
}

// runningPod is a pod with an address of its own.
type runningPod struct {
	name    string
	address netip.Addr
}

// discoverPodCIDRs discovers the pod ranges and returns their source: the first that contains the
// addresses of all running pods. The ranges of the present nodes count only with acceptNodes: nodes
// that come later have others.
func discoverPodCIDRs(
	ctx context.Context, c kubernetes.Interface, objects client.Reader, nodes []corev1.Node, pods []runningPod, acceptNodes bool,
) ([]netip.Prefix, string, error) {
	cilium, err := ciliumNodes(ctx, objects)
	if err != nil {
		return nil, "", err
	}
	var tried []string
	for _, source := range []func() (found, error){
		func() (found, error) { return ciliumPools(ctx, c) },
		func() (found, error) { return calicoPools(ctx, objects) },
		func() (found, error) { return controllerManager(ctx, c) },
		func() (found, error) { return kubeProxy(ctx, c) },
		func() (found, error) { return distribution(nodes), nil },
		func() (found, error) { return openShift(ctx, objects) },
		func() (found, error) { return ciliumRouting(ctx, c) },
	} {
		f, err := source()
		if err != nil {
			return nil, "", err
		}
		if len(f.ranges) == 0 {
			continue
		}
		outside := strings.Join(slices.DeleteFunc([]string{outsideOf(f.ranges, pods), nodesOutside(f.ranges, cilium)}, func(s string) bool { return s == "" }), ", ")
		if outside == "" {
			return f.ranges, "from " + f.source, nil
		}
		tried = append(tried, fmt.Sprintf("%s has %s, without %s", f.source, f.ranges, outside))
	}
	if len(tried) > 0 {
		return nil, "", errors.New(strings.Join(tried, "; "))
	}
	if len(cilium) > 0 {
		nodes = cilium
	}
	prefixes := fromNodes(nodes)
	switch {
	case len(prefixes) == 0:
		return nil, "", errors.New("neither kube-controller-manager, kube-proxy, the CNI plugin nor the nodes have them")
	case !acceptNodes:
		return nil, "", fmt.Errorf("only the present nodes have some, in %s, and nodes that come later have others; with --yes these are taken", prefixes)
	}
	return prefixes, "of the present nodes; for more nodes join again with --clustercidr and the whole range", nil
}

// maxOutside bounds the pods that a message names.
const maxOutside = 3

// outsideOf names running pods with addresses outside of all ranges; empty if there are none.
// Families of which no range exists are left out.
func outsideOf(ranges []netip.Prefix, pods []runningPod) string {
	var names []string
	for _, p := range pods {
		family := func(r netip.Prefix) bool { return r.Addr().Is4() == p.address.Is4() }
		if slices.ContainsFunc(ranges, family) && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(p.address) }) {
			names = append(names, fmt.Sprintf("pod %s at %s", p.name, p.address))
		}
	}
	if more := len(names) - maxOutside; more > 0 {
		names = append(names[:maxOutside], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// podSample bounds the pods that ranges are compared with.
const podSample = 500

// runningPods returns running pods that are not in the network of their node.
func runningPods(ctx context.Context, c kubernetes.Interface) ([]runningPod, error) {
	list, err := c.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running", Limit: podSample})
	if err != nil {
		return nil, fmt.Errorf("list the running pods: %w", err)
	}
	var out []runningPod
	for i := range list.Items {
		p := &list.Items[i]
		if p.Spec.HostNetwork || p.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && ip.IP != p.Status.HostIP {
				out = append(out, runningPod{p.Namespace + "/" + p.Name, a})
			}
		}
	}
	return out, nil
}

func controllerManager(ctx context.Context, c kubernetes.Interface) (f found, err error) {
	pods, err := c.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "component=kube-controller-manager"})
	if err != nil {
		return f, fmt.Errorf("list the pods of kube-controller-manager: %w", err)
	}
	return found{fromArguments(pods.Items), "kube-controller-manager"}, nil
}

// configMap returns the data of a ConfigMap of kube-system, nil without it.
func configMap(ctx context.Context, c kubernetes.Interface, name string) (map[string]string, error) {
	cm, err := c.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get ConfigMap kube-system/%s: %w", name, err)
	}
	return cm.Data, nil
}

func kubeProxy(ctx context.Context, c kubernetes.Interface) (found, error) {
	data, err := configMap(ctx, c, "kube-proxy")
	return found{fromText(proxyClusterCIDR, data["config.conf"]), "kube-proxy"}, err
}

// list reads ranges that are separated by spaces or commas; none if one of them is invalid.
func list(texts ...string) []netip.Prefix {
	var all []string
	for _, text := range texts {
		all = append(all, strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' || r == '\n' })...)
	}
	ranges, err := spec.ParseRanges(all)
	if err != nil {
		return nil
	}
	return ranges
}

// ciliumPools are Cilium's cluster pools, from which pods get their addresses whatever
// kube-controller-manager gives to nodes.
func ciliumPools(ctx context.Context, c kubernetes.Interface) (f found, err error) {
	data, err := configMap(ctx, c, "cilium-config")
	if err != nil || !strings.HasPrefix(data["ipam"], "cluster-pool") {
		return f, err
	}
	return found{list(data["cluster-pool-ipv4-cidr"], data["cluster-pool-ipv6-cidr"]), "ConfigMap cilium-config (cluster-pool-ipv4-cidr)"}, nil
}

// ciliumRouting are the ranges that Cilium routes natively; of ENI and Azure, the network of the
// nodes.
func ciliumRouting(ctx context.Context, c kubernetes.Interface) (f found, err error) {
	data, err := configMap(ctx, c, "cilium-config")
	return found{list(data["ipv4-native-routing-cidr"], data["ipv6-native-routing-cidr"]), "ConfigMap cilium-config (ipv4-native-routing-cidr)"}, err
}

// optional reads objects of a kind that the cluster may not have.
func optional(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ciliumNodes are the ranges that Cilium has given to nodes, as Nodes: those of Nodes may differ.
func ciliumNodes(ctx context.Context, c client.Reader) (out []corev1.Node, err error) {
	nodes := &unstructured.UnstructuredList{}
	nodes.SetGroupVersionKind(schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNodeList"})
	if err := optional(c.List(ctx, nodes)); err != nil {
		return nil, fmt.Errorf("list the CiliumNodes: %w", err)
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if texts := ranges.OfCiliumNode(n); len(texts) > 0 {
			out = append(out, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.GetName()}, Spec: corev1.NodeSpec{PodCIDRs: texts}})
		}
	}
	return out, nil
}

// nodesOutside names CiliumNodes whose ranges are outside of all of these; empty if there are none.
func nodesOutside(ranges []netip.Prefix, nodes []corev1.Node) string {
	var names []string
	for _, n := range nodes {
		for _, text := range n.Spec.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			family := func(r netip.Prefix) bool { return r.Addr().Is4() == p.Addr().Is4() }
			if err == nil && slices.ContainsFunc(ranges, family) && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) }) {
				names = append(names, fmt.Sprintf("CiliumNode %s with %s", n.Name, p))
			}
		}
	}
	if more := len(names) - maxOutside; more > 0 {
		names = append(names[:maxOutside], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

func calicoPools(ctx context.Context, c client.Reader) (f found, err error) {
	pools := &unstructured.UnstructuredList{}
	pools.SetGroupVersionKind(schema.GroupVersionKind{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPoolList"})
	if err := optional(c.List(ctx, pools)); err != nil {
		return f, fmt.Errorf("list the IPPools of Calico: %w", err)
	}
	var texts []string
	for i := range pools.Items {
		texts = append(texts, ranges.OfPool(&pools.Items[i])...)
	}
	return found{list(texts...), "Calico's IPPools"}, nil
}

// openShift reads the cluster's Network.
func openShift(ctx context.Context, c client.Reader) (f found, err error) {
	network := &unstructured.Unstructured{}
	network.SetGroupVersionKind(schema.GroupVersionKind{Group: "config.openshift.io", Version: "v1", Kind: "Network"})
	if err := optional(c.Get(ctx, client.ObjectKey{Name: "cluster"}, network)); err != nil {
		return f, fmt.Errorf("get Network cluster of OpenShift: %w", err)
	}
	networks, _, _ := unstructured.NestedSlice(network.Object, "spec", "clusterNetwork") // absent: no range
	var texts []string
	for _, n := range networks {
		if m, ok := n.(map[string]any); ok {
			text, _, _ := unstructured.NestedString(m, "cidr")
			texts = append(texts, text)
		}
	}
	return found{list(texts...), "Network cluster of OpenShift"}, nil
}

// distribution is the range that k3s or RKE2 was started with. Both keep the arguments of a server
// in an annotation of its Node.
func distribution(nodes []corev1.Node) found {
	const preset = "10.42.0.0/16" // of both
	for _, of := range []struct{ annotation, name string }{{"k3s.io/node-args", "k3s"}, {"rke2.io/node-args", "RKE2"}} {
		for _, n := range nodes {
			var args []string
			if json.Unmarshal([]byte(n.Annotations[of.annotation]), &args) != nil || len(args) == 0 || args[0] != "server" {
				continue
			}
			text := ""
			for i, arg := range args {
				if value, ok := strings.CutPrefix(arg, "--cluster-cidr="); ok {
					text += "," + value
				} else if arg == "--cluster-cidr" && i+1 < len(args) {
					text += "," + args[i+1]
				}
			}
			if text == "" {
				text = preset
			}
			return found{list(text), of.name + " (annotation " + of.annotation + ")"}
		}
	}
	return found{}
}
