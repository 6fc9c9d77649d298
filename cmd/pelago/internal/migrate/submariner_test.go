package migrate

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	operator = "submariner-operator"
	brokerNS = "submariner-k8s-broker"
)

// state reads a member with this spec, and the broker of two clusters, in the form in which subctl
// and the operator write them.
func state(t *testing.T, spec map[string]any, change func(broker []client.Object)) (submarinerState, error) {
	t.Helper()
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "submariner.io/v1alpha1", "kind": "Submariner", "spec": spec}}
	u.SetNamespace(operator)
	u.SetName("submariner")
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: brokerNS, Name: name} }
	broker := []client.Object{
		&corev1.ConfigMap{ObjectMeta: at("submariner-globalnet-info"), Data: map[string]string{"globalnetEnabled": "true",
			"globalnetCidrRange": `"242.0.0.0/8"`, "globalnetClusterSize": "65536",
			"clusterinfo": `[{"cluster_id":"c1","global_cidr":["242.0.0.0/16"]},{"cluster_id":"c2","global_cidr":["242.1.0.0/16"]}]`}},
		&corev1.ConfigMap{ObjectMeta: at("submariner-clustersetip-info"), Data: map[string]string{"clustersetIPEnabled": "true", "clustersetIPCIDRRange": `"244.0.0.0/8"`}},
		&submarinerv1.Cluster{ObjectMeta: at("c1"), Spec: submarinerv1.ClusterSpec{ClusterID: "c1", GlobalCIDR: []string{"242.0.0.0/16"}}},
		&submarinerv1.Cluster{ObjectMeta: at("c2"), Spec: submarinerv1.ClusterSpec{ClusterID: "c2", GlobalCIDR: []string{"242.1.0.0/16"}}},
		&submarinerv1.Endpoint{ObjectMeta: at("c2-cable"), Spec: submarinerv1.EndpointSpec{ClusterID: "c2", Backend: "libreswan"}},
	}
	if change != nil {
		change(broker)
	}
	member := fake.NewClientBuilder().WithScheme(scheme).WithObjects(u).Build()
	hub := fake.NewClientBuilder().WithScheme(scheme).WithObjects(broker...).Build()
	return readSubmariner(t.Context(), member, hub, operator, brokerNS)
}

func specOf(more map[string]any) map[string]any {
	out := map[string]any{"clusterID": "c1", "globalCIDR": "242.0.0.0/16", "natEnabled": false, "clusterCIDR": "10.7.0.0/16", "serviceCIDR": "10.8.0.0/16"}
	for key, value := range more {
		out[key] = value
	}
	return out
}

func TestSubmarinerFlags(t *testing.T) {
	base := "--clusterid=c1 --cable-driver=libreswan --nattport=4500 --natt=false"
	ranges := "--clustercidr=10.7.0.0/16 --globalnet-cidr=242.0.0.0/16 --servicecidr=10.8.0.0/16"
	for name, tt := range map[string]struct {
		spec map[string]any
		want string
	}{
		"defaults": {nil, base + " " + ranges},
		"port and NAT": {map[string]any{"ceIPSecNATTPort": int64(4600), "natEnabled": true},
			"--clusterid=c1 --cable-driver=libreswan --nattport=4600 --natt=true " + ranges},
		"preferred server": {map[string]any{"ceIPSecPreferredServer": true},
			base + " --clustercidr=10.7.0.0/16 --globalnet-cidr=242.0.0.0/16 --preferred-server --servicecidr=10.8.0.0/16"},
		"load balancer": {map[string]any{"loadBalancerEnabled": true},
			base + " --clustercidr=10.7.0.0/16 --globalnet-cidr=242.0.0.0/16 --load-balancer --servicecidr=10.8.0.0/16"},
		"air-gapped": {map[string]any{"airGappedDeployment": true}, base + " --air-gapped " + ranges},
		"ClusterSetIPs": {map[string]any{"clustersetIPEnabled": true, "clustersetIPCIDR": "243.0.16.0/20"},
			base + " --clustercidr=10.7.0.0/16 --clusterset-ip-cidr=243.0.16.0/20 --enable-clusterset-ip --globalnet-cidr=242.0.0.0/16 --servicecidr=10.8.0.0/16"},
		"CoreDNS": {map[string]any{"coreDNSCustomConfig": map[string]any{"configMapName": "coredns-custom"}},
			base + " --clustercidr=10.7.0.0/16 --coredns-custom-configmap=kube-system/coredns-custom --globalnet-cidr=242.0.0.0/16 --servicecidr=10.8.0.0/16"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := state(t, specOf(tt.spec), nil)
			if err == nil {
				err = s.check()
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, strings.Join(s.joinFlags(), " ")); diff != "" {
				t.Errorf("flags of join: -want +got\n%s", diff)
			}
		})
	}
}

