package tables_test

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

var web = types.NamespacedName{Namespace: "sample", Name: "web"}

// Which clusters serve port 80 of the ClusterSetIP of sample/web, and with what share; g1 is the
// own cluster.
func TestVIPs(t *testing.T) {
	own, remote := dataplane.VIPTarget{Cluster: 1, Address: ip("10.77.0.9")}, dataplane.VIPTarget{Cluster: 2, Address: ip("120.2.0.9")}
	ready := func(n string) func(*tables.Objects) {
		return func(o *tables.Objects) {
			o.Imported[web][1].Annotations = map[string]string{pelagov1alpha1.AnnotationReadyBackends: n}
		}
	}
	noOwn := func(o *tables.Objects) {
		for i := range o.Slices[web][0].Endpoints {
			o.Slices[web][0].Endpoints[i].Conditions.Ready = ptr.To(false)
		}
	}
	weights := func(w map[string]int) func(*tables.Objects) {
		return func(o *tables.Objects) {
			i := o.Imports[web]
			i.Weights = w
			o.Imports[web] = i
		}
	}
	balancing := func(b topology.Balancing) func(*tables.Objects) {
		return func(o *tables.Objects) {
			i := o.Imports[web]
			i.Balancing = b
			o.Imports[web] = i
		}
	}
	local := func(o *tables.Objects) {
		i := o.Imports[web]
		i.Local = true
		o.Imports[web] = i
	}
	ownLocal := func(o *tables.Objects) {
		o.Services[web].Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	oneOwn := func(o *tables.Objects) {
		for i := range o.Slices[web][0].Endpoints {
			o.Slices[web][0].Endpoints[i].Conditions.Ready = ptr.To(i == 0)
		}
	}
	both := []dataplane.VIPTarget{own, remote}
	tests := []struct {
		name    string
		change  []func(*tables.Objects)
		targets []dataplane.VIPTarget
		shares  []float64 // of the targets
		problem string
	}{
		{name: "the own cluster first", targets: both, shares: []float64{1, 0}},
		{name: "no ready backend in the own cluster", change: []func(*tables.Objects){noOwn}, targets: both[1:], shares: []float64{1}},
		{name: "none in the remote one", change: []func(*tables.Objects){ready("0")}, targets: both[:1], shares: []float64{1}},
		{name: "none anywhere", change: []func(*tables.Objects){noOwn, ready("0")}},
		{name: "those of the own cluster terminate but serve", change: []func(*tables.Objects){noOwn, terminate("web-1")}, targets: both, shares: []float64{1, 0}},
		{name: "nodes use their own backends only", change: []func(*tables.Objects){local}, targets: both[:1], shares: []float64{1}},
		{name: "nodes use their own backends only, whatever the weights", change: []func(*tables.Objects){weights(map[string]int{"g2": 3}), local},
			targets: both[:1], shares: []float64{1}},
		{name: "nodes use their own backends only, and this one has none", change: []func(*tables.Objects){noOwn, local, func(o *tables.Objects) {
			o.Slices[web][0].Endpoints[1].Conditions.Ready = ptr.To(true) // of n1
		}}},
		{name: "the own Service uses local backends only, which the clusters have not agreed on, and this node has none",
			change: []func(*tables.Objects){noOwn, ownLocal, func(o *tables.Objects) {
				o.Slices[web][0].Endpoints[1].Conditions.Ready = ptr.To(true) // of n1
			}}, targets: both[1:], shares: []float64{1}},
		{name: "… and this node has one", change: []func(*tables.Objects){ownLocal}, targets: both, shares: []float64{1, 0}},
		{name: "weights three to one", change: []func(*tables.Objects){weights(map[string]int{"g1": 3, "g2": 1})}, targets: both, shares: []float64{0.75, 0.25}},
		{name: "a weight for one cluster, the others have 1", change: []func(*tables.Objects){weights(map[string]int{"g2": 3})}, targets: both, shares: []float64{0.25, 0.75}},
		{name: "weight 0", change: []func(*tables.Objects){weights(map[string]int{"g1": 0})}, targets: both, shares: []float64{0, 1}},
		{name: "weights do not send to a cluster without a backend", change: []func(*tables.Objects){weights(map[string]int{"g1": 1, "g2": 5}), noOwn},
			targets: both[1:], shares: []float64{1}},
		{name: "the own cluster has one of four required backends", change: []func(*tables.Objects){balancing(topology.Balancing{MinLocal: 4}), oneOwn},
			targets: both, shares: []float64{0.25, 0.75}},
		{name: "… and the nearest cluster is preferred", change: []func(*tables.Objects){balancing(topology.Balancing{MinLocal: 2, Nearest: []string{"g3", "g2"}}), oneOwn},
			targets: both, shares: []float64{0.5, 0.5}},
		{name: "the endpoint is not ready", targets: both[:1], shares: []float64{1}, change: []func(*tables.Objects){func(o *tables.Objects) {
			o.Imported[web][1].Endpoints[0].Conditions.Ready = ptr.To(false)
		}}},
		{name: "an address that is not of the cluster", targets: both[:1], shares: []float64{1}, problem: "in none of its ranges", change: []func(*tables.Objects){func(o *tables.Objects) {
			o.Imported[web][1].Endpoints[0].Addresses = []string{"10.77.0.1"}
		}}},
		{name: "a cluster that is no peer", targets: both[:1], shares: []float64{1}, problem: "cluster g9", change: []func(*tables.Objects){func(o *tables.Objects) {
			o.Imported[web][1].Labels[mcs.LabelSourceCluster] = "g9"
		}}},
		{name: "a number of backends that is none", targets: both, shares: []float64{1, 0}, problem: "no number of backends", change: []func(*tables.Objects){ready("many")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n2")
			clusterset.Export(&objs, metav1.ConditionTrue)
			clusterset.Import(&objs)
			for _, f := range tt.change {
				f(&objs)
			}
			r := tables.Desired(objs, host)
			v, ok := r.State.VIPs[dataplane.ServiceKey{Address: ip("243.0.16.1"), Port: 80, Protocol: 6}]
			if !ok || len(r.State.VIPs) != 1 {
				t.Fatalf("ClusterSetIPs %v; want port 80 alone", r.State.VIPs)
			}
			if diff := cmp.Diff(tt.targets, v.Targets, clusterset.Comparable); diff != "" {
				t.Errorf("targets -want +got\n%s", diff)
			}
			slots := map[uint8]int{}
			for _, s := range v.Slots {
				slots[s]++
			}
			for i, share := range tt.shares {
				if got := float64(slots[uint8(i)]) / dataplane.VIPSlots; got < share-0.005 || got > share+0.005 {
					t.Errorf("target %d has a share of %.3f; want %.2f", i, got, share)
				}
			}
			if got := strings.Join(r.Problems, "\n"); (got != "") != (tt.problem != "") || !strings.Contains(got, tt.problem) {
				t.Errorf("problems %q; want one with %q", got, tt.problem)
			}
		})
	}
}

// What the clusters have agreed on decides whether clients keep their backend, not the own Service.
func TestAffinityOfExports(t *testing.T) {
	for _, tt := range []struct {
		name               string
		exported, imported bool
		own                corev1.ServiceAffinity
		timeout            *int32
		merged, want       uint32
	}{
		{name: "both", exported: true, imported: true, own: corev1.ServiceAffinityClientIP, merged: 60, want: 60},
		{name: "the clusters, not the own Service", exported: true, imported: true, own: corev1.ServiceAffinityNone, merged: 60, want: 60},
		{name: "the own Service, not the clusters", exported: true, imported: true, own: corev1.ServiceAffinityClientIP},
		{name: "not merged yet", exported: true, own: corev1.ServiceAffinityClientIP, want: 10800},
		{name: "not merged yet, with a timeout", exported: true, own: corev1.ServiceAffinityClientIP, timeout: ptr.To(int32(300)), want: 300},
		{name: "a GlobalIngressIP of a Service that is not exported, beside the import of another one", imported: true,
			own: corev1.ServiceAffinityClientIP, want: 10800},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n2")
			clusterset.Export(&objs, metav1.ConditionTrue)
			objs.Exports = map[types.NamespacedName]bool{web: tt.exported}
			objs.Services[web].Spec.SessionAffinity = tt.own
			if tt.timeout != nil {
				objs.Services[web].Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: tt.timeout}}
			}
			if tt.imported {
				clusterset.Import(&objs)
				i := objs.Imports[web]
				i.Affinity = tt.merged
				objs.Imports[web] = i
			}
			state := tables.Desired(objs, host).State
			if len(state.Services) == 0 {
				t.Fatal("the Service is not exposed")
			}
			for key, s := range state.Services {
				if _, vip := state.VIPs[key]; vip {
					continue // follows the import
				}
				if s.Affinity != tt.want {
					t.Errorf("%v: clients keep their backend for %d s, want %d", key, s.Affinity, tt.want)
				}
			}
		})
	}
}

