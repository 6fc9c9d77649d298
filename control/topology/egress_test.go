package topology_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

var byValue = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func created(second int) metav1.ObjectMeta {
	return metav1.ObjectMeta{CreationTimestamp: metav1.Unix(int64(1_000_000+second), 0)}
}

// geip makes a GlobalEgressIP of namespace ns1; role "" means no selector.
func geip(name string, second int, role string, ips ...string) submarinerv1.GlobalEgressIP {
	g := submarinerv1.GlobalEgressIP{ObjectMeta: created(second), Status: submarinerv1.GlobalEgressIPStatus{AllocatedIPs: ips}}
	g.Namespace, g.Name = "ns1", name
	if role != "" {
		g.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}}
	}
	return g
}

func cluster(ips ...string) *submarinerv1.ClusterGlobalEgressIP {
	c := &submarinerv1.ClusterGlobalEgressIP{Status: submarinerv1.GlobalEgressIPStatus{AllocatedIPs: ips}}
	c.Name = submarinerv1.ClusterGlobalEgressIPName
	return c
}

func own(pod string, uid types.UID, ip string, allocated bool) submarinerv1.GlobalIngressIP {
	g := submarinerv1.GlobalIngressIP{
		Spec: submarinerv1.GlobalIngressIPSpec{
			Target: submarinerv1.HeadlessServicePod, PodRef: &corev1.LocalObjectReference{Name: pod},
		},
		Status: submarinerv1.GlobalIngressIPStatus{AllocatedIP: ip},
	}
	g.Namespace, g.Name = "ns1", "pod-"+pod
	g.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: pod, UID: uid}}
	status := metav1.ConditionFalse
	if allocated {
		status = metav1.ConditionTrue
	}
	g.Status.Conditions = []metav1.Condition{{Type: submarinerv1.ConditionAllocated, Status: status}}
	return g
}

func pool(name string) pelagov1alpha1.EgressPool {
	return pelagov1alpha1.EgressPool{Namespace: "ns1", Name: name}
}

func ips(texts ...string) []netip.Addr {
	var a []netip.Addr
	for _, t := range texts {
		a = append(a, netip.MustParseAddr(t))
	}
	return a
}

