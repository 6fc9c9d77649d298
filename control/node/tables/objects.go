// Package tables derives the kernel tables of a node from API objects and facts about the host. It
// is pure; package node reads its inputs and applies its results.
package tables

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
)

// Objects are the API objects that the tables are derived from.
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
	// Datapaths are the labels of namespaces that have one (LabelDatapath), Policies the
	// NetworkPolicies of the cluster. OtherPolicies has a kind of other policies for each namespace
	// with some; those under "" select pods of all namespaces.
	Datapaths     map[string]string
	Policies      []networkingv1.NetworkPolicy
	OtherPolicies map[string]string
	// Imports are the ServiceImports with a ClusterSetIP, Imported the EndpointSlices of the
	// clusters that serve them.
	Imports  map[types.NamespacedName]Import
	Imported map[types.NamespacedName][]discoveryv1.EndpointSlice
	// Exports are the Services that are exported, ExportTo the annotation pelago.io/export-to of
	// those that have it.
	Exports  map[types.NamespacedName]bool
	ExportTo map[types.NamespacedName]string
	// PodNodes are the node names of all pods of the cluster by address; on gateways without
	// globalnet only.
	PodNodes map[netip.Addr]string
	// Discovered are the results of NAT discovery by GatewayName; on gateways only. The addresses
	// of the gateways in Peers have been set accordingly.
	Discovered map[string]natt.Reachability
	// Answering are the other nodes of the cluster that work as gateways by this node's probes.
	Answering map[string]bool
}

// Host is what is read of the node itself.
type Host struct {
	// Hops are the next hops of OuterAddresses; what has none is left out of the tables.
	Hops map[netip.Addr]dataplane.Hop
	// Others are the further interface indexes by which an address of Hops may be reached,
	// OwnDevices those that have the node's address: packets may arrive by any of them.
	Others     map[netip.Addr][]uint32
	OwnDevices []uint32
	// Unusable are interface indexes of these on which the programs cannot work, and why: nodes and
	// gateways of Hops that are reached by them are left out of the tables.
	Unusable map[uint32]string
	// Devices are the interface indexes at which packets of local pods arrive. Those whose device
	// is not known are left out of the sources; Unserved is why.
	Devices  map[netip.Addr]uint32
	Unserved map[netip.Addr]string
	// Datapath is the setting for pods whose namespace has none; Endpoints are the devices of those that
	// need programs (NeedsDevice).
	Datapath  string
	Endpoints map[netip.Addr]dataplane.Endpoint
	// Limited is what pods lack that need an endpoint and have none, or one with another datapath.
	Limited map[netip.Addr]string
	// External are the interface indexes towards ExternalAddresses, on gateways; what has no route
	// is left out.
	External map[netip.Addr]uint32
	// Needed are addresses outside the cluster's own ranges that the node works by, besides those
	// in Objects: of its API server, the hub and its resolvers. They are never routed to a peer.
	Needed []netip.Addr
	// Addresses of the node itself. If the map is too small, those of pods take precedence.
	Addresses []netip.Addr
	Overlay   dataplane.Tokens
	Cable     dataplane.Tokens
	// Underlay is the smallest MTU of the uplinks, MTU that of pelago0.
	Underlay, MTU int
	// Limits has, by index, the remote clusters towards which some packets of pods that MTU allows
	// are lost, and how large packets to them may be instead.
	Limits map[uint16]int
	// PathMTU is what this node, as a gateway, has found for the paths to remote clusters
	// (NodeIndex.status).
	PathMTU map[string]int32
	// Wire of this gateway.
	Wire Wire
	// Maglev are the tables of services of the last reconcile; nil: none.
	Maglev *dataplane.MaglevCache
	// Slices are the endpoints that the last reconcile has parsed; nil: none.
	Slices *SliceCache
	// Problems are invalid settings, as messages for an operator.
	Problems []string
	// Edge is the interface index of pelago0; 0 until the node is placed (see Placed).
	Edge uint32
	// Draining: the node is no gateway any more, but others may still send to it.
	Draining bool
	// Settled: since its start the daemon has once been connected to the remote gateways (see
	// settled).
	Settled bool
	// DrainingPeers are remote gateways that have left, by outer address: packets of them are
	// accepted for a while.
	DrainingPeers map[netip.Addr]dataplane.Peer
}

// Result is derived from Objects and Host.
type Result struct {
	State dataplane.State
	// Gateway: the node is a gateway.
	Gateway bool
	// Acks are the UIDs of objects that are not active yet and that are in State (gateways only),
	// sorted.
	Acks []string
	// Owners are the UIDs of pods by local address: flows of a former pod are removed.
	Owners map[netip.Addr]types.UID
	// Wire is what others must know to reach this gateway.
	Wire map[string]string
	// Outside are pods of this node with addresses outside of the cluster's registered pod ranges,
	// without globalnet.
	Outside []string
	// Needed is Host's.
	Needed []netip.Addr
	// PathMTU is, on a gateway, Host's.
	PathMTU map[string]int32
	// Rotation of a gateway's keys; the zero value if none was requested.
	Rotation cable.Rotation
	// Datapath is Host's.
	Datapath string
	// LeftOut are the pods of this node that are not connected, or not as they are to be.
	LeftOut []LeftOut
	// Unreached are the nodes and gateways that are left out because of the device that leads to
	// them, as messages for an operator. They are among Problems.
	Unreached []string
	// Problems are objects that are not in the tables, as messages for an operator.
	Problems []string
}