// A port that one cluster alone has leads to that cluster: strict per port.
func TestVIPPorts(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	clusterset.Export(&objs, metav1.ConditionTrue)
	clusterset.Import(&objs)
	objs.Imported[web][1].Ports = append(objs.Imported[web][1].Ports, discoveryv1.EndpointPort{Name: ptr.To("dns"), Port: ptr.To(int32(53)), Protocol: ptr.To(corev1.ProtocolUDP)},
		discoveryv1.EndpointPort{Name: ptr.To("sctp"), Port: ptr.To(int32(5000)), Protocol: ptr.To(corev1.ProtocolSCTP)})
	i := objs.Imports[web]
	i.Ports = append(i.Ports, tables.ImportPort{Name: "dns", Port: 53, Protocol: 17}, tables.ImportPort{Name: "metrics", Port: 9090, Protocol: 6})
	objs.Imports[web] = i
	// The name is that of port 80 of an older export: no port of the merged service.
	objs.Imported[web][1].Ports = append(objs.Imported[web][1].Ports, discoveryv1.EndpointPort{Name: ptr.To("http"), Port: ptr.To(int32(8080)), Protocol: ptr.To(corev1.ProtocolTCP)})
	vips := tables.Desired(objs, host).State.VIPs
	if n := len(vips[dataplane.ServiceKey{Address: ip("243.0.16.1"), Port: 80, Protocol: 6}].Targets); n != 2 {
		t.Errorf("%d clusters serve port 80; want both", n)
	}
	v := vips[dataplane.ServiceKey{Address: ip("243.0.16.1"), Port: 53, Protocol: 17}]
	if len(v.Targets) != 1 || v.Targets[0].Cluster != 2 {
		t.Errorf("port 53 is served by %v; want g2 alone", v.Targets)
	}
	if v, ok := vips[dataplane.ServiceKey{Address: ip("243.0.16.1"), Port: 9090, Protocol: 6}]; !ok || len(v.Targets) != 0 {
		t.Errorf("port 9090, which no cluster serves now, leads to %v", v.Targets)
	}
	if len(vips) != 3 {
		t.Errorf("%d ports; SCTP and 8080 are not merged", len(vips))
	}
	i.Ports = nil // as an earlier version saved it
	objs.Imports[web] = i
	if vips := tables.Desired(objs, host).State.VIPs; len(vips) != 4 {
		t.Errorf("%d ports without those of the import; want those of the slices", len(vips))
	}
}

