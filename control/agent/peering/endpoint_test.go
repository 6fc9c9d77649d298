package peering

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// g1 is the own cluster of the tests.
var g1 = Options{
	ClusterID: "g1", ClusterIndex: 1, Subnets: prefixes("120.1.0.0/24"),
	PodCIDRs: prefixes("10.7.0.0/16"), ServiceCIDRs: prefixes("10.77.0.0/16"), GlobalCIDRs: prefixes("120.1.0.0/24"),
	Fabric: prefixes("241.0.0.0/8")[0], CableDriver: "vxlan", CablePort: 4500, WireVersion: 1, SystemNamespace: "pelago-system", HubID: "hub", BrokerNamespace: "broker",
}

func node(name, address string, annotations map[string]string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"submariner.io/gateway": "true"}, Annotations: annotations},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}},
	}
}

func index(name string, number int32, ready, gateway bool) v1alpha1.NodeIndex {
	return v1alpha1.NodeIndex{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeIndexSpec{Index: number, NodeUID: "uid-" + name},
		Status: v1alpha1.NodeIndexStatus{Ready: ready, Gateway: gateway},
	}
}

func TestOwnEndpoint(t *testing.T) {
	status := index("gw", 2, true, true)
	status.Status.PublicIP = &v1alpha1.PublicIP{Address: "198.51.100.7", Source: "dns:gw.example.org"}
	status.Status.Wire = map[string]string{"natt-discovery-port": "4490", "preferred-server": "true"}
	got, problems := g1.ownEndpoints([]corev1.Node{node("gw", "192.0.2.1", nil)}, []v1alpha1.NodeIndex{status}, nil)
	want := []*submarinerv1.Endpoint{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "broker", Name: "g1-submariner-cable-g1-192-0-2-1", Labels: map[string]string{"submariner-io/clusterID": "g1"},
		},
		Spec: submarinerv1.EndpointSpec{
			ClusterID: "g1", CableName: "submariner-cable-g1-192-0-2-1", Hostname: "gw", Subnets: []string{"120.1.0.0/24"},
			PrivateIP: "192.0.2.1", PublicIP: "198.51.100.7", NATEnabled: true, Backend: "vxlan",
			BackendConfig: map[string]string{"udp-port": "4500", "cluster-index": "1", "node-index": "2", "wire-version": "1", "fabric-ip": "241.0.64.2", "natt-discovery-port": "4490", "preferred-server": "true"},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(problems) > 0 {
		t.Errorf("problems %+v", problems)
	}
	behind := g1
	behind.NoNAT = true
	if got, _ := behind.ownEndpoints([]corev1.Node{node("gw", "192.0.2.1", nil)}, []v1alpha1.NodeIndex{status}, nil); got[0].Spec.NATEnabled || got[0].Spec.PublicIP == "" {
		t.Errorf("joined with --natt=false: %+v", got[0].Spec)
	}
}

func TestDrainedGatewayIsPublishedUntilItLeaves(t *testing.T) {
	dead := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	type cluster struct {
		a, b           *corev1.Node
		indexA, indexB *v1alpha1.NodeIndex
	}
	for name, tt := range map[string]struct {
		change func(cluster)
		want   []string
	}{
		"both serve":                    {func(cluster) {}, []string{"a", "b"}},
		"b is cordoned":                 {func(c cluster) { c.b.Spec.Unschedulable = true }, []string{"a", "b"}},
		"b has left":                    {func(c cluster) { c.b.Spec.Unschedulable, c.indexB.Status.Gateway = true, false }, []string{"a"}},
		"b was cordoned and has died":   {func(c cluster) { c.b.Spec.Unschedulable, c.b.Status.Conditions = true, dead }, []string{"a"}},
		"b was cordoned and rebooted":   {func(c cluster) { c.b.Spec.Unschedulable, c.b.Status.NodeInfo.BootID = true, "b2" }, []string{"a"}},
		"a is dead, b serves, cordoned": {func(c cluster) { c.b.Spec.Unschedulable, c.a.Status.Conditions = true, dead }, []string{"a", "b"}},
		"a has just died, b is cordoned and not known everywhere yet": {
			func(c cluster) { c.b.Spec.Unschedulable, c.indexB.Status.Serving = true, false }, []string{"a", "b"}},
		"label of b removed":             {func(c cluster) { c.b.Labels = nil }, []string{"a"}},
		"label of b removed, a is dead":  {func(c cluster) { c.b.Labels, c.a.Status.Conditions = nil, dead }, []string{"a", "b"}},
		"label of b removed, a boots":    {func(c cluster) { c.b.Labels, c.indexA.Status.Serving = nil, false }, []string{"a", "b"}},
		"label of b removed, a rebooted": {func(c cluster) { c.b.Labels, c.a.Status.NodeInfo.BootID = nil, "b2" }, []string{"a", "b"}},
		"labels of both removed":         {func(c cluster) { c.a.Labels, c.b.Labels = nil, nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []corev1.Node{node("a", "192.0.2.1", nil), node("b", "192.0.2.2", nil)}
			indexes := []v1alpha1.NodeIndex{index("a", 1, true, true), index("b", 2, true, true)}
			for i := range indexes {
				indexes[i].Status.Serving, indexes[i].Status.NodeBootID = true, "b1"
			}
			tt.change(cluster{&nodes[0], &nodes[1], &indexes[0], &indexes[1]})
			endpoints, _ := g1.ownEndpoints(nodes, indexes, nil)
			var got []string
			for _, e := range endpoints {
				got = append(got, e.Spec.Hostname)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("published gateways: -want +got\n%s", diff)
			}
		})
	}
}

// A gateway that answers no witness for a while is withdrawn, but never the last one.
func TestSilentGatewayIsWithdrawn(t *testing.T) {
	nodes := []corev1.Node{node("a", "192.0.2.1", nil), node("b", "192.0.2.2", nil)}
	indexes := []v1alpha1.NodeIndex{index("a", 1, true, true), index("b", 2, true, true)}
	for i := range indexes {
		indexes[i].Status.Serving = true
	}
	quiet, both, none := map[string]bool{"b": true}, map[string]bool{"a": true, "b": true}, map[string]bool{}
	s, start := silence{}, time.Unix(1_700_000_000, 0)
	for _, step := range []struct {
		at     time.Duration
		silent map[string]bool
		wait   time.Duration
		want   string
	}{
		{0, quiet, silentHold, "a b"}, {4 * time.Second, quiet, silentHold - 4*time.Second, "a b"}, {silentHold, quiet, 0, "a"},
		{silentHold + time.Second, both, silentHold, "a"}, {3 * silentHold, both, 0, "a b"},
		{4 * silentHold, none, 0, "a b"}, {5 * silentHold, quiet, silentHold, "a b"},
	} {
		lasting, wait := s.next(step.silent, start.Add(step.at))
		endpoints, _ := g1.ownEndpoints(nodes, indexes, lasting)
		var got []string
		for _, e := range endpoints {
			got = append(got, e.Spec.Hostname)
		}
		if strings.Join(got, " ") != step.want || wait != step.wait {
			t.Errorf("after %s: published %q, wait %s; want %q, %s", step.at, got, wait, step.want, step.wait)
		}
	}
}

func TestWhichNodesAreGateways(t *testing.T) {
	plain, other := node("gw", "192.0.2.1", nil), index("gw", 1, true, true)
	plain.Labels = nil
	other.Spec.NodeUID = "an earlier node of this name"
	dual := node("gw", "2001:db8::1", nil)
	dual.Status.Addresses = append(dual.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.1"})
	cabled := index("gw", 1, true, true)
	cabled.Status.Address = "192.0.2.99"
	public := func(address, message string) v1alpha1.NodeIndex {
		i := index("gw", 1, true, true)
		i.Status.PublicIP = &v1alpha1.PublicIP{Address: address, Message: message}
		return i
	}
	settings := index("gw", 1, true, true)
	settings.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeSettings, Status: metav1.ConditionFalse, Message: "unknown key"}}
	tests := map[string]struct {
		node     corev1.Node
		index    v1alpha1.NodeIndex
		want     string // private and public address; empty: not published
		problems string
	}{
		"ready":                             {node("gw", "192.0.2.1", nil), index("gw", 1, true, true), "192.0.2.1 ", ""},
		"address of the overlay":            {node("gw", "192.0.2.1", nil), cabled, "192.0.2.99 ", ""},
		"IPv6":                              {node("gw", "2001:db8::", nil), index("gw", 1, true, true), "", "NoGatewayAddress"},
		"dual stack":                        {dual, index("gw", 1, true, true), "192.0.2.1 ", ""},
		"IPv6 as public address":            {node("gw", "192.0.2.1", nil), public("2001:db8::", ""), "192.0.2.1 ", "NoPublicIP"},
		"not labelled":                      {plain, index("gw", 1, true, true), "", ""},
		"not ready":                         {node("gw", "192.0.2.1", nil), index("gw", 1, false, true), "", ""},
		"not yet a gateway":                 {node("gw", "192.0.2.1", nil), index("gw", 1, true, false), "", ""},
		"no index":                          {node("gw", "192.0.2.1", nil), index("other", 1, true, true), "", ""},
		"index of a former node":            {node("gw", "192.0.2.1", nil), other, "", ""},
		"no address":                        {node("gw", "", nil), index("gw", 1, true, true), "", "NoGatewayAddress"},
		"no public address":                 {node("gw", "192.0.2.1", nil), public("", "nobody answers"), "192.0.2.1 ", "NoPublicIP"},
		"the former address":                {node("gw", "192.0.2.1", nil), public("192.0.2.1", "nobody answers"), "192.0.2.1 192.0.2.1", "NoPublicIP"},
		"no address at all":                 {node("gw", "192.0.2.1", nil), public("gw.example.org", ""), "192.0.2.1 ", "NoPublicIP"},
		"settings of the node":              {node("gw", "192.0.2.1", nil), settings, "192.0.2.1 ", "InvalidGatewaySettings"},
		"public address is the private one": {node("gw", "192.0.2.1", nil), public("192.0.2.1", ""), "192.0.2.1 192.0.2.1", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			endpoints, problems := g1.ownEndpoints([]corev1.Node{tt.node}, []v1alpha1.NodeIndex{tt.index}, nil)
			var got, reasons string
			for _, e := range endpoints {
				got = e.Spec.PrivateIP + " " + e.Spec.PublicIP
				if e.Spec.NATEnabled {
					t.Error("behind NAT")
				}
			}
			for _, p := range problems {
				reasons += p.reason
			}
			if got != tt.want || reasons != tt.problems {
				t.Errorf("got %q and problems %q, want %q and %q", got, reasons, tt.want, tt.problems)
			}
		})
	}
}

