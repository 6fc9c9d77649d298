package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// cluster is what the offer of every service has in common.
type cluster struct {
	id              string
	globalnet       bool
	brokerNamespace string
	// dashedHostnames: an endpoint without hostname has its address as one, as in mode mcs, instead
	// of its pod's name.
	dashedHostnames bool
	// clusterSetIPs: an export gets a ClusterSetIP unless its annotation says otherwise.
	clusterSetIPs bool
	// Without globalnet:
	routed []netip.Prefix // ranges of pods, and of hosts outside the cluster
	// fabric is the address of a node, by its index, in the clusterset's fabric.
	fabric func(node uint16) (netip.Addr, error)
}

// state is what the own cluster says of one service.
type state struct {
	export  *mcs.ServiceExport // nil if the service is not exported
	service *corev1.Service    // nil if none exists
	slices  []discoveryv1.EndpointSlice
	// ingress holds the global IPs of the service (key: its name) or of its endpoints (key:
	// ingressName).
	ingress map[string]submarinerv1.GlobalIngressIP
	// members are the labels of the clusterset's clusters, by id; nil: the hub is not known yet.
	members map[string]map[string]string
	nodes   map[string]node // those that endpoints are on
	// elsewhere are the ranges that are routed to other clusters; read where an endpoint is on no
	// node.
	elsewhere []netip.Prefix
}

// node is a node of this cluster.
type node struct {
	index     uint16 // 0: none yet
	addresses []netip.Addr
	// noDatapath: pelago-node cannot run there (topology.HasDatapath).
	noDatapath bool
}

// offer is what the cluster publishes of one service.
type offer struct {
	contribution *v1alpha1.ServiceContribution // nil: nothing is published
	slices       []*discoveryv1.EndpointSlice
	valid        validity
	waiting      string // why the service is not or not wholly published yet; empty if it is
	// waiting is that no endpoint can be reached from other clusters, which does not change by
	// itself
	unreachable bool
	exportTo    []string
}

// validity is the content of condition Valid.
type validity struct {
	ok      bool
	reason  mcs.ServiceExportConditionReason
	message string
}

