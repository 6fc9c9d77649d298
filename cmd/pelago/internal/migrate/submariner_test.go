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
