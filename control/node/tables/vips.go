package tables

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
)

// Import is what the tables need of a ServiceImport with a ClusterSetIP.
type Import struct {
	IP netip.Addr `json:"ip"`
	// Ports are those of the merged service: where clusters disagree on the number of a port, the
	// oldest export's.
	Ports []ImportPort `json:"ports,omitempty"`
	// Affinity is the time in seconds for which a client keeps its cluster; 0: none.
	Affinity uint32 `json:"affinity,omitempty"`
	// Local: only pods on the client's node are backends (internalTrafficPolicy).
	Local bool `json:"local,omitempty"`
	topology.Balancing
	// Problems are annotations without effect, as messages for an operator.
	Problems []string `json:"problems,omitempty"`
}

// ImportPort is a port of a ServiceImport.
type ImportPort struct {
	Name     string `json:"name,omitempty"`
	Port     uint16 `json:"port"`
	Protocol uint8  `json:"protocol"` // IANA number
}

// defaultAffinity is the timeout of sessionAffinity ClientIP in seconds
// (v1.DefaultClientIPServiceAffinitySeconds).
const defaultAffinity = 10800

// sessionAffinity is the time in seconds for which a client keeps its cluster or backend; 0: none.
func sessionAffinity(affinity corev1.ServiceAffinity, config *corev1.SessionAffinityConfig) uint32 {
	switch {
	case affinity != corev1.ServiceAffinityClientIP:
		return 0
	case config == nil || config.ClientIP == nil:
		return defaultAffinity
	}
	return uint32(max(1, ptr.Deref(config.ClientIP.TimeoutSeconds, defaultAffinity)))
}

// NewImport reads a ServiceImport. ok: it has a ClusterSetIP.
func NewImport(from *mcs.ServiceImport) (i Import, ok bool) {
	if from.Spec.Type != mcs.ClusterSetIP {
		return i, false
	}
	for _, text := range from.Spec.IPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
			i.IP = a
			break
		}
	}
	for _, p := range from.Spec.Ports {
		if proto, carried := protocolNumber(p.Protocol); carried && p.Port > 0 && p.Port <= 65535 {
			i.Ports = append(i.Ports, ImportPort{p.Name, uint16(p.Port), proto})
		}
	}
	i.Affinity = sessionAffinity(from.Spec.SessionAffinity, from.Spec.SessionAffinityConfig)
	i.Local = ptr.Deref(from.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal
	var problems []string
	i.Balancing, problems = topology.ReadBalancing(from.Annotations)
	for _, p := range problems {
		i.Problems = append(i.Problems, fmt.Sprintf("ServiceImport %s/%s: %s", from.Namespace, from.Name, p))
	}
	return i, i.IP.IsValid()
}

// server is a candidate and its address.
type server struct {
	dataplane.VIPTarget
	topology.Candidate
}

// vips fills the tables of ClusterSetIPs.
func (b *builder) vips() {
	s := &b.out.State
	s.VIPRange = b.objs.Config.ClusterSetIPRange
	if len(b.objs.Imports) > 0 {
		s.VIPs, s.Hairpins = map[dataplane.ServiceKey]dataplane.VIP{}, map[netip.Addr]netip.Addr{}
	}
	b.host.Slices.beginVIPs(b)
	owners := map[netip.Addr]types.NamespacedName{}
	var served []*importVIPs
	for _, name := range slices.SortedFunc(maps.Keys(b.objs.Imports), byName) {
		i := b.objs.Imports[name]
		b.out.Problems = append(b.out.Problems, i.Problems...)
		if !s.VIPRange.IsValid() || !s.VIPRange.Contains(i.IP) {
			b.problem("ServiceImport %s: ClusterSetIP %s is not in the clusterset's range %s, so it is not routed", name, i.IP, s.VIPRange)
			continue
		}
		if other, taken := owners[i.IP]; taken {
			b.problem("ServiceImport %s: ClusterSetIP %s is that of %s already, so it leads there only", name, i.IP, other)
			continue
		}
		owners[i.IP] = name
		v := b.host.Slices.vipsOf(b, name, i)
		maps.Copy(s.VIPs, v.ports)
		maps.Copy(s.Hairpins, v.hairpins)
		b.out.Problems = append(b.out.Problems, v.problems...)
		served = append(served, v)
	}
	limit := podLimit(served)
	for _, v := range served {
		for port, pods := range v.serve(limit) {
			s.ServeVIP(port, pods)
		}
	}
}

