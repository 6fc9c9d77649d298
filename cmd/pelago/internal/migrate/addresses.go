package migrate

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// gatewayAddress is the public address of a gateway's node: where Pelago will take it from.
type gatewayAddress struct {
	node string
	// source is what Pelago uses without a change: the annotation or label of the node, or its
	// ExternalIP. found is what Submariner has found by asking a public server; it becomes an
	// annotation. Both are empty if none is known.
	source, found string
}

// readAddresses reads the public addresses of the labelled nodes. Submariner asks public servers for
// the address of a gateway without an annotation; Pelago never does. The result of Submariner stands
// in the Gateway of each node, and of the active one in the Endpoint at the broker.
func (s *submarinerState) readAddresses(ctx context.Context, member client.Client, namespace string) error {
	nodes := &corev1.NodeList{}
	if err := member.List(ctx, nodes); err != nil {
		return fmt.Errorf("list Nodes: %w", err)
	}
	gateways := &submarinerv1.GatewayList{}
	if err := member.List(ctx, gateways, client.InNamespace(namespace)); err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("list Gateways of namespace %s: %w", namespace, err)
	}
	found := map[string]string{} // node → address
	note := func(e submarinerv1.EndpointSpec) {
		ip, err := netip.ParseAddr(e.PublicIP)
		if err == nil && ip.Is4() && e.PublicIP != e.PrivateIP {
			found[e.Hostname] = cmp.Or(found[e.Hostname], e.PublicIP)
		}
	}
	for _, g := range gateways.Items {
		e := g.Status.LocalEndpoint
		e.Hostname = cmp.Or(e.Hostname, g.Name)
		note(e)
	}
	for _, e := range s.endpoints {
		if e.Spec.ClusterID == s.spec.ClusterID {
			note(e.Spec)
		}
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if !topology.IsGateway(n) {
			continue
		}
		a := gatewayAddress{node: n.Name, found: found[n.Name]}
		switch own := cmp.Or(n.Annotations[submarinerv1.AnnotationPublicIP], n.Labels[submarinerv1.AnnotationPublicIP]); {
		case own != "":
			a.source = own
		case s.spec.LoadBalancerEnabled:
			a.source = "the load balancer"
		default:
			a.source = externalIP(n, a.found)
		}
		s.addresses = append(s.addresses, a)
	}
	slices.SortFunc(s.addresses, func(a, b gatewayAddress) int { return strings.Compare(a.node, b.node) })
	return nil
}

// externalIP is the first ExternalIP of a node if it is the address that Submariner has found, or
// Submariner has found none; else empty.
func externalIP(n *corev1.Node, found string) string {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeExternalIP && err == nil && ip.Is4() {
			if found == "" || found == a.Address {
				return "ExternalIP " + a.Address
			}
			return ""
		}
	}
	return ""
}

// needsAddress reports whether the gateways of the cluster are reached at public addresses.
func (s submarinerState) needsAddress() bool {
	return (s.spec.NatEnabled == nil || *s.spec.NatEnabled) && !s.spec.AirGappedDeployment
}

// checkAddresses refuses gateways whose public address is not known although the cluster is behind
// NAT: peers in another network would lose them.
func (s submarinerState) checkAddresses() error {
	var missing []string
	for _, a := range s.addresses {
		if a.source == "" && a.found == "" {
			missing = append(missing, a.node)
		}
	}
	if len(missing) == 0 || !s.needsAddress() {
		return nil
	}
	return fmt.Errorf("no public address is known of gateway %s: Submariner may ask a public server for it, Pelago does not, and natEnabled is true: "+
		"set `kubectl annotate node %s %s=ipv4:ADDRESS` (or dns:NAME), or leave NAT out in Submariner %s (natEnabled: false) if all clusters "+
		"reach the gateways at their private addresses", strings.Join(missing, ", "), missing[0], submarinerv1.AnnotationPublicIP, s.spec.ClusterID)
}

// carryAddresses writes the addresses that Submariner has found as annotations of the nodes.
func (s *Submariner) carryAddresses(ctx context.Context) error {
	for _, a := range s.state.addresses {
		if a.source != "" || a.found == "" {
			continue
		}
		n := &corev1.Node{}
		if err := s.Member.Get(ctx, client.ObjectKey{Name: a.node}, n); err != nil {
			return fmt.Errorf("get Node %s: %w", a.node, err)
		}
		before := n.DeepCopy()
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[submarinerv1.AnnotationPublicIP] = "ipv4:" + a.found
		if err := s.Member.Patch(ctx, n, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("annotate Node %s with %s: %w", a.node, submarinerv1.AnnotationPublicIP, err)
		}
		s.Progress("Gateway %s keeps its public address: annotation %s=ipv4:%s", a.node, submarinerv1.AnnotationPublicIP, a.found)
	}
	return nil
}

// addressSettings are the lines of the plan about public addresses.
func (s submarinerState) addressSettings() (out []setting) {
	for _, a := range s.addresses {
		line := setting{"public address of " + a.node, cmp.Or(a.found, a.source), a.source}
		switch {
		case a.source == "" && a.found != "":
			line.Pelago = "annotation ipv4:" + a.found + ", set by --prepare"
		case a.source == "" && s.needsAddress():
			line.Pelago = "none is known: annotate the node, --prepare refuses"
		case a.source == "":
			line.Pelago = "none"
		}
		out = append(out, line)
	}
	return out
}
