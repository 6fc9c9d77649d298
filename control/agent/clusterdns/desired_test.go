package clusterdns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/dns"
)

var g1 = TableConfig{LocalCluster: "g1", Mode: dns.ModeSubmariner, Zones: []string{"clusterset.local"}}

// Weights follow the ready backends of the clusters that are ready, if annotations say so.
func TestDivide(t *testing.T) {
	slice := func(cluster, address, backends string) discoveryv1.EndpointSlice {
		s := endpointSlice("web-"+cluster, "web", cluster, ready(address))
		s.Annotations = map[string]string{"pelago.io/ready-backends": backends}
		return s
	}
	from := []discoveryv1.EndpointSlice{slice("g1", "10.77.0.9", "1"), slice("g2", "120.2.0.9", "3"), slice("g3", "120.3.0.9", "1")}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		dead        []string
		want        []int // percent
	}{
		{"no annotation", nil, nil, nil},
		{"weights of users are for ClusterSetIPs", map[string]string{"lighthouse-lb-weight.submariner.io/g2": "3"}, nil, nil},
		{"one of two backends", map[string]string{"pelago.io/min-local-backends": "2"}, nil, []int{50, 37, 12}},
		{"one of one", map[string]string{"pelago.io/min-local-backends": "1"}, nil, []int{100, 0, 0}},
		{"a cluster is dead", map[string]string{"pelago.io/min-local-backends": "2"}, []string{"g2"}, []int{50, 0, 50}},
		{"the nearest takes the rest", map[string]string{
			"pelago.io/min-local-backends": "4", "pelago.io/prefer": "nearest", "pelago.io/nearest-clusters": "g3,g2",
		}, nil, []int{25, 0, 75}},
		{"the nearest is dead", map[string]string{
			"pelago.io/min-local-backends": "4", "pelago.io/prefer": "nearest", "pelago.io/nearest-clusters": "g3,g2",
		}, []string{"g3"}, []int{25, 75, 0}},
	} {
		imported := serviceImport("web", mcs.ClusterSetIP)
		imported.Annotations = tt.annotations
		table, err := DesiredTable([]mcs.ServiceImport{imported}, from, g1)
		if err != nil {
			t.Fatal(err)
		}
		notReady(&table, tt.dead)
		divide(&table, []mcs.ServiceImport{imported})
		var got []int
		sum := 0
		for _, c := range table.Services[0].Clusters {
			sum += c.Weight
		}
		for _, c := range table.Services[0].Clusters {
			if table.Services[0].Weighted {
				got = append(got, 100*c.Weight/sum)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func serviceImport(name string, kind mcs.ServiceImportType, ips ...string) mcs.ServiceImport {
	return mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: name},
		Spec: mcs.ServiceImportSpec{
			Type: kind, IPs: ips,
			Ports: []mcs.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

// endpointSlice is an imported slice "name" of a service from a cluster.
func endpointSlice(name, service, cluster string, endpoints ...discoveryv1.Endpoint) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "sample", Name: name,
			Labels: map[string]string{mcs.LabelServiceName: service, mcs.LabelSourceCluster: cluster},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
	}
}

func ready(addresses ...string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}
}

func unready(address string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false)}}
}

func pod(hostname, address string) discoveryv1.Endpoint {
	e := ready(address)
	e.Hostname = &hostname
	return e
}