// desired computes what is to be published of a service.
func (c cluster) desired(s state) offer {
	if s.export == nil || s.export.DeletionTimestamp != nil {
		return offer{}
	}
	audience, restricted, err := audienceOf(s.export)
	o := offer{valid: judge(s.export, s.service, err)}
	if !o.valid.ok {
		return o
	}
	if restricted {
		o.exportTo, o.valid.message = c.exportTo(audience, s.members)
	}
	balancing, ignored := topology.ExportedBalancing(s.export.Annotations)
	if len(ignored) > 0 {
		o.valid.reason = reasonIgnoredAnnotation
		o.valid.message += "; " + strings.Join(ignored, "; ")
	}
	// The cache lists slices in any order, and the message names one endpoint of several.
	s.slices = slices.SortedFunc(slices.Values(s.slices), func(a, b discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	all := readyBackends(s.slices)
	s.slices = s.withDatapath()
	var content []BackendSlice
	ips := slices.DeleteFunc(slices.Clone(s.service.Spec.ClusterIPs), func(text string) bool { return !is4(text) })
	switch headless := s.service.Spec.ClusterIP == corev1.ClusterIPNone; {
	case headless && s.has(discoveryv1.AddressTypeIPv6) && !s.has(discoveryv1.AddressTypeIPv4):
		o.waiting = "the Service has only IPv6 endpoints, and only IPv4 is routed between clusters: give it IPv4 ones by spec.ipFamilies"
		// else its IPv4 slice may be about to come
		o.unreachable = !slices.Contains(s.service.Spec.IPFamilies, corev1.IPv4Protocol)
	case headless && c.globalnet:
		content, o.waiting = c.endpointsUnderGlobalnet(s)
	case headless:
		content, o.waiting, o.unreachable = c.endpoints(s)
	case len(ips) == 0:
		o.waiting = "the Service has no IPv4 ClusterIP, and only IPv4 is routed between clusters: give it one by spec.ipFamilies"
		return o
	case c.globalnet:
		ip, waiting := allocated(s.ingress, s.service.Name, ofService)
		if waiting != "" {
			o.waiting = waiting
			return o
		}
		ips = []string{ip}
		content, o.waiting, o.unreachable = routedSlices(ips, s)
	default:
		content, o.waiting, o.unreachable = routedSlices(ips, s)
	}
	if o.waiting == "" && all > 0 && readyBackends(s.slices) == 0 {
		o.waiting = fmt.Sprintf("none of %d ready endpoints is reached from other clusters: their nodes cannot run pelago-node "+
			"(Windows, virtual kubelet, Fargate); run the pods on others", all)
		o.unreachable = !slices.ContainsFunc(s.slices, func(e discoveryv1.EndpointSlice) bool { return len(e.Endpoints) > 0 })
	}
	o.contribution = c.contribution(s, ips)
	o.contribution.Spec.ExportTo = o.exportTo
	if len(balancing) > 0 {
		o.contribution.Spec.ExportedAnnotations = union(s.export.Spec.ExportedAnnotations, balancing)
	}
	for _, slice := range content {
		o.slices = append(o.slices, c.slice(s.service, slice))
	}
	return o
}

// reasonInvalidMetadata is the reason of Valid=False for labels or annotations that no
// ServiceImport can have.
const reasonInvalidMetadata mcs.ServiceExportConditionReason = "InvalidExportedMetadata"

// reasonInvalidAudience is the reason of Valid=False for an annotation pelago.io/export-to that
// names no clusters.
const reasonInvalidAudience mcs.ServiceExportConditionReason = "InvalidExportTo"

// reasonIgnoredAnnotation is the reason of Valid=True where an annotation of the export has no
// effect: a typing error must not end an export that is in use.
const reasonIgnoredAnnotation mcs.ServiceExportConditionReason = "IgnoredAnnotation"

func judge(export *mcs.ServiceExport, service *corev1.Service, audience error) validity {
	invalid := invalidMetadata(export.Spec.ExportedLabels, export.Spec.ExportedAnnotations)
	switch {
	case service == nil:
		return validity{reason: mcs.ServiceExportReasonNoService, message: "ServiceUnavailable: there is no Service of this name to be exported"}
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return validity{reason: mcs.ServiceExportReasonInvalidServiceType, message: "UnsupportedServiceType: a Service of type ExternalName cannot be exported"}
	case invalid != "":
		return validity{reason: reasonInvalidMetadata, message: invalid}
	case audience != nil:
		return validity{reason: reasonInvalidAudience, message: audience.Error()}
	}
	return validity{ok: true, reason: mcs.ServiceExportReasonValid, message: "the Service can be exported"}
}

func is4(text string) bool {
	ip, err := netip.ParseAddr(text)
	return err == nil && ip.Is4()
}

// routedSlices publishes a service with a ClusterIP. Traffic from other clusters is translated on
// the backend's node or, for a backend on no node, at a gateway; such a backend needs an IPv4
// address that is not routed to another cluster.
func routedSlices(ips []string, s state) (content []BackendSlice, waiting string, unreachable bool) {
	unreachable = true
	reached := make([]discoveryv1.EndpointSlice, len(s.slices))
	for i, slice := range s.slices {
		reached[i] = slice
		reached[i].Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), func(e discoveryv1.Endpoint) bool {
			return e.NodeName == nil && !s.reachable(slice.AddressType, e)
		})
		unreachable = unreachable && len(reached[i].Endpoints) == 0
	}
	if n := readyBackends(s.slices); n > 0 && readyBackends(reached) == 0 {
		waiting = fmt.Sprintf("none of %d ready endpoints is reached from other clusters: they are on no node (nodeName), and their "+
			"addresses are not IPv4 or are routed to another cluster", n)
	}
	return VirtualSlices(ips, s.service, reached), waiting, unreachable && waiting != ""
}

// withDatapath are the slices without the endpoints on nodes that cannot run pelago-node: no packet
// from another cluster is translated there.
func (s state) withDatapath() []discoveryv1.EndpointSlice {
	if !slices.ContainsFunc(slices.Collect(maps.Values(s.nodes)), func(n node) bool { return n.noDatapath }) {
		return s.slices
	}
	kept := slices.Clone(s.slices)
	for i, slice := range kept {
		kept[i].Endpoints = slices.DeleteFunc(slices.Clone(slice.Endpoints), func(e discoveryv1.Endpoint) bool {
			return s.nodes[ptr.Deref(e.NodeName, "")].noDatapath
		})
	}
	return kept
}