// An address outside the range, and one that another service has, is reported and not routed to the
// wrong service.
func TestInvalidVIPs(t *testing.T) {
	objs, host := clusterset.Globalnet("n2")
	clusterset.Export(&objs, metav1.ConditionTrue)
	clusterset.Import(&objs)
	other := types.NamespacedName{Namespace: "sample", Name: "zoo"}
	objs.Imports[other], objs.Imported[other] = objs.Imports[web], []discoveryv1.EndpointSlice{clusterset.Imported("g2", "120.2.0.77", 80)}
	outside := types.NamespacedName{Namespace: "sample", Name: "far"}
	objs.Imports[outside], objs.Imported[outside] = tables.Import{IP: ip("192.0.2.1")}, objs.Imported[web]
	r := tables.Desired(objs, host)
	if len(r.State.VIPs) != 1 || len(r.State.VIPs[dataplane.ServiceKey{Address: ip("243.0.16.1"), Port: 80, Protocol: 6}].Targets) != 2 {
		t.Errorf("ClusterSetIPs %v; want that of sample/web alone", r.State.VIPs)
	}
	for _, want := range []string{"sample/far: ClusterSetIP 192.0.2.1 is not in the clusterset's range", "sample/zoo: ClusterSetIP 243.0.16.1 is that of sample/web"} {
		if !strings.Contains(strings.Join(r.Problems, "\n"), want) {
			t.Errorf("problems %q; want one with %q", r.Problems, want)
		}
	}
}

