package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/trace"
	installed "github.com/pelago-net/pelago/deploy/member"
)

// member is an open cluster with the objects that a trace needs.
type member struct {
	view.Member
	config   config.Config
	daemons  map[string]string // pods of pelago-node by node
	indexes  []pelagov1alpha1.NodeIndex
	peers    []pelagov1alpha1.Peer
	services []corev1.Service
	policies []networkingv1.NetworkPolicy
}

func readMember(ctx context.Context, m view.Member) (member, error) {
	out := member{Member: m}
	var err error
	if out.config, err = installed.Former(ctx, m.Client); err != nil {
		return out, err
	}
	if out.config.ClusterID == "" {
		return out, fmt.Errorf("the cluster at %s has not joined a clusterset: join it with `pelago join`", m.Config.Host)
	}
	var indexes pelagov1alpha1.NodeIndexList
	var peers pelagov1alpha1.PeerList
	var services corev1.ServiceList
	var policies networkingv1.NetworkPolicyList
	for what, list := range map[string]func() error{
		"NodeIndexes":     func() error { return m.Client.List(ctx, &indexes) },
		"Peers":           func() error { return m.Client.List(ctx, &peers) },
		"Services":        func() error { return m.Client.List(ctx, &services) },
		"NetworkPolicies": func() error { return m.Client.List(ctx, &policies) },
	} {
		if err := list(); err != nil {
			return out, fmt.Errorf("list %s of cluster %s: %w", what, out.config.ClusterID, err)
		}
	}
	out.indexes, out.peers, out.services, out.policies = indexes.Items, peers.Items, services.Items, policies.Items
	out.daemons, err = m.DaemonPods(ctx)
	return out, err
}

// site is the cluster for Follow.
func (m member) site() *Site {
	s := &Site{
		Name: m.config.ClusterID, Index: m.config.ClusterIndex, Nodes: map[uint16]string{}, Others: map[uint16]string{}, Ask: m.ask,
		Shadow: func(p trace.Packet) string { return shadow(m.services, p) }, Forbidden: m.forbidden,
		Refused: func(a netip.Addr) string { return refused(m.peers, a) },
	}
	for _, n := range m.indexes {
		s.Nodes[uint16(n.Spec.Index)] = n.Name
	}
	for _, p := range m.peers {
		s.Others[uint16(p.Spec.ClusterIndex)] = p.Name
	}
	return s
}

// run has pelago-node of a node run a verb of `pelago-node trace`.
func (m member) run(ctx context.Context, node, verb string, in any) ([]byte, error) {
	if m.daemons[node] == "" {
		return nil, fmt.Errorf("%w: %w", errNoDaemon, view.NoDaemon(node))
	}
	text, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode the request for node %s: %w", node, err)
	}
	var out bytes.Buffer
	err = m.Run(ctx, m.daemons[node], bytes.NewReader(text), &out, "pelago-node", "trace", verb)
	return out.Bytes(), err
}

func (m member) ask(ctx context.Context, node string, r trace.Request) (a trace.Answer, err error) {
	out, err := m.run(ctx, node, "hop", r)
	if err != nil {
		return a, fmt.Errorf("node %s: %w", node, err)
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return a, fmt.Errorf("read the answer of node %s: %w (is its pelago-node of another version?)", node, err)
	}
	return a, nil
}

// shadow is the Service that has the destination of a packet among its addresses.
func shadow(services []corev1.Service, p trace.Packet) string {
	for _, s := range services {
		addresses := slices.Concat(s.Spec.ClusterIPs, s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			addresses = append(addresses, i.IP)
		}
		if slices.Contains(addresses, p.Destination.Addr().String()) && slices.ContainsFunc(s.Spec.Ports, func(port corev1.ServicePort) bool {
			return uint16(port.Port) == p.Destination.Port() && protocolOf(port.Protocol) == p.Protocol
		}) {
			return s.Namespace + "/" + s.Name
		}
	}
	return ""
}

// refused is why the cluster that has an address is not accepted; "": it is, or none has it.
func refused(peers []pelagov1alpha1.Peer, a netip.Addr) string {
	for _, p := range peers {
		has := slices.ContainsFunc(p.Spec.Subnets, func(text string) bool {
			prefix, err := netip.ParsePrefix(text)
			return err == nil && prefix.Contains(a)
		})
		if c := meta.FindStatusCondition(p.Status.Conditions, pelagov1alpha1.PeerAccepted); has && (c == nil || c.Status != metav1.ConditionTrue) {
			if c == nil {
				return fmt.Sprintf("Peer %s has not been examined yet", p.Name)
			}
			return fmt.Sprintf("Peer %s is not accepted: %s: %s", p.Name, c.Reason, c.Message)
		}
	}
	return ""
}

// forbidden looks up the pod at the local end of a packet.
func (m member) forbidden(ctx context.Context, p trace.Packet, out bool) (string, error) {
	local, peer := p.Destination, p.Source
	if out {
		local, peer = peer, local
	}
	if len(m.policies) == 0 {
		return "", nil
	}
	pods, err := m.Typed.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "status.podIP=" + local.Addr().String()})
	if err != nil {
		return "", fmt.Errorf("find the pod %s in cluster %s: %w", local.Addr(), m.config.ClusterID, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Spec.HostNetwork || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		// The port of a rule is that of the receiver.
		if names := forbids(m.policies, pod, out, peer.Addr(), corev1.Protocol(strings.ToUpper(protocolName(p.Protocol))), p.Destination.Port()); len(names) > 0 {
			return "NetworkPolicy " + strings.Join(names, ", "), nil
		}
	}
	return "", nil
}
