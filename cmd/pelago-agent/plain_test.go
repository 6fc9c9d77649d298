package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/await"
)

// TestClustersetDistinctCIDRs: clusters with ranges of their own, and one that cannot be
// connected.
func TestClustersetDistinctCIDRs(t *testing.T) {
	t.Parallel()
	book, err := broker.NewBook(false, netip.Prefix{}, 0)
	must(t, err)
	book, err = book.WithClusterSetIPs(netip.MustParsePrefix("10.100.0.0/16"))
	must(t, err)
	s := newClustersetWith(t, book, memberRanges{pods: "10.7.0.0/16", services: "10.77.0.0/16", vips: "10.100.0.16/28"},
		memberRanges{pods: "10.8.0.0/16", services: "10.88.0.0/16", vips: "10.100.1.0/24"})
	t.Run("peers know each other", s.testPlainPeers)
	t.Run("ranges that are outgrown", s.testOutgrown)
	t.Run("an exported service", s.testPlainExport)
	t.Run("headless", s.testPlainHeadless)
	t.Run("ClusterSetIPs that another cluster names", s.testNamedVIPs)
	t.Run("a cluster that is refused", s.testRefused)
}

func (s *clusterset) testPlainPeers(t *testing.T) {
	for m, want := range map[*member]string{
		s.g1: `g2 2 [10.8.0.0/16 10.88.0.0/16 241.0.128.0/18] [{"name":"gw","address":"192.0.2.2","privateAddress":"192.0.2.2","port":4500,"wire":"vxlan","nodeIndex":1,"fabricAddress":"241.0.128.1","tunnels":1}] True/Accepted`,
		s.g2: `g1 1 [10.7.0.0/16 10.77.0.0/16 241.0.64.0/18] [{"name":"gw","address":"192.0.2.1","privateAddress":"192.0.2.1","port":4500,"wire":"vxlan","nodeIndex":1,"fabricAddress":"241.0.64.1","tunnels":1}] True/Accepted`,
	} {
		within(t, "peers of "+m.id, func() string {
			if got := m.peers(t); got != want {
				return "got " + got
			}
			return ""
		})
	}
}

// testOutgrown: a ServiceCIDR outside of the registered ranges is named on the cluster's own object,
// with the rights of the agent.
func (s *clusterset) testOutgrown(t *testing.T) {
	registered := func() string {
		own := &submarinerv1.Cluster{}
		if err := s.g1.Get(t.Context(), client.ObjectKey{Namespace: manifests.SystemNamespace, Name: "g1"}, own); err != nil {
			return err.Error()
		}
		c := meta.FindStatusCondition(own.Status.Conditions, submarinerv1.ClusterRangesRegistered)
		if c == nil {
			return "none"
		}
		return string(c.Status) + " " + c.Message
	}
	await.Equal(t, "True ", registered)
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.99.0.0/16"}}}
	s.g1.create(t, more)
	await.Equal(t, "False ServiceCIDR more has 10.99.0.0/16: outside of the registered ranges of pods 10.7.0.0/16 and services 10.77.0.0/16, so other clusters "+
		"do not reach such addresses and drop what they send; register them: pelago join broker-info.subm --clusterid g1 --servicecidr 10.77.0.0/16,10.99.0.0/16", registered)
	must(t, s.g1.Delete(t.Context(), more))
	await.Equal(t, "True ", registered)
}

func (s *clusterset) testPlainExport(t *testing.T) {
	const ns, name = "sample", "whereami-cs"
	namespace(t, ns, s.g1, s.g2)
	ip := s.g2.service(t, ns, name, web).Spec.ClusterIP
	s.g2.export(t, ns, name)
	within(t, "Ready", s.g2.conditionIs(ns, name, "Ready", "True/Exported: Service was successfully exported to the broker"))
	within(t, "hub", s.atHubIs(ns, name, "contribution g2.sample.whereami-cs ["+ip+"]", "slice of g2: "+ip+", port 80"))
	for _, m := range []*member{s.g1, s.g2} {
		within(t, m.id, m.viewIs(ns, name,
			"import ClusterSetIP TCP/80 g2", "copy whereami-cs-sample-g2: ClusterSetIP TCP/80 "+ip, "slice of g2: "+ip+", port 80"))
	}
	var addresses submarinerv1.GlobalIngressIPList
	must(t, s.g2.List(t.Context(), &addresses))
	if len(addresses.Items) > 0 {
		t.Errorf("%d GlobalIngressIPs without globalnet", len(addresses.Items))
	}
	s.g2.unexport(t, ns, name)
	within(t, "hub is clean", s.atHubIs(ns, name))
	within(t, "g1 is clean", s.g1.viewIs(ns, name))
}