func TestNewImport(t *testing.T) {
	from := &mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web", Annotations: map[string]string{
			submarinerv1.AnnotationWeightPrefix + "g1": "3", submarinerv1.AnnotationWeightPrefix + "g2": "-1", submarinerv1.AnnotationWeightPrefix + "g3": "many", "other": "1",
		}},
		Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: []string{"fd00::1", "243.0.16.1"},
			Ports: []mcs.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 5000, Protocol: corev1.ProtocolSCTP}, {Name: "none", Port: 70000}}},
	}
	i, ok := tables.NewImport(from)
	if diff := cmp.Diff([]tables.ImportPort{{Name: "dns", Port: 53, Protocol: 17}, {Port: 5000, Protocol: 132}}, i.Ports); diff != "" {
		t.Errorf("ports -want +got\n%s", diff)
	}
	if !ok || i.IP != netip.MustParseAddr("243.0.16.1") || i.Affinity != 0 || len(i.Weights) != 1 || i.Weights["g1"] != 3 || len(i.Problems) != 2 {
		t.Errorf("import %+v, %t", i, ok)
	}
	from.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	if i, _ := tables.NewImport(from); i.Affinity != 10800 {
		t.Errorf("affinity %d s; want the default of Services", i.Affinity)
	}
	from.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(60))}}
	if i, _ := tables.NewImport(from); i.Affinity != 60 {
		t.Errorf("affinity %d s; want 60", i.Affinity)
	}
	if i, _ := tables.NewImport(from); i.Local {
		t.Error("without a policy only backends on the node are used")
	}
	from.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	if i, _ := tables.NewImport(from); !i.Local {
		t.Error("policy Local has no effect")
	}
	from.Spec.IPs = nil
	if _, ok := tables.NewImport(from); ok {
		t.Error("without an address it has no ClusterSetIP")
	}
	from.Spec.IPs, from.Spec.Type = []string{"243.0.16.1"}, mcs.Headless
	if _, ok := tables.NewImport(from); ok {
		t.Error("a headless one has no ClusterSetIP")
	}
}

// A pod without a device of its own reaches the own cluster's service of a ClusterSetIP at its
// global IP, once that is in the tables of all gateways and unless nodes use their own backends
// only.
func TestHairpins(t *testing.T) {
	want := map[netip.Addr]netip.Addr{ip("10.77.0.9"): ip("120.1.0.9")}
	for _, tt := range []struct {
		name      string
		allocated metav1.ConditionStatus
		change    func(*tables.Objects)
		want      map[netip.Addr]netip.Addr
	}{
		{name: "a global IP", allocated: metav1.ConditionTrue, want: want},
		{name: "not acknowledged by all gateways", allocated: metav1.ConditionFalse},
		{name: "none", allocated: metav1.ConditionTrue, change: func(o *tables.Objects) { o.IngressIPs = nil }},
		{name: "that of another service", allocated: metav1.ConditionTrue, change: func(o *tables.Objects) {
			o.IngressIPs[len(o.IngressIPs)-1].Spec.ServiceRef.Name = "other"
		}},
		{name: "local backends only", allocated: metav1.ConditionTrue, change: func(o *tables.Objects) {
			o.Services[web].Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet("n2")
			clusterset.Export(&objs, tt.allocated)
			clusterset.Import(&objs)
			if tt.change != nil {
				tt.change(&objs)
			}
			if diff := cmp.Diff(tt.want, tables.Desired(objs, host).State.Hairpins, clusterset.Comparable, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("hairpins -want +got\n%s", diff)
			}
		})
	}
}