func TestChoose(t *testing.T) {
	db := topology.EgressPod{Namespace: "ns1", Name: "db-0", UID: "u1", Labels: map[string]string{"role": "db"}}
	web := topology.EgressPod{Namespace: "ns1", Name: "web-0", UID: "u2", Labels: map[string]string{"role": "web"}}
	deleted := geip("deleted", 0, "")
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	malformed := geip("malformed", 0, "db")
	malformed.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
	all := []submarinerv1.GlobalEgressIP{
		geip("ns-egressip", 3, "", "120.1.0.20"), geip("db-pods", 4, "db", "120.1.0.21"), deleted, malformed,
	}
	for _, tc := range []struct {
		name    string
		cluster *submarinerv1.ClusterGlobalEgressIP
		pools   []submarinerv1.GlobalEgressIP
		ingress []submarinerv1.GlobalIngressIP
		pod     topology.EgressPod
		want    topology.EgressChoice
	}{
		{name: "a selector wins over all", cluster: cluster("120.1.0.1"), pools: all, pod: db,
			ingress: []submarinerv1.GlobalIngressIP{own("db-0", "u1", "120.1.0.30", true)},
			want:    topology.EgressChoice{Rank: topology.PodSelector, Pool: pool("db-pods"), IPs: ips("120.1.0.21")}},
		{name: "a headless pod's own address wins over its namespace", cluster: cluster("120.1.0.1"), pools: all, pod: web,
			ingress: []submarinerv1.GlobalIngressIP{own("web-0", "u2", "120.1.0.30", true)},
			want:    topology.EgressChoice{Rank: topology.HeadlessPod, IPs: ips("120.1.0.30")}},
		{name: "an own address that not all gateways have is not used yet", pools: all, pod: web,
			ingress: []submarinerv1.GlobalIngressIP{own("web-0", "u2", "120.1.0.30", false)},
			want:    topology.EgressChoice{Rank: topology.Namespace, Pool: pool("ns-egressip"), IPs: ips("120.1.0.20")}},
		{name: "the own address of an earlier pod of that name is not used", pools: all, pod: web,
			ingress: []submarinerv1.GlobalIngressIP{own("web-0", "u0", "120.1.0.30", true)},
			want:    topology.EgressChoice{Rank: topology.Namespace, Pool: pool("ns-egressip"), IPs: ips("120.1.0.20")}},
		{name: "the namespace wins over the cluster", cluster: cluster("120.1.0.1"), pools: all, pod: web,
			want: topology.EgressChoice{Rank: topology.Namespace, Pool: pool("ns-egressip"), IPs: ips("120.1.0.20")}},
		{name: "another namespace has the cluster's", cluster: cluster("120.1.0.1", "120.1.0.2"), pools: all,
			pod:  topology.EgressPod{Namespace: "ns2", Name: "x", Labels: db.Labels},
			want: topology.EgressChoice{Rank: topology.Cluster, Pool: topology.ClusterPool, IPs: ips("120.1.0.1", "120.1.0.2")}},
		{name: "a pod in the host's network has the cluster's", cluster: cluster("120.1.0.1"), pools: all,
			ingress: []submarinerv1.GlobalIngressIP{own("db-0", "u1", "120.1.0.30", true)},
			pod:     topology.EgressPod{Namespace: "ns1", Name: "db-0", UID: "u1", Labels: db.Labels, HostNetwork: true},
			want:    topology.EgressChoice{Rank: topology.Cluster, Pool: topology.ClusterPool, IPs: ips("120.1.0.1")}},
		{name: "the oldest of one rank wins", pod: db,
			pools: []submarinerv1.GlobalEgressIP{geip("b", 2, "db", "120.1.0.22"), geip("a", 3, "db"), geip("c", 1, "db", "120.1.0.23")},
			want: topology.EgressChoice{Rank: topology.PodSelector, Pool: pool("c"), IPs: ips("120.1.0.23"),
				Shadowed: []pelagov1alpha1.EgressPool{pool("b"), pool("a")}}},
		{name: "the name decides within one second", pod: web,
			pools: []submarinerv1.GlobalEgressIP{geip("b", 1, ""), geip("a", 1, "")},
			want:  topology.EgressChoice{Rank: topology.Namespace, Pool: pool("a"), Shadowed: []pelagov1alpha1.EgressPool{pool("b")}}},
		{name: "a pool without addresses does not fall back", cluster: cluster("120.1.0.1"), pools: []submarinerv1.GlobalEgressIP{geip("none", 1, "")},
			pod: web, want: topology.EgressChoice{Rank: topology.Namespace, Pool: pool("none")}},
		{name: "nothing", pod: web, want: topology.EgressChoice{Rank: topology.None}},
		{name: "a ClusterGlobalEgressIP of another name is not honoured", cluster: &submarinerv1.ClusterGlobalEgressIP{}, pod: web,
			want: topology.EgressChoice{Rank: topology.None}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := topology.NewEgressTable(tc.cluster, tc.pools, tc.ingress).Choose(tc.pod)
			if diff := cmp.Diff(tc.want, got, byValue); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestShadowed(t *testing.T) {
	table := topology.NewEgressTable(nil, []submarinerv1.GlobalEgressIP{geip("young", 2, ""), geip("old", 1, ""), geip("selecting", 0, "db")}, nil)
	winner, losers := table.Shadowed("ns1")
	if winner != pool("old") || !cmp.Equal(losers, []pelagov1alpha1.EgressPool{pool("young")}) {
		t.Errorf("winner %v, losers %v", winner, losers)
	}
	if _, losers := table.Shadowed("ns2"); losers != nil {
		t.Errorf("losers %v in an empty namespace", losers)
	}
}

// The order in which objects are listed decides nothing.
func TestChooseIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pools []submarinerv1.GlobalEgressIP
		for i, role := range rapid.SliceOfN(rapid.SampledFrom([]string{"", "db", "web"}), 0, 8).Draw(t, "roles") {
			pools = append(pools, geip(string(rune('a'+i)), rapid.IntRange(0, 3).Draw(t, "age"), role))
		}
		pod := topology.EgressPod{Namespace: "ns1", Labels: map[string]string{"role": rapid.SampledFrom([]string{"db", "web", "x"}).Draw(t, "role")}}
		want := topology.NewEgressTable(cluster("120.1.0.1"), pools, nil).Choose(pod)
		shuffled := rapid.Permutation(pools).Draw(t, "order")
		if diff := cmp.Diff(want, topology.NewEgressTable(cluster("120.1.0.1"), shuffled, nil).Choose(pod), byValue); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestUsable(t *testing.T) {
	block := func(ip string, port int32, change func(*pelagov1alpha1.PortBlock)) pelagov1alpha1.PortBlock {
		b := pelagov1alpha1.PortBlock{Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: ip, FirstPort: port, Node: "n1", NodeUID: "u1", Pool: pool("a"), State: pelagov1alpha1.BlockActive,
		}}
		change(&b)
		return b
	}
	same := func(*pelagov1alpha1.PortBlock) {}
	got := topology.UsablePorts([]pelagov1alpha1.PortBlock{
		block("120.1.0.2", 1280, same),
		block("120.1.0.2", 1024, same),
		block("120.1.0.1", 65280, same),
		block("120.1.0.1", 1024, func(b *pelagov1alpha1.PortBlock) { b.Spec.State = pelagov1alpha1.BlockPending }),
		block("120.1.0.1", 1280, func(b *pelagov1alpha1.PortBlock) { b.Spec.State = pelagov1alpha1.BlockReleasing }),
		block("120.1.0.1", 1536, func(b *pelagov1alpha1.PortBlock) { b.Spec.NodeUID = "u0" }),
		block("120.1.0.1", 1792, func(b *pelagov1alpha1.PortBlock) { b.Spec.Pool = topology.ClusterPool }),
		block("120.1.0.1", 2048, func(b *pelagov1alpha1.PortBlock) { b.Spec.OrphanedAt = &metav1.Time{} }),
		block("120.1.0.1", 2304, func(b *pelagov1alpha1.PortBlock) { b.Status.Released = true }),
		block("not an address", 1024, same),
	}, "u1", pool("a"))
	want := []topology.PortRange{
		{IP: netip.MustParseAddr("120.1.0.1"), First: 65280},
		{IP: netip.MustParseAddr("120.1.0.2"), First: 1024},
		{IP: netip.MustParseAddr("120.1.0.2"), First: 1280},
	}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Error(diff)
	}
}
