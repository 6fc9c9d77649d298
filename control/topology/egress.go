package topology

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// EgressRank is the rule that gives a pod its egress. A lower number wins, as in Submariner's
// egress chains.
type EgressRank int

// Ranks, strongest first.
const (
	// PodSelector: a GlobalEgressIP whose podSelector matches the pod.
	PodSelector EgressRank = iota + 1
	// HeadlessPod: the pod's own GlobalIngressIP, 1:1.
	HeadlessPod
	// Namespace: a GlobalEgressIP without podSelector in the pod's namespace.
	Namespace
	// Cluster: the ClusterGlobalEgressIP; also for pods in the host's network, which have no
	// address of their own.
	Cluster
	// None: the cluster has no ClusterGlobalEgressIP.
	None
)

// ClusterPool names the pool of the ClusterGlobalEgressIP.
var ClusterPool = pelagov1alpha1.EgressPool{Name: submarinerv1.ClusterGlobalEgressIPName}

// EgressPod is what the decision needs to know of a pod.
type EgressPod struct {
	Namespace, Name string
	UID             types.UID
	Labels          map[string]string
	HostNetwork     bool
}

// EgressPodOf is what is needed of a Pod object.
func EgressPodOf(p *corev1.Pod) EgressPod {
	return EgressPod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels, HostNetwork: p.Spec.HostNetwork}
}

// EgressChoice is where a pod's egress comes from.
type EgressChoice struct {
	Rank EgressRank
	// Pool is the egress object; zero for HeadlessPod and None.
	Pool pelagov1alpha1.EgressPool
	// IPs are the addresses allocated to the pool, or the pod's own one. Empty while nothing is
	// allocated, and for a pool of size 0: such a pod has no egress, it does not fall back to the
	// next rank.
	IPs []netip.Addr
	// NAT is the behaviour that the egress object sets.
	NAT NATBehavior
	// Shadowed are pools of the same rank that match too and lose because they are younger.
	Shadowed []pelagov1alpha1.EgressPool
}

// EgressTable holds the egress objects of a cluster, or of the namespaces of interest, prepared for
// look-ups.
type EgressTable struct {
	cluster    *pool
	namespaces map[string]*rules
	own        map[types.NamespacedName]address // pod → its own GlobalIngressIP
}

// rules are the GlobalEgressIPs of one namespace, the oldest first in both lists.
type rules struct {
	selecting []pool
	general   []pool
}

type pool struct {
	name     pelagov1alpha1.EgressPool
	selector labels.Selector
	ips      []netip.Addr
	nat      NATBehavior
}

type address struct {
	ip  netip.Addr
	pod types.UID // empty: unknown
}

// NewEgressTable prepares the objects for look-ups. cluster may be nil. A GlobalEgressIP whose
// selector is malformed selects nothing, a GlobalIngressIP counts once its address is allocated and
// all gateways have it.
func NewEgressTable(cluster *submarinerv1.ClusterGlobalEgressIP, pools []submarinerv1.GlobalEgressIP, ingress []submarinerv1.GlobalIngressIP) *EgressTable {
	t := &EgressTable{namespaces: map[string]*rules{}, own: map[types.NamespacedName]address{}}
	if cluster != nil && cluster.Name == submarinerv1.ClusterGlobalEgressIPName && cluster.DeletionTimestamp == nil {
		t.cluster = &pool{name: ClusterPool, ips: ParseAddresses(cluster.Status.AllocatedIPs)}
		t.cluster.nat, _ = ParseNATBehavior(cluster.Annotations) // the agent reports an error
	}
	byAge := make([]*submarinerv1.GlobalEgressIP, 0, len(pools))
	for i := range pools {
		byAge = append(byAge, &pools[i])
	}
	slices.SortFunc(byAge, func(a, b *submarinerv1.GlobalEgressIP) int { return older(a, b) })
	for _, g := range byAge {
		t.add(g)
	}
	for i := range ingress {
		t.addOwn(&ingress[i])
	}
	return t
}