// importVIPs is what the tables have of one ServiceImport.
type importVIPs struct {
	ports map[dataplane.ServiceKey]dataplane.VIP
	// pods of this cluster serve a port: those that this node prefers come first (preferred).
	pods     map[dataplane.ServiceKey]dataplane.Service
	hairpins map[netip.Addr]netip.Addr
	problems []string

	limit  int // of served
	served map[dataplane.ServiceKey]dataplane.Service
}

// maxVIPPods bounds the pods of this cluster among which a node divides connections to a port of a
// ClusterSetIP; allVIPPods those for all ports, and leaves room for the services that the node
// serves in the map `backends`.
const (
	maxVIPPods = 256
	allVIPPods = 49152
)

// podLimit is the number of pods that a node uses for one port of a ClusterSetIP: as many as fit
// for all ports, by powers of two, so that it rarely changes.
func podLimit(of []*importVIPs) int {
	for limit := maxVIPPods; ; limit /= 2 {
		all := 0
		for _, v := range of {
			for _, s := range v.pods {
				all += min(limit, len(s.Backends))
			}
		}
		if all <= allVIPPods || limit == 1 {
			return limit
		}
	}
}

// serve returns the pods that serve each port, at most limit of them, sorted.
func (v *importVIPs) serve(limit int) map[dataplane.ServiceKey]dataplane.Service {
	if v.limit == limit {
		return v.served
	}
	v.limit, v.served = limit, make(map[dataplane.ServiceKey]dataplane.Service, len(v.pods))
	for port, s := range v.pods {
		s.Backends = slices.SortedFunc(slices.Values(s.Backends[:min(limit, len(s.Backends))]), netip.AddrPort.Compare)
		v.served[port] = s
	}
	return v.served
}

// vipsOf returns what the tables have of an import.
func (b *builder) vipsOf(name types.NamespacedName, i Import) *importVIPs {
	v := &importVIPs{ports: map[dataplane.ServiceKey]dataplane.VIP{}, pods: map[dataplane.ServiceKey]dataplane.Service{}, hairpins: map[netip.Addr]netip.Addr{}}
	before := b.out.Problems
	b.out.Problems = nil
	for key, servers := range b.servers(name, i, v) {
		v.ports[key] = b.vip(name, i, servers)
	}
	v.problems, b.out.Problems = b.out.Problems, before
	return v
}

// vipInputs are what all importVIPs depend on, besides the import's own slices. Lists and maps of
// objects are replaced when one changes: it is the same one if its first element, or the map, is.
type vipInputs struct {
	node    string
	config  config.Config
	imports map[types.NamespacedName]Import
	ingress *submarinerv1.GlobalIngressIP
	// Of the peers, which the caller may have copied.
	clusters map[string]uint16
	prefixes map[string][]netip.Prefix
	routes   map[netip.Prefix]uint16
}

func (i vipInputs) same(o vipInputs) bool {
	return i.node == o.node && i.ingress == o.ingress && reflect.ValueOf(i.imports).Pointer() == reflect.ValueOf(o.imports).Pointer() &&
		maps.Equal(i.clusters, o.clusters) && maps.EqualFunc(i.prefixes, o.prefixes, slices.Equal[[]netip.Prefix]) &&
		maps.Equal(i.routes, o.routes) && reflect.DeepEqual(i.config, o.config)
}

// cachedVIPs are importVIPs, and what they were collected from.
type cachedVIPs struct {
	*importVIPs
	service       *corev1.Service
	own, imported []sliceVersion
}