// The pods of the own cluster that serve a ClusterSetIP at a node.
func TestVIPPods(t *testing.T) {
	port := dataplane.ServiceKey{Address: ip("243.0.16.1"), Port: 80, Protocol: 6}
	local := ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	many := func(n int) func(*tables.Objects) {
		return func(o *tables.Objects) {
			slice := &o.Slices[web][0]
			for i := range n {
				slice.Endpoints = append(slice.Endpoints, clusterset.Endpoint("more", "n1", netip.AddrFrom4([4]byte{10, 7, byte(4 + i/256), byte(i)}).String(), true))
			}
		}
	}
	for _, tt := range []struct {
		name   string
		node   string
		change func(*tables.Objects)
		want   []string
		number int // if want is not given
	}{
		{name: "ready ones on all nodes", node: "n1", want: []string{"10.7.1.5:8080", "10.7.2.5:8080"}},
		{name: "Local by the Service", node: "n1", want: []string{"10.7.1.5:8080"}, change: func(o *tables.Objects) { o.Services[web].Spec.InternalTrafficPolicy = local }},
		{name: "Local by the import", node: "n2", want: []string{"10.7.2.5:8080"}, change: func(o *tables.Objects) {
			i := o.Imports[web]
			i.Local = true
			o.Imports[web] = i
		}},
		{name: "the own cluster does not serve it", node: "n1", change: func(o *tables.Objects) { o.Imported[web] = o.Imported[web][1:] }},
		{name: "as many as a node uses", node: "n1", change: many(254), number: 256},
		{name: "more", node: "n1", change: many(300), number: 256},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := clusterset.Globalnet(tt.node)
			clusterset.Export(&objs, metav1.ConditionTrue)
			clusterset.Import(&objs)
			if tt.change != nil {
				tt.change(&objs)
			}
			state := tables.Desired(objs, host).State
			var got []string
			for _, b := range state.Services[port].Backends {
				got = append(got, b.String())
				if p := state.VIPPods[dataplane.VIPPod{VIP: port, Pod: b.Addr()}]; p != b.Port() {
					t.Errorf("port %d of %s among the pods by address", p, b)
				}
			}
			if len(state.VIPPods) != len(got) {
				t.Errorf("%d pods by address, %d by number", len(state.VIPPods), len(got))
			}
			if tt.number > 0 {
				if len(got) != tt.number {
					t.Errorf("%d pods; want %d", len(got), tt.number)
				}
			} else if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("pods -want +got\n%s", diff)
			}
		})
	}
	// Nodes use different ones of many.
	of := func(node string) map[dataplane.VIPPod]uint16 {
		objs, host := clusterset.Globalnet(node)
		clusterset.Export(&objs, metav1.ConditionTrue)
		clusterset.Import(&objs)
		many(1000)(&objs)
		return tables.Desired(objs, host).State.VIPPods
	}
	same, other := 0, of("n2")
	for p := range of("n1") {
		if _, ok := other[p]; ok {
			same++
		}
	}
	if same < 30 || same > 110 { // a quarter of 256 is expected
		t.Errorf("two nodes have %d of 256 pods in common, of 1002", same)
	}
}

// Where many services have many pods, a node uses fewer of each, so that all services fit in the
// maps.
func TestVIPPodsOfManyServices(t *testing.T) {
	objs, host := clusterset.Globalnet("n1")
	clusterset.Export(&objs, metav1.ConditionTrue)
	clusterset.Import(&objs)
	const services, pods = 500, 200
	slice := objs.Slices[web][0].DeepCopy()
	for i := range pods {
		slice.Endpoints = append(slice.Endpoints, clusterset.Endpoint("more", "n1", netip.AddrFrom4([4]byte{10, 7, 4, byte(i)}).String(), true))
	}
	addresses := map[netip.Addr]bool{}
	for i := range services {
		name := types.NamespacedName{Namespace: web.Namespace, Name: fmt.Sprintf("web-%d", i)}
		imported := objs.Imports[web]
		imported.IP = netip.AddrFrom4([4]byte{243, 0, byte(17 + i/256), byte(i)})
		addresses[imported.IP] = true
		objs.Imports[name], objs.Imported[name], objs.Services[name] = imported, objs.Imported[web], objs.Services[web]
		objs.Slices[name] = []discoveryv1.EndpointSlice{*slice}
	}
	host.Slices = &tables.SliceCache{}
	for range 2 { // the second time from the cache
		state := tables.Desired(objs, host).State
		if n := len(state.VIPPods); n < 49152/2 || n > 49152 {
			t.Errorf("%d pods of %d; want what fits in the map, and no less than half of it", n, services*pods)
		}
		for port, s := range state.Services {
			if addresses[port.Address] && len(s.Backends) != 64 {
				t.Fatalf("%d pods serve %v; want 64", len(s.Backends), port)
			}
		}
	}
	maps.DeleteFunc(objs.Imports, func(_ types.NamespacedName, i tables.Import) bool { return i.IP.As4()[2] == 18 })
	objs.Imports = maps.Clone(objs.Imports)
	state := tables.Desired(objs, host).State
	for port, s := range state.Services {
		if addresses[port.Address] && len(s.Backends) != 128 {
			t.Fatalf("%d pods serve %v after half of the services have gone; want 128", len(s.Backends), port)
		}
	}
}