func TestDesired(t *testing.T) {
	ip := netip.MustParseAddr
	http := []dns.Port{{Name: "http", Protocol: "tcp", Number: 80}}
	for _, c := range []struct {
		about   string
		imports []mcs.ServiceImport
		slices  []discoveryv1.EndpointSlice
		want    []dns.Service
		problem string
	}{
		{
			about:   "each cluster's address for a service, with its state",
			imports: []mcs.ServiceImport{serviceImport("web", mcs.ClusterSetIP)},
			slices: []discoveryv1.EndpointSlice{
				endpointSlice("b", "web", "g2", unready("120.2.0.1")),
				endpointSlice("a", "web", "g1", ready("10.77.0.9")),
			},
			want: []dns.Service{{Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: http, Clusters: []dns.Cluster{
				{ID: "g1", Endpoints: []dns.Endpoint{{IP: ip("10.77.0.9"), Ready: true}}},
				{ID: "g2", Endpoints: []dns.Endpoint{{IP: ip("120.2.0.1")}}},
			}}},
		},
		{
			about: "session affinity",
			imports: func() []mcs.ServiceImport {
				web := serviceImport("web", mcs.ClusterSetIP)
				web.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				return []mcs.ServiceImport{web}
			}(),
			want: []dns.Service{{Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: http, ClientIP: true}},
		},
		{
			about:   "a headless service's pods over several slices, a moved one once",
			imports: []mcs.ServiceImport{serviceImport("db", mcs.Headless)},
			slices: []discoveryv1.EndpointSlice{
				endpointSlice("a", "db", "g2", pod("db-1", "120.2.0.2"), pod("db-0", "120.2.0.1")),
				endpointSlice("b", "db", "g2", pod("db-1", "120.2.0.2"), discoveryv1.Endpoint{Addresses: []string{"120.2.0.3"}}),
			},
			want: []dns.Service{{Namespace: "sample", Name: "db", Type: dns.Headless, Ports: http, Clusters: []dns.Cluster{
				{ID: "g2", Endpoints: []dns.Endpoint{
					{IP: ip("120.2.0.3"), Ready: true},
					{Hostname: "db-0", IP: ip("120.2.0.1"), Ready: true},
					{Hostname: "db-1", IP: ip("120.2.0.2"), Ready: true},
				}},
			}}},
		},
		{
			about:   "pods of a headless service with ports of their own",
			imports: []mcs.ServiceImport{serviceImport("db", mcs.Headless)},
			slices: func() []discoveryv1.EndpointSlice {
				old, young := endpointSlice("a", "db", "g2", pod("db-0", "120.2.0.1")), endpointSlice("b", "db", "g2", pod("db-1", "120.2.0.2"))
				old.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}}
				young.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(9090))}}
				return []discoveryv1.EndpointSlice{young, old}
			}(),
			want: []dns.Service{{Namespace: "sample", Name: "db", Type: dns.Headless, Ports: http, Clusters: []dns.Cluster{
				{ID: "g2", Ports: []dns.Port{{Name: "http", Protocol: "tcp", Number: 8080}}, Endpoints: []dns.Endpoint{{Hostname: "db-0", IP: ip("120.2.0.1"), Ready: true}}},
				{ID: "g2", Ports: []dns.Port{{Name: "http", Protocol: "tcp", Number: 9090}}, Endpoints: []dns.Endpoint{{Hostname: "db-1", IP: ip("120.2.0.2"), Ready: true}}},
			}}},
		},
		{
			about:   "the ports that a cluster really serves",
			imports: []mcs.ServiceImport{serviceImport("db", mcs.Headless)},
			slices: []discoveryv1.EndpointSlice{func() discoveryv1.EndpointSlice {
				s := endpointSlice("a", "db", "g2", pod("db-0", "120.2.0.1"))
				s.Ports = []discoveryv1.EndpointPort{
					{Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(int32(8080))},
					{Name: ptr.To("any")}, // no number: all ports
					{Port: ptr.To(int32(9))},
				}
				return s
			}()},
			want: []dns.Service{{Namespace: "sample", Name: "db", Type: dns.Headless, Ports: http, Clusters: []dns.Cluster{
				{
					ID:        "g2",
					Ports:     []dns.Port{{Protocol: "tcp", Number: 9}, {Name: "http", Protocol: "udp", Number: 8080}},
					Endpoints: []dns.Endpoint{{Hostname: "db-0", IP: ip("120.2.0.1"), Ready: true}},
				},
			}}},
		},
		{
			about:   "clusterset IPs of both families; no cluster has it yet",
			imports: []mcs.ServiceImport{serviceImport("vip", mcs.ClusterSetIP, "243.0.0.1", "fd00::1")},
			want: []dns.Service{{Namespace: "sample", Name: "vip", Type: dns.ClusterSetIP, Ports: http,
				IPs: []netip.Addr{ip("243.0.0.1"), ip("fd00::1")}}},
		},
		{
			about: "services sorted, slices of an unknown service or another namespace unused, first address counts",
			imports: []mcs.ServiceImport{
				serviceImport("web", mcs.ClusterSetIP), serviceImport("api", mcs.ClusterSetIP),
			},
			slices: []discoveryv1.EndpointSlice{
				endpointSlice("a", "gone", "g2", ready("120.2.0.9")),
				func() discoveryv1.EndpointSlice {
					s := endpointSlice("a", "web", "g2", ready("120.2.0.8"))
					s.Namespace = "other"
					return s
				}(),
				endpointSlice("b", "web", "g2", ready("120.2.0.1", "120.2.0.2"), discoveryv1.Endpoint{}),
			},
			want: []dns.Service{
				{Namespace: "sample", Name: "api", Type: dns.ClusterSetIP, Ports: http},
				{Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: http, Clusters: []dns.Cluster{
					{ID: "g2", Endpoints: []dns.Endpoint{{IP: ip("120.2.0.1"), Ready: true}}},
				}},
			},
		},
		{
			about:   "a slice without a source cluster",
			imports: []mcs.ServiceImport{serviceImport("web", mcs.ClusterSetIP)},
			slices:  []discoveryv1.EndpointSlice{endpointSlice("a", "web", "", ready("120.2.0.1"))},
			want:    []dns.Service{{Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: http}},
			problem: `ignore EndpointSlice sample/a: label multicluster.kubernetes.io/source-cluster is "", not a cluster id`,
		},
		{
			about:   "a slice of names",
			imports: []mcs.ServiceImport{serviceImport("web", mcs.ClusterSetIP)},
			slices: []discoveryv1.EndpointSlice{func() discoveryv1.EndpointSlice {
				s := endpointSlice("a", "web", "g2", ready("example.com"))
				s.AddressType = discoveryv1.AddressTypeFQDN
				return s
			}()},
			want:    []dns.Service{{Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: http}},
			problem: "ignore EndpointSlice sample/a: its address type is FQDN",
		},
		{
			about: "addresses and ports that are none",
			imports: []mcs.ServiceImport{func() mcs.ServiceImport {
				s := serviceImport("web", mcs.ClusterSetIP, "243.0.0.300")
				s.Spec.Ports = append(s.Spec.Ports, mcs.ServicePort{Name: "far", Port: 65616})
				return s
			}()},
			slices: []discoveryv1.EndpointSlice{endpointSlice("a", "web", "g2", ready("here"), ready("120.2.0.1"))},
			want: []dns.Service{{Namespace: "sample", Name: "web", Type: dns.ClusterSetIP, Ports: http, Clusters: []dns.Cluster{
				{ID: "g2", Endpoints: []dns.Endpoint{{IP: ip("120.2.0.1"), Ready: true}}},
			}}},
			problem: `ServiceImport sample/web: ignore clusterset IP: ParseAddr("243.0.0.300")`,
		},
	} {
		t.Run(c.about, func(t *testing.T) {
			got, err := DesiredTable(c.imports, c.slices, g1)
			want := dns.Table{Mode: dns.ModeSubmariner, LocalCluster: "g1", Zones: []string{"clusterset.local"}, Services: c.want}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
			if (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("got problem %v, want %q", err, c.problem)
			}
		})
	}
}