func TestCopies(t *testing.T) {
	at := metav1.Now().Rfc3339Copy()
	clusters := g1.clusterCopies([]submarinerv1.Cluster{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "broker", Name: "g2", UID: "u", ResourceVersion: "7", CreationTimestamp: at,
			Labels: map[string]string{"submariner-io/clusterID": "g2"},
			Annotations: map[string]string{"pelago.io/cluster-index": "2", "kubectl.kubernetes.io/last-applied-configuration": "{}",
				v1alpha1.AnnotationClusterRanges: "0.0.0.0/0"}, // has no effect there
		},
		Spec: submarinerv1.ClusterSpec{ClusterID: "g2"},
	}}, "10.0.0.0/8")
	want := []*submarinerv1.Cluster{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "pelago-system", Name: "g2",
			Labels:      map[string]string{"submariner-io/clusterID": "g2", "app.kubernetes.io/managed-by": "pelago"},
			Annotations: map[string]string{"pelago.io/cluster-index": "2", "pelago.io/hub-id": "hub", "pelago.io/joined-at": at.UTC().Format("2006-01-02T15:04:05Z")},
		},
		Spec: submarinerv1.ClusterSpec{ClusterID: "g2"},
	}}
	if diff := cmp.Diff(want, clusters); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if !joinedAt(*clusters[0]).Equal(at.Time) {
		t.Errorf("joined at %s, want %s", joinedAt(*clusters[0]), at)
	}
	if own := g1.clusterCopies([]submarinerv1.Cluster{remote("g1", 1, 0, "")}, "10.0.0.0/8"); own[0].Annotations[v1alpha1.AnnotationClusterRanges] != "10.0.0.0/8" {
		t.Errorf("the copy of the own Cluster lacks the allowed ranges: %v", own[0].Annotations)
	}
	had := clusters[0].DeepCopy()
	had.Labels["env"] = "prod"
	if copyCluster(had, clusters[0]); had.Labels["env"] != "" {
		t.Errorf("a label that the hub's Cluster has no more stays: %v", had.Labels)
	}
	endpoints := g1.endpointCopies([]submarinerv1.Endpoint{{ObjectMeta: metav1.ObjectMeta{Namespace: "broker", Name: "e"}, Spec: submarinerv1.EndpointSpec{ClusterID: "g2"}}})
	if e := endpoints[0]; e.Namespace != "pelago-system" || e.Spec.ClusterID != "g2" || e.Labels["app.kubernetes.io/managed-by"] != "pelago" {
		t.Errorf("copy of an Endpoint: %+v", e)
	}
}