func (t *EgressTable) add(g *submarinerv1.GlobalEgressIP) {
	if g.DeletionTimestamp != nil {
		return
	}
	r := t.namespaces[g.Namespace]
	if r == nil {
		r = new(rules)
		t.namespaces[g.Namespace] = r
	}
	p := pool{name: pelagov1alpha1.EgressPool{Namespace: g.Namespace, Name: g.Name}, ips: ParseAddresses(g.Status.AllocatedIPs)}
	p.nat, _ = ParseNATBehavior(g.Annotations) // likewise
	if g.Spec.PodSelector == nil {
		r.general = append(r.general, p)
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(g.Spec.PodSelector)
	if err != nil {
		return // the agent reports it as InvalidInput
	}
	p.selector = selector
	r.selecting = append(r.selecting, p)
}

func (t *EgressTable) addOwn(g *submarinerv1.GlobalIngressIP) {
	if g.Spec.Target != submarinerv1.HeadlessServicePod || g.Spec.PodRef == nil || g.DeletionTimestamp != nil ||
		!meta.IsStatusConditionTrue(g.Status.Conditions, submarinerv1.ConditionAllocated) {
		return
	}
	ip, err := netip.ParseAddr(g.Status.AllocatedIP)
	if err != nil {
		return
	}
	own := address{ip: ip}
	for _, ref := range g.OwnerReferences {
		if ref.Kind == "Pod" {
			own.pod = ref.UID
		}
	}
	t.own[types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.PodRef.Name}] = own
}

// Choose reports where the pod's egress comes from.
func (t *EgressTable) Choose(pod EgressPod) EgressChoice {
	if r := t.namespaces[pod.Namespace]; r != nil && !pod.HostNetwork {
		if c, ok := first(PodSelector, r.matching(pod)); ok {
			return c
		}
	}
	if own, ok := t.own[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]; ok && !pod.HostNetwork && own.belongsTo(pod) {
		return EgressChoice{Rank: HeadlessPod, IPs: []netip.Addr{own.ip}}
	}
	if r := t.namespaces[pod.Namespace]; r != nil && !pod.HostNetwork {
		if c, ok := first(Namespace, r.general); ok {
			return c
		}
	}
	if t.cluster != nil {
		return EgressChoice{Rank: Cluster, Pool: t.cluster.name, IPs: t.cluster.ips, NAT: t.cluster.nat}
	}
	return EgressChoice{Rank: None}
}

// Shadowed lists the namespace-wide pools of a namespace that lose to an older one, with the
// winner.
func (t *EgressTable) Shadowed(namespace string) (winner pelagov1alpha1.EgressPool, losers []pelagov1alpha1.EgressPool) {
	if r := t.namespaces[namespace]; r != nil {
		if c, ok := first(Namespace, r.general); ok {
			return c.Pool, c.Shadowed
		}
	}
	return pelagov1alpha1.EgressPool{}, nil
}

func (r *rules) matching(pod EgressPod) []pool {
	var found []pool
	for _, p := range r.selecting {
		if p.selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, p)
		}
	}
	return found
}

// belongsTo reports whether the address was given to this very pod, not to an earlier one of the
// same name.
func (a address) belongsTo(pod EgressPod) bool {
	return a.pod == "" || pod.UID == "" || a.pod == pod.UID
}

// first makes a choice of the oldest pool.
func first(rank EgressRank, byAge []pool) (EgressChoice, bool) {
	if len(byAge) == 0 {
		return EgressChoice{}, false
	}
	c := EgressChoice{Rank: rank, Pool: byAge[0].name, IPs: byAge[0].ips, NAT: byAge[0].nat}
	for _, p := range byAge[1:] {
		c.Shadowed = append(c.Shadowed, p.name)
	}
	return c, true
}

// older orders by age; the name decides among objects of the same second.
func older(a, b metav1.Object) int {
	at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
	if c := at.Compare(bt.Time); c != 0 {
		return c
	}
	return cmp.Compare(a.GetName(), b.GetName())
}

// ParseAddresses parses those of a status and omits invalid ones.
func ParseAddresses(texts []string) []netip.Addr {
	var ips []netip.Addr
	for _, text := range texts {
		if ip, err := netip.ParseAddr(text); err == nil {
			ips = append(ips, ip)
		}
	}
	return ips
}