// Pods are named by their addresses, those in the network of their node by its fabric address.
func (s *clusterset) testPlainHeadless(t *testing.T) {
	const ns, name = "headless", "whereami-ss"
	namespace(t, ns, s.g1, s.g2)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{web}},
	}
	s.g2.create(t, service)
	inNode := backend("192.0.2.2", s.g2.pod(t, ns, "whereami-1"), true)
	inNode.NodeName = ptr.To(gatewayNode)
	s.g2.backends(t, service, backend("10.8.0.10", s.g2.pod(t, ns, "whereami-0"), true), inNode)
	s.g2.export(t, ns, name)
	within(t, "Ready", s.g2.conditionIs(ns, name, "Ready", "True"))
	within(t, "g1", s.g1.viewIs(ns, name,
		"import Headless TCP/80 g2", "copy whereami-ss-headless-g2: Headless TCP/80",
		"slice of g2: whereami-0=10.8.0.10, whereami-1=241.0.128.1, port 8080"))
	within(t, "g2", s.g2.viewIs(ns, name,
		"import Headless TCP/80 g2", "copy whereami-ss-headless-g2: Headless TCP/80",
		"slice of g2: whereami-0=10.8.0.10, whereami-1=192.0.2.2, port 8080"))
}

// Another cluster names addresses of g1's range of ClusterSetIPs for services of its own: g1
// allocates the one that is left first, and then the others nevertheless.
func (s *clusterset) testNamedVIPs(t *testing.T) {
	const ns = "vips"
	namespace(t, ns, s.g1)
	const left = "10.100.0.20"
	for host := 17; host <= 30; host++ {
		name, ip := fmt.Sprintf("named-%d", host), fmt.Sprintf("10.100.0.%d", host)
		if ip == left {
			continue
		}
		must(t, s.hub.Create(t.Context(), &v1alpha1.ServiceContribution{
			ObjectMeta: metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: "g4.vips." + name, Labels: map[string]string{
				submarinerv1.LabelClusterID: "g4", mcs.LabelServiceName: name, submarinerv1.LabelSourceNamespace: ns,
			}},
			Spec: v1alpha1.ServiceContributionSpec{Cluster: "g4", Namespace: ns, Service: name, Type: v1alpha1.ContributionClusterSetIP,
				ClusterSetIP: ip, ExportedAt: metav1.NewTime(time.Unix(1700000000, 0))},
		}))
	}
	var seen []string
	for _, name := range []string{"first", "second", "third"} {
		s.g1.service(t, ns, name, web)
		s.g1.create(t, &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name,
			Annotations: map[string]string{submarinerv1.AnnotationUseClusterSetIP: "true"}}})
		var ip string
		within(t, "the ClusterSetIP of "+name, func() string {
			var c v1alpha1.ServiceContribution
			if err := s.hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "g1.vips." + name}, &c); err != nil {
				return err.Error()
			}
			if ip = c.Spec.ClusterSetIP; ip == "" {
				return s.g1.condition(ns, name, "ClusterSetIP")
			}
			return ""
		})
		if name == "first" && ip != left || slices.Contains(seen, ip) {
			t.Errorf("service %s has %s, after %s", name, ip, seen)
		}
		seen = append(seen, ip)
	}
}