// beginVIPs drops all importVIPs if something has changed that any may depend on.
func (c *SliceCache) beginVIPs(b *builder) {
	if c == nil {
		return
	}
	now := vipInputs{
		node: b.objs.Name, config: b.objs.Config, imports: b.objs.Imports, clusters: b.clusters, prefixes: b.prefixes, routes: b.out.State.Routes,
	}
	if len(b.objs.IngressIPs) > 0 {
		now.ingress = &b.objs.IngressIPs[0]
	}
	c.vips.Begin()
	if !now.same(c.vipInputs) {
		c.vips.Begin()
	}
	c.vipInputs = now
}

// vipsOf returns b.vipsOf(name, i), whose maps and slices must not be changed.
func (c *SliceCache) vipsOf(b *builder, name types.NamespacedName, i Import) *importVIPs {
	if c == nil {
		return b.vipsOf(name, i)
	}
	service, own, imported := b.objs.Services[name], b.objs.Slices[name], b.objs.Imported[name]
	if old, ok := c.vips.Former(name); ok && old.service == service && sameVersions(old.own, own) && sameVersions(old.imported, imported) {
		c.vips.Put(name, old)
		return old.importVIPs
	}
	fresh := &cachedVIPs{importVIPs: b.vipsOf(name, i), service: service}
	var ok1, ok2 bool
	fresh.own, ok1 = versionsOf(own)
	if fresh.imported, ok2 = versionsOf(imported); ok1 && ok2 {
		c.vips.Put(name, fresh)
	}
	return fresh.importVIPs
}

// servers returns, for each port of the import, the clusters that have backends of it, sorted by
// index. It adds to `to` what serves it in this cluster: pods, and the global IP of the service.
func (b *builder) servers(name types.NamespacedName, of Import, to *importVIPs) map[dataplane.ServiceKey][]server {
	out := map[dataplane.ServiceKey][]server{}
	for _, p := range of.Ports {
		// one without backends is a port all the same
		out[dataplane.ServiceKey{Address: of.IP, Port: p.Port, Protocol: p.Protocol}] = nil
	}
	// for the own cluster: its own Service decides as well, whatever the clusters have agreed on
	local := of.Local
	if s := b.objs.Services[name]; s != nil && ptr.Deref(s.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal {
		local = true
	}
	for i := range b.objs.Imported[name] {
		slice := &b.objs.Imported[name][i]
		v, ok := b.serverOf(name, slice)
		if !ok {
			continue
		}
		for _, p := range slice.Ports {
			proto, carried := protocolNumber(ptr.Deref(p.Protocol, corev1.ProtocolTCP))
			if p.Port == nil || !carried {
				continue
			}
			key := dataplane.ServiceKey{Address: of.IP, Port: uint16(*p.Port), Protocol: proto}
			switch _, ok := out[key]; {
			case !ok && len(of.Ports) > 0:
				continue // the merged service has no such port
			case !ok:
				out[key] = nil // saved by a version that did not store ports
			}
			if v.Own {
				pods := b.backends(name, ptr.Deref(p.Name, ""), local)
				v.Ready = len(pods)
				to.pods[key] = dataplane.Service{Affinity: of.Affinity, Backends: b.preferred(key, pods)}
				if global, ok := b.globalIP(name); ok && !local {
					to.hairpins[v.Address] = global
				}
			}
			if v.Ready > 0 && (v.Own || !of.Local) {
				out[key] = append(out[key], v)
			}
		}
	}
	for _, servers := range out {
		slices.SortFunc(servers, func(a, b server) int {
			return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), a.Address.Compare(b.Address))
		})
	}
	return out
}

// globalIP returns the global IP at which other clusters reach a service of this one. It is in the
// tables of all ready gateways.
func (b *builder) globalIP(service types.NamespacedName) (netip.Addr, bool) {
	if b.globals == nil {
		b.globals = b.globalIPs()
	}
	ip, ok := b.globals[service]
	return ip, ok
}

// globalIPs are those of all services.
func (b *builder) globalIPs() map[types.NamespacedName]netip.Addr {
	out := map[types.NamespacedName]netip.Addr{}
	if !b.objs.Config.Globalnet() {
		return out
	}
	for i := range b.objs.IngressIPs {
		g := &b.objs.IngressIPs[i]
		if g.Spec.Target != submarinerv1.ClusterIPService || g.Spec.ServiceRef == nil || !meta.IsStatusConditionTrue(g.Status.Conditions, submarinerv1.ConditionAllocated) {
			continue
		}
		name := named(g.Namespace, g.Spec.ServiceRef.Name)
		if _, known := out[name]; known {
			continue
		}
		if ip, err := netip.ParseAddr(g.Status.AllocatedIP); err == nil && ip.Is4() {
			out[name] = ip
		}
	}
	return out
}