func TestCopiesOfOneClustersShareAreNotServed(t *testing.T) {
	copied := serviceImport("web-sample-g2", mcs.ClusterSetIP, "120.2.0.9")
	copied.Labels = map[string]string{mcs.LabelSourceCluster: "g2"}
	table, err := DesiredTable([]mcs.ServiceImport{copied}, nil, g1)
	if err != nil || len(table.Services) > 0 {
		t.Errorf("served: %v, %v; want nothing", table.Services, err)
	}
}

// Of a dead cluster nothing is ready, but it still has its names; the own cluster is never dead.
func TestNotReady(t *testing.T) {
	endpoints := func(ready bool) []dns.Endpoint {
		return []dns.Endpoint{{IP: netip.MustParseAddr("120.2.0.9"), Ready: ready}}
	}
	table := func(far bool) dns.Table {
		return dns.Table{LocalCluster: "g1", Services: []dns.Service{{Namespace: "a", Name: "b", Clusters: []dns.Cluster{
			{ID: "g1", Endpoints: endpoints(true)}, {ID: "g2", Endpoints: endpoints(far)}, {ID: "g3", Endpoints: endpoints(true)},
		}}}}
	}
	got := table(true)
	notReady(&got, []string{"g1", "g2", "g9"})
	if diff := cmp.Diff(table(false), got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
