package tables_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

var (
	webName   = types.NamespacedName{Namespace: "sample", Name: "web"}
	webGlobal = dataplane.ServiceKey{Address: ip("120.1.0.9"), Port: 80, Protocol: 6}
	host      = dataplane.Source{External: true, Ifindex: 4}
)

// selectorless gives sample/web, exported with globalnet, endpoints without a node in place of its
// pods.
func selectorless(from string, addresses ...string) (tables.Objects, tables.Host) {
	objs, h := clusterset.Globalnet(from)
	clusterset.Export(&objs, metav1.ConditionFalse)
	endpoints := []discoveryv1.Endpoint{}
	for _, a := range addresses {
		endpoints = append(endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	objs.Slices[webName][0].Endpoints = endpoints
	h.External = map[netip.Addr]uint32{ip("192.0.2.7"): 4, ip("120.2.0.7"): 4, ip("192.0.2.1"): 4}
	return objs, h
}

// The gateway serves endpoints outside the cluster itself, whichever it is; other nodes serve none.
func TestEndpointsBesideTheCluster(t *testing.T) {
	objs, h := selectorless("n1", "192.0.2.7")
	r := tables.Desired(objs, h)
	service := r.State.Services[webGlobal]
	if diff := cmp.Diff([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.7:8080")}, service.Backends, clusterset.Comparable); diff != "" {
		t.Errorf("backends -want +got\n%s", diff)
	}
	if len(service.Table) == 0 || slices.ContainsFunc(service.Table, func(n uint16) bool { return n != 1 }) {
		t.Errorf("the table names %v, want this gateway alone", slices.Compact(service.Table))
	}
	if got := r.State.Sources[ip("192.0.2.7")]; got != host {
		t.Errorf("replies are accepted as %+v, want %+v", got, host)
	}
	beside, _ := r.State.Masqueraded()
	if diff := cmp.Diff([]netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}, beside, clusterset.Comparable); diff != "" {
		t.Errorf("masqueraded -want +got\n%s", diff)
	}
	if len(r.Problems) > 0 || !slices.Contains(r.Acks, "ingress-web") {
		t.Errorf("problems %v, acks %v; want the address acknowledged", r.Problems, r.Acks)
	}

	objs, h = selectorless("n2", "192.0.2.7")
	r = tables.Desired(objs, h)
	if s := r.State; len(s.Services[webGlobal].Backends) > 0 || s.Sources[ip("192.0.2.7")].External || len(r.Problems) > 0 {
		t.Errorf("a node that is no gateway serves %v, problems %v", s.Services[webGlobal].Backends, r.Problems)
	}
}

// Endpoints without a node that some node serves all the same, and those that none can serve.
func TestEndpointsWithoutANode(t *testing.T) {
	for _, tt := range []struct {
		name, address, problem string
		node                   uint16 // that serves it
	}{
		{"a node's own address", "172.31.1.12", "", 2},
		{"without a route", "198.51.100.9", "node n1 has no route to endpoint 198.51.100.9", 0},
		{"in another cluster", "120.2.0.7", "endpoint 120.2.0.7 without a node is in 120.2.0.0/24, which is routed to another cluster", 0},
		{"IPv6", "2001:db8::7", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tables.Desired(selectorless("n1", tt.address))
			if got := slices.Compact(r.State.Services[webGlobal].Table); tt.node == 0 && len(got) > 0 || tt.node != 0 && !slices.Equal(got, []uint16{tt.node}) {
				t.Errorf("the table names %v, want %d", got, tt.node)
			}
			if problems := strings.Join(r.Problems, "\n"); (tt.problem == "") != (problems == "") || !strings.Contains(problems, tt.problem) {
				t.Errorf("problems %q, want %q", problems, tt.problem)
			}
		})
	}
}

// More endpoints than the table of local addresses holds: those beyond are named, the others are
// served.
func TestTooManyEndpoints(t *testing.T) {
	objs, h := selectorless("n1")
	all := netip.MustParseAddr("198.51.0.1")
	for range dataplane.MaxSources {
		objs.Slices[webName][0].Endpoints = append(objs.Slices[webName][0].Endpoints, discoveryv1.Endpoint{Addresses: []string{all.String()}})
		h.External[all] = 4
		all = all.Next()
	}
	r := tables.Desired(objs, h)
	if n := len(r.State.Sources); n != dataplane.MaxSources || len(r.Problems) == 0 || !strings.Contains(r.Problems[0], "use fewer endpoints") {
		t.Errorf("%d local addresses, problems %.200q; want %d and the rest named", n, r.Problems, dataplane.MaxSources)
	}
}

// An endpoint of a headless service without selector: gateways lead its global IP there and
// acknowledge it.
func TestHeadlessEndpoints(t *testing.T) {
	for _, tt := range []struct {
		from, address string
		want          dataplane.Global
		acked         bool
	}{
		{"n1", "192.0.2.7", dataplane.Global{Kind: dataplane.GlobalExternal, Pod: ip("192.0.2.7")}, true},
		// no gateway, no acknowledgement
		{"n2", "192.0.2.7", dataplane.Global{Kind: dataplane.GlobalExternal}, false},
		{"n1", "172.31.1.12", dataplane.Global{Kind: dataplane.GlobalPod, Node: 2}, true},
		{"n1", "198.51.100.9", dataplane.Global{}, false}, // no route: not announced
	} {
		objs, h := selectorless(tt.from, tt.address)
		objs.IngressIPs = []submarinerv1.GlobalIngressIP{{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "sample", Name: "ep-web-" + tt.address, UID: "ep", Annotations: map[string]string{submarinerv1.AnnotationEndpointIP: tt.address},
			},
			Spec:   submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.HeadlessServiceEndpoints, ServiceRef: &corev1.LocalObjectReference{Name: "web"}},
			Status: submarinerv1.GlobalIngressIPStatus{AllocatedIP: "120.1.0.10"},
		}}
		objs.ExportTo = map[types.NamespacedName]string{webName: "g2"}
		tt.want.Restricted = tt.want != dataplane.Global{}
		r := tables.Desired(objs, h)
		if got := r.State.Globals[ip("120.1.0.10")]; got != tt.want {
			t.Errorf("at %s the global IP of %s leads to %+v, want %+v", tt.from, tt.address, got, tt.want)
		}
		if acked := slices.Contains(r.Acks, "ep"); acked != tt.acked {
			t.Errorf("at %s the address of %s is acknowledged: %t, want %t", tt.from, tt.address, acked, tt.acked)
		}
	}
}

