package services

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// sourceCluster is what the imports of every service have in common.
type sourceCluster struct {
	id              string
	systemNamespace string
	// modeMCS: an import needs a ClusterSetIP to be ready, and an endpoint without hostname has its
	// address as one.
	modeMCS bool
	owner   kube.Owner
}

// importState is what the hub and the own cluster say of one service.
type importState struct {
	namespace, name string
	contributions   []v1alpha1.ServiceContribution
	hubSlices       []discoveryv1.EndpointSlice
	joined          map[string]time.Time // members, and when they joined
	vips            vips
	// refused are the contributing clusters to which this one does not connect, and why.
	refused map[string]refusal
	// ranges are those of the contributing clusters that are not refused.
	ranges map[string]peerRanges
	// dead are the clusters that no gateway reaches: their endpoints are not ready. stale are those
	// of them whose lease has expired: their endpoints are removed.
	dead, stale     []string
	namespaceExists bool
	// roundTrips are those to other clusters, nearest the order of the present import.
	roundTrips map[string]time.Duration
	nearest    []string
	// exported reports whether the own ServiceExport still stands; the hub may be behind.
	exported    bool
	service     *corev1.Service // of the own cluster; nil if none exists
	localSlices []discoveryv1.EndpointSlice
}

// result is what the own cluster is to have of one service.
type result struct {
	imported *mcs.ServiceImport   // merged, in the service's namespace; nil: none
	copies   []*mcs.ServiceImport // one for each exporting cluster, in the system namespace
	slices   []*discoveryv1.EndpointSlice
}

// desired computes the objects of one service.
//
// A cluster that is refused or stale has no say on type, ports and affinity as long as another
// exports the service. A refused one keeps its names, with no endpoint ready: resolvers would cache
// their absence for longer than it takes to mend the cause. One that is not judged yet is left out.
func (c sourceCluster) desired(s importState) result {
	contributions := slices.DeleteFunc(OfMembers(s.contributions, s.joined), func(x v1alpha1.ServiceContribution) bool {
		refused, is := s.refused[x.Spec.Cluster]
		return x.Spec.Cluster == c.id && !s.exported || is && refused.peer == nil || !exportedTo(x, c.id)
	})
	if len(contributions) == 0 {
		return result{}
	}
	deciding := slices.DeleteFunc(slices.Clone(contributions), func(x v1alpha1.ServiceContribution) bool {
		_, refused := s.refused[x.Spec.Cluster]
		return refused || slices.Contains(s.stale, x.Spec.Cluster)
	})
	if len(deciding) == 0 {
		deciding = contributions
	}
	merged := Merge(deciding, s.joined)
	merged.Clusters = nil
	var r result
	for _, x := range contributions {
		if x.Spec.Type != merged.Type {
			continue
		}
		merged.Clusters = append(merged.Clusters, x.Spec.Cluster)
		r.copies = append(r.copies, c.copyOf(x))
		if !s.namespaceExists {
			continue
		}
		if x.Spec.Cluster == c.id {
			r.slices = append(r.slices, c.ownSlices(s)...)
		} else {
			r.slices = append(r.slices, c.remoteSlices(s, x)...)
		}
	}
	slices.Sort(merged.Clusters)
	if s.namespaceExists {
		r.imported = c.imported(s, merged)
	}
	return r
}

// imported is the merged ServiceImport.
func (c sourceCluster) imported(s importState, merged MergedService) *mcs.ServiceImport {
	i := &mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: s.name,
			Labels: maps.Clone(merged.Labels), Annotations: maps.Clone(merged.Annotations),
		},
		Spec: mcs.ServiceImportSpec{
			Type: mcs.ServiceImportType(merged.Type), Ports: importPorts(merged.Ports),
			SessionAffinity: merged.SessionAffinity, SessionAffinityConfig: merged.SessionAffinityConfig,
			InternalTrafficPolicy: merged.InternalTrafficPolicy, TrafficDistribution: merged.TrafficDistribution,
		},
		Status: mcs.ServiceImportStatus{EndpointSliceObjects: mcs.EndpointSliceObjectsPresent},
	}
	if order := topology.NearestFirst(s.roundTrips, s.nearest); topology.PrefersNearest(merged.Annotations) && len(order) > 0 {
		i.Annotations[v1alpha1.AnnotationNearest] = strings.Join(order, ",")
	}
	for _, id := range merged.Clusters {
		i.Status.Clusters = append(i.Status.Clusters, mcs.ClusterStatus{Cluster: id})
	}
	ready := metav1.Condition{
		Type: string(mcs.ServiceImportConditionReady), Status: metav1.ConditionTrue, Reason: string(mcs.ServiceImportReasonReady),
		Message: "the service is imported",
	}
	// A cluster whose lease has expired stays in status.clusters (KEP-1645: those from which the
	// service was derived): its export stands until the cluster returns or is unjoined.
	if causes := append(s.refusals(), s.expired(merged.Clusters)...); len(causes) > 0 {
		ready.Message = "the service is imported, without ready endpoints of " + strings.Join(causes, "; of ")
		left := slices.DeleteFunc(slices.Clone(merged.Clusters), func(id string) bool { _, refused := s.refused[id]; return refused })
		switch {
		case len(left) == 0:
			ready.Status, ready.Reason = metav1.ConditionFalse, reasonPeerRefused
		case !slices.ContainsFunc(left, func(id string) bool { return !slices.Contains(s.stale, id) }):
			ready.Status, ready.Reason = metav1.ConditionFalse, reasonClusterGone
		}
	}
	switch i.Spec.Type {
	case mcs.Headless: // its endpoints' addresses
		i.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	case mcs.ClusterSetIP:
		// Chosen from all contributions, even from clusters to which this one is not connected: the
		// address is the same in all clusters.
		if vip := s.vips.choose(s.contributions); vip.ip.IsValid() {
			i.Spec.IPs, i.Spec.IPFamilies = []string{vip.ip.String()}, []corev1.IPFamily{corev1.IPv4Protocol}
		} else if c.modeMCS {
			ready.Status, ready.Reason = metav1.ConditionFalse, string(mcs.ServiceImportReasonPending)
			ready.Message = "no cluster has claimed a ClusterSetIP yet: see the condition ClusterSetIP of the ServiceExports"
		}
	}
	meta.SetStatusCondition(&i.Status.Conditions, ready)
	c.owner.Mark(i)
	return i
}

