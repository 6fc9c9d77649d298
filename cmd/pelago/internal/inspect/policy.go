package inspect

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// forbids returns the NetworkPolicies that select a pod for a direction if none of them allows the
// peer, else nil. The peer is an address of another cluster, so of the peers of a rule only an
// ipBlock matches it (networking.k8s.io/v1).
func forbids(policies []networkingv1.NetworkPolicy, pod *corev1.Pod, out bool, peer netip.Addr, protocol corev1.Protocol, port uint16) (names []string) {
	for _, p := range policies {
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil || p.Namespace != pod.Namespace || !selector.Matches(labels.Set(pod.Labels)) || !applies(p.Spec, out) {
			continue
		}
		if out && slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
			return allows(r.To, r.Ports, pod, peer, protocol, port)
		}) || !out && slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
			return allows(r.From, r.Ports, pod, peer, protocol, port)
		}) {
			return nil
		}
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}

// applies reports whether a policy is about a direction; without policyTypes it is about ingress,
// and about egress if it has such rules.
func applies(s networkingv1.NetworkPolicySpec, out bool) bool {
	if len(s.PolicyTypes) == 0 {
		return !out || len(s.Egress) > 0
	}
	kind := networkingv1.PolicyTypeIngress
	if out {
		kind = networkingv1.PolicyTypeEgress
	}
	return slices.Contains(s.PolicyTypes, kind)
}

func allows(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, pod *corev1.Pod, peer netip.Addr, protocol corev1.Protocol, port uint16) bool {
	return (len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool { return inBlock(p.IPBlock, peer) })) &&
		(len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool { return portMatches(p, pod, protocol, port) }))
}

func inBlock(b *networkingv1.IPBlock, peer netip.Addr) bool {
	if b == nil {
		return false
	}
	has := func(cidr string) bool {
		prefix, err := netip.ParsePrefix(cidr)
		return err == nil && prefix.Contains(peer)
	}
	return has(b.CIDR) && !slices.ContainsFunc(b.Except, has)
}

func portMatches(p networkingv1.NetworkPolicyPort, pod *corev1.Pod, protocol corev1.Protocol, port uint16) bool {
	if want := p.Protocol; want != nil && *want != protocol || want == nil && protocol != corev1.ProtocolTCP {
		return false
	}
	if p.Port == nil {
		return true
	}
	if name := p.Port.StrVal; name != "" {
		for _, c := range pod.Spec.Containers {
			if slices.ContainsFunc(c.Ports, func(cp corev1.ContainerPort) bool { return cp.Name == name && cp.ContainerPort == int32(port) }) {
				return true
			}
		}
		return false
	}
	last := p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	return int32(port) >= p.Port.IntVal && int32(port) <= last
}
