package clusterdns

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dns"
)

// TableConfig is what does not come from watched objects.
type TableConfig struct {
	// LocalCluster is the id of the cluster whose clients are served.
	LocalCluster string
	Mode         dns.Mode
	// Zones are the served domains; see Zones.
	Zones []string
	// TTL of the answers; 0: dns.DefaultTTL.
	TTL time.Duration
}

// DefaultZone is served in addition to the custom domains.
const DefaultZone = "clusterset.local"

// Zones are the domains that pelago-dns serves, and that the cluster's DNS forwards to it:
// clusterset.local, the custom ones, and the reverse zones of addresses that are unique in the
// clusterset.
func Zones(c config.Config) []string {
	zones := append([]string{DefaultZone}, c.CustomDomains...)
	for _, p := range c.NamedRanges() {
		zones = append(zones, dns.ReverseZones(p)...)
	}
	return zones
}

// DesiredTable is the table for a cluster's imports and imported EndpointSlices.
//
// A slice belongs to the service that its label service-name names in its own
// namespace, and to the cluster of its label source-cluster. For a ClusterSetIP
// service each slice's endpoints are that cluster's addresses for the service,
// for a headless one its pods. Slices without an import are not served, nor are
// imports that describe a single cluster's share (label source-cluster).
//
// Invalid objects are left out, and the error names each of them; the table is
// usable all the same.
func DesiredTable(imports []mcs.ServiceImport, endpointSlices []discoveryv1.EndpointSlice, c TableConfig) (dns.Table, error) {
	t := dns.Table{Mode: c.Mode, LocalCluster: c.LocalCluster, Zones: c.Zones, TTL: c.TTL}
	var problems []error
	of := map[types.NamespacedName][]*discoveryv1.EndpointSlice{}
	for i := range endpointSlices {
		s := &endpointSlices[i]
		if err := usable(s); err != nil {
			problems = append(problems, fmt.Errorf("ignore EndpointSlice %s/%s: %w", s.Namespace, s.Name, err))
			continue
		}
		service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[mcs.LabelServiceName]}
		of[service] = append(of[service], s)
	}
	for i := range imports {
		s := &imports[i]
		if s.Labels[mcs.LabelSourceCluster] != "" {
			// one cluster's share, kept for people to inspect; the service itself is the merged
			// import
			continue
		}
		service, err := desiredService(s, of[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}])
		if err != nil {
			problems = append(problems, fmt.Errorf("ServiceImport %s/%s: %w", s.Namespace, s.Name, err))
		}
		t.Services = append(t.Services, service)
	}
	slices.SortFunc(t.Services, func(a, b dns.Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	// Lists come in any order; the same problems must read the same.
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return t, errors.Join(problems...)
}

// notReady clears the readiness of every contribution of a dead cluster. The own cluster is never
// dead.
func notReady(t *dns.Table, dead []string) {
	for i := range t.Services {
		for j := range t.Services[i].Clusters {
			c := &t.Services[i].Clusters[j]
			if c.ID == t.LocalCluster || !slices.Contains(dead, c.ID) {
				continue
			}
			for k := range c.Endpoints {
				c.Endpoints[k].Ready = false
			}
		}
	}
}

// balancing is how a service without ClusterSetIP is divided among clusters. Weights that users set
// are for ClusterSetIPs only. any: not as by default.
func balancing(from *mcs.ServiceImport) (b topology.Balancing, any bool) {
	b, _ = topology.ReadBalancing(from.Annotations) // the agent reports problems
	b = b.Rounded()
	b.Weights = nil
	any = from.Spec.Type == mcs.ClusterSetIP && len(from.Spec.IPs) == 0 && (b.MinLocal > 0 || len(b.Nearest) > 0)
	return b, any
}

// divide sets the weights of clusters by their ready backends, which DesiredTable has set: once it
// is known which clusters are ready.
func divide(t *dns.Table, imports []mcs.ServiceImport) {
	set := map[types.NamespacedName]topology.Balancing{}
	for i := range imports {
		if b, any := balancing(&imports[i]); any {
			set[types.NamespacedName{Namespace: imports[i].Namespace, Name: imports[i].Name}] = b
		}
	}
	for i := range t.Services {
		s := &t.Services[i]
		if !s.Weighted {
			continue
		}
		var candidates []topology.Candidate
		var of []int
		for j, c := range s.Clusters {
			if slices.ContainsFunc(c.Endpoints, func(e dns.Endpoint) bool { return e.Ready }) {
				candidates = append(candidates, topology.Candidate{ID: c.ID, Ready: max(1, c.Weight), Own: c.ID == t.LocalCluster})
				of = append(of, j)
			}
			s.Clusters[j].Weight = 0
		}
		weights, _ := set[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}].Weigh(candidates)
		for n, j := range of {
			s.Clusters[j].Weight = weights[n]
		}
	}
}

// usable returns why a slice cannot be attributed, or nil.
func usable(s *discoveryv1.EndpointSlice) error {
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		return errors.New("its address type is FQDN; only IPv4 and IPv6 can be answered")
	}
	id := s.Labels[mcs.LabelSourceCluster]
	if wrong := validation.IsDNS1123Label(id); wrong != nil {
		return fmt.Errorf("label %s is %q, not a cluster id: %s", mcs.LabelSourceCluster, id, wrong[0])
	}
	return nil
}