// A public address that Submariner has looked up is carried over: from the Gateway of each node, or
// from the Endpoint of the active one at the broker. What Pelago reads itself stays.
func TestSubmarinerAddresses(t *testing.T) {
	gateway := func(name string, annotations map[string]string, external string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{submarinerv1.LabelGateway: "true"}, Annotations: annotations}}
		if external != "" {
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: external}}
		}
		return n
	}
	report := func(node, private, public string) *submarinerv1.Gateway {
		return &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: operator, Name: node},
			Status: submarinerv1.GatewayStatus{LocalEndpoint: submarinerv1.EndpointSpec{Hostname: node, PrivateIP: private, PublicIP: public}}}
	}
	own := map[string]string{submarinerv1.AnnotationPublicIP: "dns:gw.example.org"}
	for name, tt := range map[string]struct {
		spec    map[string]any
		objects []client.Object
		want    string // annotation of n1 afterwards
		err     string
	}{
		"an active gateway":        {objects: []client.Object{gateway("n1", nil, ""), report("n1", "10.0.0.7", "203.0.113.7")}, want: "ipv4:203.0.113.7"},
		"an annotation":            {objects: []client.Object{gateway("n1", own, ""), report("n1", "10.0.0.7", "203.0.113.7")}, want: "dns:gw.example.org"},
		"an ExternalIP":            {objects: []client.Object{gateway("n1", nil, "203.0.113.7"), report("n1", "10.0.0.7", "203.0.113.7")}},
		"another than ExternalIP":  {objects: []client.Object{gateway("n1", nil, "203.0.113.8"), report("n1", "10.0.0.7", "203.0.113.7")}, want: "ipv4:203.0.113.7"},
		"by the Endpoint":          {objects: []client.Object{gateway("hub-knows", nil, ""), gateway("n1", own, "")}, want: "dns:gw.example.org"},
		"none known":               {objects: []client.Object{gateway("n1", nil, "")}, err: "no public address is known of gateway n1"},
		"one of two":               {objects: []client.Object{gateway("n1", nil, "203.0.113.7"), gateway("n2", nil, "")}, err: "of gateway n2"},
		"none, without NAT":        {spec: map[string]any{"natEnabled": false}, objects: []client.Object{gateway("n1", nil, "")}},
		"none, air-gapped":         {spec: map[string]any{"airGappedDeployment": true}, objects: []client.Object{gateway("n1", nil, "")}},
		"none, load balancer":      {spec: map[string]any{"loadBalancerEnabled": true}, objects: []client.Object{gateway("n1", nil, "")}},
		"a node without the label": {objects: []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, said := submariner(t, "member", tt.objects...)
			var err error
			if s.state, err = readSubmariner(t.Context(), s.Member, s.Broker, s.Namespace, s.BrokerNamespace); err != nil {
				t.Fatal(err)
			}
			on := true
			s.state.spec.NatEnabled = &on
			for key, value := range tt.spec {
				switch value := value.(bool); key {
				case "natEnabled":
					s.state.spec.NatEnabled = &value
				case "airGappedDeployment":
					s.state.spec.AirGappedDeployment = value
				case "loadBalancerEnabled":
					s.state.spec.LoadBalancerEnabled = value
				}
			}
			s.state.addresses = nil
			s.state.endpoints = append(s.state.endpoints, submarinerv1.Endpoint{Spec: submarinerv1.EndpointSpec{
				ClusterID: "c1", Hostname: "hub-knows", PrivateIP: "10.0.0.9", PublicIP: "203.0.113.9"}})
			if err := s.state.readAddresses(t.Context(), s.Member, s.Namespace); err != nil {
				t.Fatal(err)
			}
			err = s.state.checkAddresses()
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			if err := s.carryAddresses(t.Context()); err != nil {
				t.Fatal(err)
			}
			n := &corev1.Node{}
			if err := s.Member.Get(t.Context(), client.ObjectKey{Name: "n1"}, n); err != nil {
				t.Fatal(err)
			}
			if got := n.Annotations[submarinerv1.AnnotationPublicIP]; got != tt.want {
				t.Errorf("annotation %q, want %q; it says %q", got, tt.want, *said)
			}
			if name == "by the Endpoint" && !strings.Contains(strings.Join(*said, ""), "hub-knows keeps its public address") {
				t.Errorf("it says %q", *said)
			}
		})
	}
}

func TestSubmarinerPlan(t *testing.T) {
	s, err := state(t, specOf(map[string]any{"customDomains": []any{"example.org"}, "ceIPSecForceUDPEncaps": true,
		"connectionHealthCheck": map[string]any{"enabled": true}}), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := s.print(&out, "table"); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"pelago deploy-broker --globalnet --globalnet-cidr-range=242.0.0.0/8 --globalnet-cluster-size=65536", "--custom-domains=example.org",
		"pelago join broker-info.subm --clusterid=c1", "--enable-clusterset-ip --clusterset-ip-cidr-range=244.0.0.0/8", "kept by --switch", "ceIPSecForceUDPEncaps", "connectionHealthCheck"} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("the plan lacks %q:\n%s", words, &out)
		}
	}
}

func TestSubmarinerContradictions(t *testing.T) {
	for words, tt := range map[string]struct {
		spec   map[string]any
		change func([]client.Object)
	}{
		`no Cluster "c9"`:     {spec: map[string]any{"clusterID": "c9"}},
		"take part in it":     {spec: map[string]any{"globalCIDR": ""}},
		"at the broker":       {spec: map[string]any{"globalCIDR": "242.5.0.0/16"}},
		"Pelago uses one":     {spec: map[string]any{"cableDriver": "wireguard"}},
		"overlap: rejoin one": {change: func(b []client.Object) { b[3].(*submarinerv1.Cluster).Spec.GlobalCIDR = []string{"242.0.128.0/17"} }},
	} {
		s, err := state(t, specOf(tt.spec), tt.change)
		if err == nil {
			err = s.check()
		}
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want one with %q", err, words)
		}
	}
}