func TestHostsBesideTheCluster(t *testing.T) {
	hosts, services := netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.77.0.0/16")
	objs, h := selectorless("n1")
	objs.Config.ExternalCIDRs = []netip.Prefix{hosts}
	r := tables.Desired(objs, h)
	want := map[netip.Prefix]dataplane.Source{hosts: {Egress: ip("120.1.0.1"), External: true, Ifindex: 4}}
	if diff := cmp.Diff(want, r.State.Externals, clusterset.Comparable); diff != "" || len(r.Problems) > 0 {
		t.Errorf("with globalnet: problems %v, -want +got\n%s", r.Problems, diff)
	}
	delete(h.External, ip("192.0.2.1"))
	if r := tables.Desired(objs, h); len(r.State.Externals) > 0 || !strings.Contains(strings.Join(r.Problems, "\n"), "no route to 192.0.2.0/24 (join --external-cidr)") {
		t.Errorf("without a route: %v, problems %v", r.State.Externals, r.Problems)
	}

	objs, h = clusterset.Flat("n1")
	h.External = map[netip.Addr]uint32{ip("192.0.2.1"): 4}
	objs.Config.ExternalCIDRs, objs.Config.ServiceCIDRs = []netip.Prefix{hosts}, []netip.Prefix{services}
	want = map[netip.Prefix]dataplane.Source{hosts: {Egress: ip("241.0.64.1"), External: true, Routed: true, Ifindex: 4}}
	r = tables.Desired(objs, h)
	if diff := cmp.Diff(want, r.State.Externals, clusterset.Comparable); diff != "" {
		t.Errorf("without globalnet: -want +got\n%s", diff)
	}
	if n := len(r.State.Egresses[ip("241.0.64.1")]); n != dataplane.MaxBlocks {
		t.Errorf("hosts share %d blocks of the fabric address, want %d", n, dataplane.MaxBlocks)
	}
	objs.Config.RouteServiceCIDR = true
	want[services] = dataplane.Source{Routed: true}
	s := tables.Desired(objs, h).State
	if diff := cmp.Diff(want, s.Externals, clusterset.Comparable); diff != "" {
		t.Errorf("with ClusterIPs: -want +got\n%s", diff)
	}
	if beside, clusterIPs := s.Masqueraded(); !slices.Equal(beside, []netip.Prefix{hosts}) || !slices.Equal(clusterIPs, []netip.Prefix{services}) {
		t.Errorf("masqueraded %v and %v, want %v and %v", beside, clusterIPs, hosts, services)
	}
	objs.Name = "n2"
	if s := tables.Desired(objs, h).State; len(s.Externals) > 0 {
		t.Errorf("a node that is no gateway has %v", s.Externals)
	}
}