func desiredService(from *mcs.ServiceImport, of []*discoveryv1.EndpointSlice) (dns.Service, error) {
	s := dns.Service{Namespace: from.Namespace, Name: from.Name, Type: dns.ClusterSetIP, ClientIP: from.Spec.SessionAffinity == corev1.ServiceAffinityClientIP}
	if from.Spec.Type == mcs.Headless {
		s.Type = dns.Headless
	}
	_, s.Weighted = balancing(from)
	var problems []error
	for _, text := range from.Spec.IPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			problems = append(problems, fmt.Errorf("ignore clusterset IP: %w", err))
			continue
		}
		s.IPs = append(s.IPs, ip.Unmap())
	}
	for _, p := range from.Spec.Ports {
		if p.Port < 1 || p.Port > 65535 { // the definition's schema has no bounds
			problems = append(problems, fmt.Errorf("ignore port %q: %d is not a port number", p.Name, p.Port))
			continue
		}
		s.Ports = append(s.Ports, dns.Port{Name: p.Name, Protocol: protocol(&p.Protocol), Number: uint16(p.Port)})
	}
	byCluster := map[string][]*discoveryv1.EndpointSlice{}
	for _, slice := range of {
		id := slice.Labels[mcs.LabelSourceCluster]
		byCluster[id] = append(byCluster[id], slice)
	}
	for _, id := range slices.Sorted(maps.Keys(byCluster)) {
		of := map[string][]*discoveryv1.EndpointSlice{"": byCluster[id]}
		if s.Type == dns.Headless {
			of = byPorts(byCluster[id])
		}
		for _, ports := range slices.Sorted(maps.Keys(of)) {
			c, err := cluster(id, s.Type, of[ports])
			if err != nil {
				problems = append(problems, err)
			}
			if s.Weighted {
				c.Weight = readyBackends(of[ports])
			}
			s.Clusters = append(s.Clusters, c)
		}
	}
	return s, errors.Join(problems...)
}

// readyBackends is the number that a cluster's slices of a service have, or 0.
func readyBackends(of []*discoveryv1.EndpointSlice) (n int) {
	for _, slice := range of {
		if of, err := strconv.Atoi(slice.Annotations[v1alpha1.AnnotationReadyBackends]); err == nil {
			n = max(n, of)
		}
	}
	return n
}

// byPorts groups slices by their ports: an endpoint has only the ports of its own slice, for
// example where pods define a named target port differently.
func byPorts(of []*discoveryv1.EndpointSlice) map[string][]*discoveryv1.EndpointSlice {
	out := map[string][]*discoveryv1.EndpointSlice{}
	for _, slice := range of {
		key := fmt.Sprint(portsOf(slice))
		out[key] = append(out[key], slice)
	}
	return out
}

// portsOf are the ports with a number, sorted.
func portsOf(of ...*discoveryv1.EndpointSlice) (out []dns.Port) {
	for _, slice := range of {
		for _, p := range slice.Ports {
			if p.Port != nil {
				out = append(out, dns.Port{Name: deref(p.Name), Protocol: protocol(p.Protocol), Number: uint16(*p.Port)})
			}
		}
	}
	slices.SortFunc(out, func(a, b dns.Port) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
	})
	return slices.Compact(out)
}

// cluster merges one cluster's slices of a service. An endpoint listed in
// two of them, as happens while slices are rewritten, counts once and is ready
// if it is ready in either.
func cluster(id string, kind dns.ServiceType, of []*discoveryv1.EndpointSlice) (dns.Cluster, error) {
	type key struct {
		hostname string
		ip       netip.Addr
	}
	c := dns.Cluster{ID: id, Ports: portsOf(of...)}
	ready := map[key]bool{}
	var problems []error
	for _, slice := range of {
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			// The addresses of one endpoint are interchangeable, and consumers
			// shall use the first (discovery.k8s.io/v1 Endpoint).
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				problems = append(problems, fmt.Errorf("ignore endpoint of EndpointSlice %s/%s: %w", slice.Namespace, slice.Name, err))
				continue
			}
			k := key{ip: ip.Unmap()}
			if kind == dns.Headless {
				k.hostname = deref(e.Hostname)
			}
			// A missing condition means ready (discovery.k8s.io/v1).
			ready[k] = ready[k] || e.Conditions.Ready == nil || *e.Conditions.Ready
		}
	}
	for k, r := range ready {
		c.Endpoints = append(c.Endpoints, dns.Endpoint{Hostname: k.hostname, IP: k.ip, Ready: r})
	}
	slices.SortFunc(c.Endpoints, func(a, b dns.Endpoint) int {
		return cmp.Or(strings.Compare(a.Hostname, b.Hostname), a.IP.Compare(b.IP))
	})
	return c, errors.Join(problems...)
}

// protocol is a port's transport as names spell it; missing means TCP.
func protocol(p *corev1.Protocol) string {
	if p == nil || *p == "" {
		return "tcp"
	}
	return strings.ToLower(string(*p))
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