// serverOf reads the EndpointSlice of one cluster. A remote address counts only where the routes
// lead to that cluster.
func (b *builder) serverOf(name types.NamespacedName, slice *discoveryv1.EndpointSlice) (server, bool) {
	v := server{Candidate: topology.Candidate{ID: slice.Labels[mcs.LabelSourceCluster], Ready: 1}}
	if len(slice.Endpoints) == 0 || !ptr.Deref(slice.Endpoints[0].Conditions.Ready, true) {
		return v, false
	}
	var ok bool
	if v.Address, ok = endpointAddress(*slice, slice.Endpoints[0]); !ok {
		return v, false
	}
	if text, ok := slice.Annotations[pelagov1alpha1.AnnotationReadyBackends]; ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			b.problem("EndpointSlice %s/%s: annotation %s is %q, no number of backends", slice.Namespace, slice.Name, pelagov1alpha1.AnnotationReadyBackends, text)
			n = 1
		}
		v.Ready = n
	}
	if v.ID == b.objs.Config.ClusterID {
		v.Own, v.Cluster = true, b.objs.Config.ClusterIndex
		return v, true
	}
	for _, p := range b.prefixes[v.ID] {
		if cluster := b.clusters[v.ID]; p.Contains(v.Address) && b.out.State.Routes[p] == cluster {
			v.Cluster = cluster
			return v, true
		}
	}
	b.problem("ServiceImport %s: address %s of cluster %s is in none of its ranges, so its backends are not used", name, v.Address, v.ID)
	return v, false
}

// vip weights the clusters that serve a port.
func (b *builder) vip(name types.NamespacedName, i Import, servers []server) dataplane.VIP {
	if len(servers) > dataplane.MaxTargets {
		b.problem("ServiceImport %s: %d clusters serve it, only %d of them are used", name, len(servers), dataplane.MaxTargets)
		servers = servers[:dataplane.MaxTargets]
	}
	out := dataplane.VIP{Affinity: i.Affinity}
	candidates := make([]topology.Candidate, len(servers))
	for n, v := range servers {
		candidates[n], out.Targets = v.Candidate, append(out.Targets, v.VIPTarget)
	}
	weights, _ := i.Weigh(candidates)
	out.Slots = b.host.Maglev.VIPTable(out.Targets, weights)
	return out
}

// backends returns the backends of a service port in this cluster, local: on this node.
func (b *builder) backends(name types.NamespacedName, portName string, local bool) (out []netip.AddrPort) {
	for e := range b.host.Slices.backendEndpoints(b.objs.Slices[name], portName) {
		if !local || e.node == b.objs.Name {
			out = append(out, e.address)
		}
	}
	return out
}

// preferred returns those of pods that may serve a port of a ClusterSetIP at this node, by their
// weights in rendezvous hashing: each node prefers others, and a change of one pod changes at most
// one of the first.
func (b *builder) preferred(port dataplane.ServiceKey, pods []netip.AddrPort) []netip.AddrPort {
	type weighted struct {
		pod    netip.AddrPort
		weight uint32
	}
	out := make([]weighted, 0, len(pods))
	for _, p := range pods {
		if port.Protocol != sctp || p.Port() == port.Port { // its ports are not translated
			out = append(out, weighted{p, dataplane.Mix(binary.BigEndian.Uint32(p.Addr().AsSlice()), uint32(b.self))})
		}
	}
	slices.SortFunc(out, func(a, b weighted) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), a.pod.Compare(b.pod))
	})
	out = slices.CompactFunc(out, func(a, b weighted) bool { return a.pod.Addr() == b.pod.Addr() })
	preferred := make([]netip.AddrPort, min(maxVIPPods, len(out)))
	for i := range preferred {
		preferred[i] = out[i].pod
	}
	return preferred
}
