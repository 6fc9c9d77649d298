package view

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/control/config"
)

// sliceOf is the imported EndpointSlice of a cluster with an address; backends "": a pod of a
// headless service.
func sliceOf(cluster, address, backends string, ready bool, ports ...int32) discoveryv1.EndpointSlice {
	s := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{mcs.LabelSourceCluster: cluster}, Annotations: map[string]string{}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)}}},
	}
	if backends != "" {
		s.Annotations["pelago.io/ready-backends"] = backends
	}
	for _, p := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: ptr.To(p), Protocol: ptr.To(corev1.ProtocolTCP)})
	}
	return s
}

// Which cluster gets the connections of g1, and why.
func TestExporters(t *testing.T) {
	const vip = "243.0.16.1"
	own, two, three := sliceOf("g1", "10.77.0.5", "2", true, 80), sliceOf("g2", "120.2.0.9", "1", true, 80), sliceOf("g3", "120.3.0.9", "3", true, 80)
	for name, tt := range map[string]struct {
		vip         string
		headless    bool
		mode        config.Mode
		annotations map[string]string
		ports       []int32 // of the merged service; 80 unless given
		slices      []discoveryv1.EndpointSlice
		want        []string
	}{
		"own cluster first": {vip: vip, slices: []discoveryv1.EndpointSlice{own, two},
			want: []string{"g1 10.77.0.5 2 100% own cluster first", "g2 120.2.0.9 1 0% own cluster first"}},
		"by ready backends": {vip: vip, slices: []discoveryv1.EndpointSlice{sliceOf("g1", "10.77.0.5", "0", false, 80), two, three},
			want: []string{"g1 10.77.0.5 0 0% no ready backend", "g2 120.2.0.9 1 25% by ready backends", "g3 120.3.0.9 3 75% by ready backends"}},
		"by weights": {vip: vip, annotations: map[string]string{"lighthouse-lb-weight.submariner.io/g2": "3"}, slices: []discoveryv1.EndpointSlice{own, two},
			want: []string{"g1 10.77.0.5 2 25% weight 1 (lighthouse-lb-weight.submariner.io/g1)", "g2 120.2.0.9 1 75% weight 3 (lighthouse-lb-weight.submariner.io/g2)"}},
		"a dead cluster": {vip: vip, slices: []discoveryv1.EndpointSlice{sliceOf("g2", "120.2.0.9", "1", false, 80), three},
			want: []string{"g2 120.2.0.9 1 0% no gateway of it answers", "g3 120.3.0.9 3 100% by ready backends"}},
		"strict per port": {vip: vip, ports: []int32{80, 9090}, slices: []discoveryv1.EndpointSlice{own, sliceOf("g2", "120.2.0.9", "1", true, 80, 9090)},
			want: []string{"g1 10.77.0.5 2 80/TCP 100%, 9090/TCP 0% own cluster first", "g2 120.2.0.9 1 80/TCP 0%, 9090/TCP 100% by ready backends"}},
		"DNS, own cluster": {slices: []discoveryv1.EndpointSlice{own, two},
			want: []string{"g1 10.77.0.5 2 100% DNS names the own cluster first", "g2 120.2.0.9 1 0% DNS names the own cluster first"}},
		"DNS, in turn": {annotations: map[string]string{"lighthouse-lb-weight.submariner.io/g2": "3"}, slices: []discoveryv1.EndpointSlice{two, three},
			want: []string{"g2 120.2.0.9 1 50% DNS names the ready clusters in turn", "g3 120.3.0.9 3 50% DNS names the ready clusters in turn"}},
		"the own cluster spills": {vip: vip, annotations: map[string]string{"pelago.io/min-local-backends": "4"}, slices: []discoveryv1.EndpointSlice{own, two},
			want: []string{"g1 10.77.0.5 2 50% own cluster first, which has too few ready backends", "g2 120.2.0.9 1 50% own cluster first, which has too few ready backends"}},
		"the nearest": {vip: vip, annotations: map[string]string{"pelago.io/prefer": "nearest", "pelago.io/nearest-clusters": "g2,g3"}, slices: []discoveryv1.EndpointSlice{two, three},
			want: []string{"g2 120.2.0.9 1 100% nearest cluster", "g3 120.3.0.9 3 0% nearest cluster"}},
		"DNS, spilling": {annotations: map[string]string{"pelago.io/min-local-backends": "4"}, slices: []discoveryv1.EndpointSlice{own, three},
			want: []string{"g1 10.77.0.5 2 50% DNS: own cluster first, which has too few ready backends",
				"g3 120.3.0.9 3 50% DNS: own cluster first, which has too few ready backends"}},
		"mode mcs without a ClusterSetIP": {mode: config.ModeMCS, slices: []discoveryv1.EndpointSlice{two},
			want: []string{"g2 120.2.0.9 1 0% no ClusterSetIP: see the conditions of the ServiceImport"}},
		"headless": {headless: true, slices: []discoveryv1.EndpointSlice{
			sliceOf("g2", "120.2.0.4", "", true, 80), sliceOf("g2", "120.2.0.3", "", true, 80), sliceOf("g2", "120.2.0.5", "", false, 80), sliceOf("g2", "120.2.0.6", "", true, 80)},
			want: []string{"g2 120.2.0.3, 120.2.0.4, 120.2.0.5 and 1 more 3 - clients choose among the ready pods"}},
	} {
		t.Run(name, func(t *testing.T) {
			i := &mcs.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web", Annotations: tt.annotations}, Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP}}
			if tt.headless {
				i.Spec.Type = mcs.Headless
			}
			if tt.vip != "" {
				i.Spec.IPs = []string{tt.vip}
			}
			if tt.ports == nil {
				tt.ports = []int32{80}
			}
			for _, p := range tt.ports {
				i.Spec.Ports = append(i.Spec.Ports, mcs.ServicePort{Port: p})
			}
			seen := map[string]bool{}
			for _, s := range tt.slices {
				if id := s.Labels[mcs.LabelSourceCluster]; !seen[id] {
					seen[id] = true
					i.Status.Clusters = append(i.Status.Clusters, mcs.ClusterStatus{Cluster: id})
				}
			}
			var got []string
			for _, e := range exporters(i, tt.slices, config.Config{ClusterID: "g1", Mode: tt.mode}) {
				got = append(got, strings.Join([]string{e.Cluster, few(e.Addresses), strconv.Itoa(e.ReadyBackends), e.share(), e.Why}, " "))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