// has reports whether there is an endpoint of a family.
func (s state) has(family discoveryv1.AddressType) bool {
	return slices.ContainsFunc(s.slices, func(e discoveryv1.EndpointSlice) bool { return e.AddressType == family && len(e.Endpoints) > 0 })
}

// reachable reports whether a gateway can reach an endpoint that is on no node.
func (s state) reachable(family discoveryv1.AddressType, e discoveryv1.Endpoint) bool {
	if family != discoveryv1.AddressTypeIPv4 || len(e.Addresses) == 0 {
		return false
	}
	ip, err := netip.ParseAddr(e.Addresses[0])
	return err == nil && !slices.ContainsFunc(s.elsewhere, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// endpoints publishes the endpoints of a headless service without globalnet: pods and hosts of
// --external-cidr under their own addresses, and pods in the host network, whose address is one of
// their node's, under its fabric address, because node addresses are not routed between clusters.
// What is outside of all ranges is not published: at the node's fabric address processes of the node
// would answer for the pod. A node gets its index soon after it has joined.
func (c cluster) endpoints(s state) (content []BackendSlice, waiting string, unreachable bool) {
	outside := true
	content = PodSlices(s.slices, c.dashedHostnames, func(family discoveryv1.AddressType, e discoveryv1.Endpoint) (string, bool) {
		if family != discoveryv1.AddressTypeIPv4 {
			return "", false
		}
		text := e.Addresses[0]
		ip, err := netip.ParseAddr(text)
		if err == nil && slices.ContainsFunc(c.routed, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return text, true
		}
		name := ptr.Deref(e.NodeName, "")
		on := s.nodes[name]
		switch {
		case name == "":
			waiting = fmt.Sprintf("endpoint %s is on no node and outside the cluster's pod ranges %s: it cannot be reached from other clusters; "+
				"for a host outside the cluster join with --external-cidr", text, c.routed)
			return "", false
		case !slices.Contains(on.addresses, ip):
			waiting = fmt.Sprintf("endpoint %s on node %s is outside the cluster's pod ranges %s: it cannot be reached from other clusters; "+
				"join again with --clustercidr and ranges that contain the present ones and %s", text, name, c.routed, text)
			return "", false
		}
		fabric, err := c.fabric(on.index)
		if err != nil {
			waiting = fmt.Sprintf("endpoint %s is in the network of node %s, which has no index yet: is pelago-agent running?", text, name)
			outside = false
			return "", false
		}
		return fabric.String(), true
	})
	return content, waiting, waiting != "" && outside && len(content) == 0
}

// endpointsUnderGlobalnet publishes the endpoints that have a global IP which all gateways know.
func (c cluster) endpointsUnderGlobalnet(s state) (content []BackendSlice, waiting string) {
	all, without := 0, ""
	content = PodSlices(s.slices, c.dashedHostnames, func(family discoveryv1.AddressType, e discoveryv1.Endpoint) (string, bool) {
		if family != discoveryv1.AddressTypeIPv4 {
			return "", false // global IPs are IPv4
		}
		all++
		ip, waiting := allocated(s.ingress, ingressName(s.service.Name, e), func(g submarinerv1.GlobalIngressIP) bool {
			return g.Spec.Target != submarinerv1.ClusterIPService && samePod(g, e)
		})
		if waiting != "" {
			without = waiting
		}
		return ip, waiting == ""
	})
	if without != "" {
		return content, fmt.Sprintf("not all of %d endpoints have a global IP: %s", all, without)
	}
	return content, ""
}

// ingressName is the name of the GlobalIngressIP of an endpoint of a headless service. It is a
// pod's if the pod can own it.
func ingressName(service string, e discoveryv1.Endpoint) string {
	if pod := EndpointPod(e); pod != "" && e.TargetRef.UID != "" {
		return "pod-" + pod
	}
	return "ep-" + service + "-" + e.Addresses[0]
}

// samePod reports whether the address is that of this very pod: a StatefulSet gives one name to
// many pods in turn.
func samePod(g submarinerv1.GlobalIngressIP, e discoveryv1.Endpoint) bool {
	if e.TargetRef == nil || e.TargetRef.UID == "" {
		return true
	}
	return !slices.ContainsFunc(g.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.UID != e.TargetRef.UID })
}

func ofService(g submarinerv1.GlobalIngressIP) bool {
	return g.Spec.Target == submarinerv1.ClusterIPService
}

// allocated is the global IP of the named GlobalIngressIP, if that satisfies fits and all gateways
// use the address; otherwise waiting reports why none exists.
func allocated(ingress map[string]submarinerv1.GlobalIngressIP, name string, fits func(submarinerv1.GlobalIngressIP) bool) (ip, waiting string) {
	g, ok := ingress[name]
	if !ok || !fits(g) {
		return "", fmt.Sprintf("ServiceGlobalIPUnavailable: GlobalIngressIP %s does not exist yet", name)
	}
	condition := meta.FindStatusCondition(g.Status.Conditions, submarinerv1.ConditionAllocated)
	switch {
	case condition == nil:
		return "", fmt.Sprintf("ServiceGlobalIPUnavailable: GlobalIngressIP %s has no address yet", name)
	case condition.Status != metav1.ConditionTrue || g.Status.AllocatedIP == "":
		return "", fmt.Sprintf("ServiceGlobalIPUnavailable: GlobalIngressIP %s: %s: %s", name, condition.Reason, condition.Message)
	}
	return g.Status.AllocatedIP, ""
}

func (c cluster) contribution(s state, ips []string) *v1alpha1.ServiceContribution {
	service := s.service
	spec := v1alpha1.ServiceContributionSpec{
		Cluster: c.id, Namespace: service.Namespace, Service: service.Name,
		Type: v1alpha1.ContributionClusterSetIP, IPs: ips,
		SessionAffinity:       cmp.Or(service.Spec.SessionAffinity, corev1.ServiceAffinityNone),
		SessionAffinityConfig: service.Spec.SessionAffinityConfig,
		InternalTrafficPolicy: service.Spec.InternalTrafficPolicy,
		TrafficDistribution:   service.Spec.TrafficDistribution,
		ExportedAt:            s.export.CreationTimestamp,
		ExportedLabels:        s.export.Spec.ExportedLabels,
		ExportedAnnotations:   s.export.Spec.ExportedAnnotations,
	}
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		spec.Type = v1alpha1.ContributionHeadless
	}
	for _, p := range service.Spec.Ports {
		spec.Ports = append(spec.Ports, v1alpha1.ContributionPort{
			Name: p.Name, AppProtocol: p.AppProtocol, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: p.Port,
		})
	}
	return &v1alpha1.ServiceContribution{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.brokerNamespace, Name: c.contributionName(service.Namespace, service.Name),
			Labels: map[string]string{
				submarinerv1.LabelClusterID:       c.id,
				mcs.LabelServiceName:              service.Name,
				submarinerv1.LabelSourceNamespace: service.Namespace,
			},
		},
		Spec: spec,
	}
}

// contributionName is unique, since none of its three parts can hold a dot.
func (c cluster) contributionName(namespace, service string) string {
	return strings.Join([]string{c.id, namespace, service}, ".")
}

func (c cluster) slice(service *corev1.Service, content BackendSlice) *discoveryv1.EndpointSlice {
	hash := NameHash(service.Namespace, service.Name, c.id, string(content.Type), content.Source)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.brokerNamespace, Name: strings.Join([]string{c.id, service.Name, hash}, "."),
			Labels: map[string]string{
				submarinerv1.LabelClusterID:       c.id,
				mcs.LabelServiceName:              service.Name,
				mcs.LabelSourceCluster:            c.id,
				submarinerv1.LabelSourceNamespace: service.Namespace,
				discoveryv1.LabelManagedBy:        v1alpha1.ExportedSliceManager,
				v1alpha1.LabelProxyName:           v1alpha1.ProxyName,
			},
		},
		AddressType: content.Type, Ports: content.Ports, Endpoints: content.Endpoints,
	}
	content.annotate(slice)
	return slice
}