// copyOf is one cluster's contribution as a ServiceImport, for people who list them in the system
// namespace.
func (c sourceCluster) copyOf(x v1alpha1.ServiceContribution) *mcs.ServiceImport {
	i := &mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.systemNamespace, Name: x.Spec.Service + "-" + x.Spec.Namespace + "-" + x.Spec.Cluster,
			Labels: identity(x.Spec.Namespace, x.Spec.Service, x.Spec.Cluster),
		},
		Spec: mcs.ServiceImportSpec{
			Type: mcs.ServiceImportType(x.Spec.Type), Ports: importPorts(x.Spec.Ports), IPs: x.Spec.IPs,
			SessionAffinity: x.Spec.SessionAffinity, SessionAffinityConfig: x.Spec.SessionAffinityConfig,
		},
	}
	c.owner.Mark(i)
	return i
}

// ownSlices is the own cluster's part: the addresses that are valid inside it.
func (c sourceCluster) ownSlices(s importState) []*discoveryv1.EndpointSlice {
	if s.service == nil {
		return nil
	}
	var out []*discoveryv1.EndpointSlice
	if s.service.Spec.ClusterIP == corev1.ClusterIPNone {
		for _, content := range PodSlices(s.localSlices, c.modeMCS, OwnAddress) {
			out = append(out, c.slice(s, c.id, true, content))
		}
		return out
	}
	for _, content := range VirtualSlices(s.service.Spec.ClusterIPs, s.service, s.localSlices) {
		out = append(out, c.slice(s, c.id, false, content))
	}
	return out
}

// remoteSlices mirrors what another cluster has published.
func (c sourceCluster) remoteSlices(s importState, x v1alpha1.ServiceContribution) []*discoveryv1.EndpointSlice {
	if slices.Contains(s.stale, x.Spec.Cluster) {
		return nil
	}
	var out []*discoveryv1.EndpointSlice
	for _, h := range s.hubSlices {
		if h.Labels[mcs.LabelSourceCluster] != x.Spec.Cluster {
			continue
		}
		content := BackendSlice{Source: h.Name, Type: h.AddressType, Ports: h.Ports, Endpoints: h.Endpoints}
		if ranges, known := s.ranges[x.Spec.Cluster]; known && len(ranges.foreign(h.Endpoints)) > 0 {
			content.Endpoints = slices.DeleteFunc(slices.Clone(h.Endpoints), func(e discoveryv1.Endpoint) bool {
				return len(ranges.foreign([]discoveryv1.Endpoint{e})) > 0
			})
		}
		refused, is := s.refused[x.Spec.Cluster]
		if is && !refused.addressed {
			content.Endpoints = []discoveryv1.Endpoint{}
		}
		headless := x.Spec.Type == v1alpha1.ContributionHeadless
		if n, err := strconv.ParseUint(h.Annotations[v1alpha1.AnnotationReadyBackends], 10, 31); err == nil && !headless {
			content.ReadyBackends = strconv.FormatUint(n, 10)
		}
		slice := c.slice(s, x.Spec.Cluster, headless, content)
		if is {
			slice = unreadySlice(slice)
		}
		out = append(out, judgedSlice(slice, slices.Contains(s.dead, x.Spec.Cluster)))
	}
	return out
}

func (c sourceCluster) slice(s importState, source string, headless bool, content BackendSlice) *discoveryv1.EndpointSlice {
	hash := NameHash(s.namespace, s.name, source, string(content.Type), content.Source)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: s.name + "-" + source + "-" + hash,
			Labels: identity(s.namespace, s.name, source),
		},
		AddressType: content.Type, Ports: content.Ports, Endpoints: content.Endpoints,
	}
	slice.Labels[submarinerv1.LabelIsHeadless] = "false"
	if headless {
		slice.Labels[submarinerv1.LabelIsHeadless] = "true"
	}
	slice.Labels[discoveryv1.LabelManagedBy] = submarinerv1.ImportedSliceManager
	slice.Labels[v1alpha1.LabelProxyName] = v1alpha1.ProxyName
	content.annotate(slice)
	c.owner.Mark(slice)
	return slice
}

// identity is the labels that report which service of which cluster an object speaks of.
func identity(namespace, name, source string) map[string]string {
	return map[string]string{mcs.LabelServiceName: name, submarinerv1.LabelSourceNamespace: namespace, mcs.LabelSourceCluster: source}
}

func importPorts(ports []v1alpha1.ContributionPort) []mcs.ServicePort {
	out := make([]mcs.ServicePort, 0, len(ports)) // the field is required, also if empty
	for _, p := range ports {
		out = append(out, mcs.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
	}
	return out
}