// OwnNode returns this node's Node; empty if none exists.
func OwnNode(objs Objects) *corev1.Node {
	for i := range objs.Nodes {
		if objs.Nodes[i].Name == objs.Name {
			return &objs.Nodes[i]
		}
	}
	return &corev1.Node{}
}

// OwnIndex returns this node's NodeIndex; empty if none exists.
func OwnIndex(objs Objects) *pelagov1alpha1.NodeIndex {
	for i := range objs.NodeIndexes {
		if objs.NodeIndexes[i].Name == objs.Name {
			return &objs.NodeIndexes[i]
		}
	}
	return &pelagov1alpha1.NodeIndex{}
}

// RoutedPeers yields the peers whose packets are routed into pelago0. One that was accepted and only
// lacks a gateway now is among them: its packets are dropped there, instead of leaving by the
// default route.
func RoutedPeers(peers []pelagov1alpha1.Peer) iter.Seq[*pelagov1alpha1.Peer] {
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

// RemoteGateways yields the gateways of the routed peers.
func RemoteGateways(peers []pelagov1alpha1.Peer) iter.Seq2[*pelagov1alpha1.Peer, pelagov1alpha1.PeerGateway] {
	return func(yield func(*pelagov1alpha1.Peer, pelagov1alpha1.PeerGateway) bool) {
		for p := range RoutedPeers(peers) {
			for _, g := range p.Spec.Gateways {
				if !yield(p, g) {
					return
				}
			}
		}
	}
}

// Wire is the state of a gateway's wire; the zero value without one, and for the vxlan wire.
type Wire struct {
	// Devices are the interface indexes at which cable packets arrive.
	Devices []int
	// Fleeting: they, or their keys, change when this pod ends.
	Fleeting bool
	// Tunnels are the devices that lead to a remote gateway, by its fabric address.
	Tunnels map[netip.Addr][]int
	// Ports are the UDP ports at which the wire listens.
	Ports []uint16
	// Identity is what others must know to reach this gateway.
	Identity map[string]string
	// Rotation of its keys; the zero value if none was requested.
	Rotation cable.Rotation
}

// Reach is how others reach this gateway; the zero value on other nodes.
type Reach struct {
	// Backend is what others must know of it, for backend_config of the Endpoint.
	Backend map[string]string
	// Ports are UDP ports that the firewall accepts.
	Ports []uint16
	// Public is its public address; nil if none is configured.
	Public *pelagov1alpha1.PublicIP
	// Settings are the invalid settings of the node, as messages for an operator; nil on other
	// nodes.
	Settings []string
}

// With adds r to what others must know of the wire.
func (w Wire) With(r Reach) Wire {
	if len(r.Backend) > 0 {
		w.Identity = maps.Clone(w.Identity)
		if w.Identity == nil {
			w.Identity = map[string]string{}
		}
		maps.Copy(w.Identity, r.Backend)
	}
	w.Ports = slices.Concat(w.Ports, r.Ports)
	return w
}

// SameNode reports whether two versions of a Node are the same to tables, wire and settings.
func SameNode(a, b *corev1.Node) bool {
	ipA, _ := InternalIP(a)
	ipB, _ := InternalIP(b)
	externalA, _ := externalIP(a)
	externalB, _ := externalIP(b)
	_, drainedA := topology.Drained(a)
	_, drainedB := topology.Drained(b)
	return ipA == ipB && externalA == externalB && drainedA == drainedB && topology.IsGateway(a) == topology.IsGateway(b) &&
		(!topology.IsGateway(a) || topology.NodeReady(a) == topology.NodeReady(b)) &&
		a.UID == b.UID && a.Status.NodeInfo.BootID == b.Status.NodeInfo.BootID &&
		a.Labels[pelagov1alpha1.LabelDatapath] == b.Labels[pelagov1alpha1.LabelDatapath] &&
		a.Annotations[pelagov1alpha1.AnnotationRotateKeys] == b.Annotations[pelagov1alpha1.AnnotationRotateKeys] &&
		maps.Equal(settingsOf(a.Labels), settingsOf(b.Labels)) && maps.Equal(settingsOf(a.Annotations), settingsOf(b.Annotations))
}

// settingsOf returns the labels or annotations that are settings of a gateway.
func settingsOf(m map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range m {
		if strings.HasPrefix(key, AnnotationPrefix) {
			out[key] = value
		}
	}
	return out
}
