// Package node turns API objects into the kernel tables of this node, and reports what the kernel has.
//
// Desired is pure: objects and facts about the host in, a dataplane.State out. Daemon is the thin rest: caches, one
// debounced reconcile that applies the State, and the loops that sweep flows and probe remote gateways. Only pelago-node
// runs it.
package node

import (
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
)

// Objects is everything of the API that the node's tables are made of.
type Objects struct {
	Config config.Config
	// Name of this node.
	Name          string
	Nodes         []corev1.Node
	NodeIndexes   []pelagov1alpha1.NodeIndex
	Peers         []pelagov1alpha1.Peer
	PortBlocks    []pelagov1alpha1.PortBlock
	ClusterEgress *submarinerv1.ClusterGlobalEgressIP
	EgressIPs     []submarinerv1.GlobalEgressIP
	IngressIPs    []submarinerv1.GlobalIngressIP
	// Services and Slices hold at least those that an IngressIP refers to, or that are exported.
	Services map[types.NamespacedName]*corev1.Service
	Slices   map[types.NamespacedName][]discoveryv1.EndpointSlice // by service
	// Pods of this node.
	Pods []corev1.Pod
	// Datapaths are the labels of namespaces that have one (LabelDatapath), Policies the NetworkPolicies of the cluster.
	Datapaths map[string]string
	Policies  []networkingv1.NetworkPolicy
	// Exports are the Services that are exported; used without globalnet.
	Exports map[types.NamespacedName]bool
	// Places leads from the address of every pod of the cluster to its node; on gateways without globalnet only.
	Places map[netip.Addr]string
	// Ways are what is known of the way to remote gateways, by cluster/node; on gateways only. The peers' gateways have the
	// addresses that follow from it.
	Ways map[string]natt.Verdict
	// Answering are the other nodes of the cluster that work as gateways by this node's probes (links.answering).
	Answering map[string]bool
}

// Host is what the node knows of itself.
type Host struct {
	// Hops says how outer addresses are reached (see OuterAddresses); one that is missing is left out of the tables.
	Hops map[netip.Addr]dataplane.Hop
	// Devices are the devices towards local pods.
	Devices map[netip.Addr]uint32
	// Datapath is that of pods whose namespace sets none; Endpoints are the devices of those that are not strict.
	Datapath  dataplane.Datapath
	Endpoints map[netip.Addr]dataplane.Endpoint
	// Addresses of the node itself.
	Addresses []netip.Addr
	Overlay   dataplane.Tokens
	Cable     dataplane.Tokens
	// Underlay is the smallest MTU of the uplinks, MTU that of pelago0.
	Underlay, MTU int
	// Limits are the remote clusters, by index, on the way to which packets of pods are lost that MTU allows, and how large they may
	// be instead.
	Limits map[uint16]int
	// PathMTU is what this node as a gateway has found of them (NodeIndex.status).
	PathMTU map[string]int32
	// Wire of this gateway.
	Wire Wire
	// Problems are settings that could not be used, in words for an operator.
	Problems []string
	// Draining: the node is no gateway any more, but others may not have heard of it.
	Draining bool
	// Leaving are remote gateways that were taken out of service, which those that use them may not have heard of.
	Leaving map[netip.Addr]dataplane.Peer
}

// Result is what the objects amount to on this node.
type Result struct {
	State dataplane.State
	// Gateway: the node is to act and to be used as a gateway.
	Gateway bool
	// Acks are the UIDs of objects that are not active yet and that are in State (gateways only), sorted.
	Acks []string
	// Owners are the pods behind the local addresses, so that a change of tenant is noticed.
	Owners map[netip.Addr]types.UID
	// Wire is what others must know to reach this gateway.
	Wire map[string]string
	// PathMTU is, on a gateway, Host's.
	PathMTU map[string]int32
	// Rotation of a gateway's keys; the zero value if none was asked for.
	Rotation cable.Rotation
	// Datapath is Host's.
	Datapath dataplane.Datapath
	// Problems are objects that could not be taken in, in words for an operator.
	Problems []string
}

// ownNode is this node's object; empty if there is none.
func ownNode(objs Objects) *corev1.Node {
	for i := range objs.Nodes {
		if objs.Nodes[i].Name == objs.Name {
			return &objs.Nodes[i]
		}
	}
	return &corev1.Node{}
}

// ownIndex is this node's NodeIndex; empty if there is none.
func ownIndex(objs Objects) *pelagov1alpha1.NodeIndex {
	for i := range objs.NodeIndexes {
		if objs.NodeIndexes[i].Name == objs.Name {
			return &objs.NodeIndexes[i]
		}
	}
	return &pelagov1alpha1.NodeIndex{}
}

// routedPeers are the peers for which packets are led into pelago0. One that is accepted but for having no gateway right now
// is among them: its packets are dropped there, instead of leaving by the default route.
func routedPeers(peers []pelagov1alpha1.Peer) iter.Seq[*pelagov1alpha1.Peer] {
	return func(yield func(*pelagov1alpha1.Peer) bool) {
		for i := range peers {
			c := meta.FindStatusCondition(peers[i].Status.Conditions, pelagov1alpha1.PeerAccepted)
			routed := c != nil && (c.Status == metav1.ConditionTrue || c.Reason == pelagov1alpha1.ReasonNoGateway)
			if routed && !yield(&peers[i]) {
				return
			}
		}
	}
}

// remoteGateways are the gateways of the routed peers.
func remoteGateways(peers []pelagov1alpha1.Peer) iter.Seq2[*pelagov1alpha1.Peer, pelagov1alpha1.PeerGateway] {
	return func(yield func(*pelagov1alpha1.Peer, pelagov1alpha1.PeerGateway) bool) {
		for p := range routedPeers(peers) {
			for _, g := range p.Spec.Gateways {
				if !yield(p, g) {
					return
				}
			}
		}
	}
}