// A third cluster has pods where a node of g1 is. g2 imports its services, g1 does not and says
// why; after that node is gone it does.
func (s *clusterset) testRefused(t *testing.T) {
	const ns, name = "refused", "web"
	ctx := t.Context()
	namespace(t, ns, s.g1, s.g2)
	labels := map[string]string{
		submarinerv1.LabelClusterID: "g3", mcs.LabelServiceName: name, submarinerv1.LabelSourceNamespace: ns, mcs.LabelSourceCluster: "g3",
		discoveryv1.LabelManagedBy: v1alpha1.ExportedSliceManager,
	}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: manifests.BrokerNamespace, Name: name, Labels: labels}
	}
	g3 := &submarinerv1.Cluster{ObjectMeta: meta("g3"), Spec: submarinerv1.ClusterSpec{
		ClusterID: "g3", ClusterCIDR: []string{"192.0.2.128/25"}, ServiceCIDR: []string{"10.99.0.0/16"},
	}}
	g3.Annotations = map[string]string{"pelago.io/cluster-index": "3", "pelago.io/cluster-uid": "u3", "pelago.io/fabric-cidr": "241.0.192.0/18"}
	inTheWay := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "in-the-way"}}
	s.g1.create(t, inTheWay)
	inTheWay.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.200"}}
	must(t, s.g1.Status().Update(ctx, inTheWay))
	for _, obj := range []client.Object{
		g3,
		&discoveryv1.EndpointSlice{ObjectMeta: meta("g3.web.1"), AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.99.0.9"}, NodeName: ptr.To("node")}}, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}}},
		&v1alpha1.ServiceContribution{ObjectMeta: meta("g3.refused.web"), Spec: v1alpha1.ServiceContributionSpec{
			Cluster: "g3", Namespace: ns, Service: name, Type: v1alpha1.ContributionClusterSetIP, IPs: []string{"10.99.0.9"}, SessionAffinity: "None",
			Ports: []v1alpha1.ContributionPort{{Port: 80, Protocol: corev1.ProtocolTCP}}, ExportedAt: metav1.NewTime(time.Unix(1700000000, 0)),
		}},
	} {
		must(t, s.hub.Create(ctx, obj))
	}
	whole := []string{"copy web-refused-g3: ClusterSetIP TCP/80 10.99.0.9", "import ClusterSetIP TCP/80 g3", "slice of g3: 10.99.0.9, port 80"}
	within(t, "g2, which has nothing against it", s.g2.viewIs(ns, name, whole...))
	within(t, "the condition in g1", func() string {
		var p v1alpha1.Peer
		if err := s.g1.Get(ctx, client.ObjectKey{Name: "g3"}, &p); err != nil {
			return err.Error()
		}
		for _, c := range p.Status.Conditions {
			if c.Reason == v1alpha1.ReasonOverlappingCIDR && strings.Contains(c.Message, "192.0.2.128/25 of cluster g3 overlaps 192.0.2.200/32 of node in-the-way") {
				return ""
			}
		}
		return p.Status.Conditions[0].Message
	})
	within(t, "the Event in g1", func() string {
		var events corev1.EventList
		if err := s.g1.List(context.Background(), &events); err != nil {
			return err.Error()
		}
		for _, e := range events.Items {
			if e.Reason == "NotImported" && e.InvolvedObject.Kind == "Peer" && strings.Contains(e.Message, "no endpoint of service refused/web of cluster g3 is ready: OverlappingCIDR") {
				return ""
			}
		}
		return "no Event NotImported on the Peer"
	})
	// Its name is there, and leads nowhere: the address may be another component's.
	empty := []string{"copy web-refused-g3: ClusterSetIP TCP/80 10.99.0.9", "import ClusterSetIP TCP/80 g3", "slice of g3: port 80"}
	within(t, "g1, which refuses it", s.g1.viewIs(ns, name, empty...))
	within(t, "the condition of the import in g1", func() string {
		var i mcs.ServiceImport
		if err := s.g1.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &i); err != nil {
			return err.Error()
		}
		for _, c := range i.Status.Conditions {
			if c.Type == "Ready" && c.Status == metav1.ConditionFalse && c.Reason == "PeerRefused" && strings.Contains(c.Message, "cluster g3: OverlappingCIDR") {
				return ""
			}
		}
		return fmt.Sprintf("%+v", i.Status.Conditions)
	})
	must(t, s.g1.Delete(ctx, inTheWay))
	within(t, "g1 once the node is gone", s.g1.viewIs(ns, name, whole...))
	s.g1.create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "back"}, Status: corev1.NodeStatus{Addresses: inTheWay.Status.Addresses}})
	within(t, "g1 once it is back", s.g1.viewIs(ns, name, empty...))
	must(t, s.hub.Delete(ctx, g3))
	within(t, "g2 once the cluster has left", s.g2.viewIs(ns, name))
}
