package ipam_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/ipam"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(apiserver.Run(m, server, blockServer, nodeIndexServer)) }

// cluster is an empty API server for one test.
type cluster struct {
	*apiserver.Cluster
	clock *testingclock.FakeClock
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		Cluster: apiserver.Connect(t, server.Config(t), submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme),
		clock:   testingclock.NewFakeClock(time.Now()),
	}
	c.Empty(
		&submarinerv1.ClusterGlobalEgressIP{}, &submarinerv1.GlobalEgressIP{}, &submarinerv1.GlobalIngressIP{}, &corev1.Pod{}, &corev1.Node{},
		&pelagov1alpha1.GlobalAddress{}, &pelagov1alpha1.PortBlock{}, &pelagov1alpha1.NodeIndex{}, &submarinerv1.RouteAgent{}, &corev1.Event{},
	)
	return c
}

// agent runs the controllers until stop is called or the test ends.
func (c *cluster) agent(cidr string, faults *apiserver.Faults) (stop func()) {
	c.Helper()
	return apiserver.Manager{Scheme: c.Scheme(), NewClient: faults.NewClient, Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return ipam.SetupAddresses(mgr, ipam.AddressOptions{GlobalCIDR: []netip.Prefix{netip.MustParsePrefix(cidr)}, Clock: c.clock})
	}}}.Run(c, c.Config)
}

func egressIP(name string, n *int) *submarinerv1.GlobalEgressIP {
	return &submarinerv1.GlobalEgressIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       submarinerv1.GlobalEgressIPSpec{NumberOfIPs: n},
	}
}

func clusterEgressIP(name string, n *int) *submarinerv1.ClusterGlobalEgressIP {
	return &submarinerv1.ClusterGlobalEgressIP{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: submarinerv1.ClusterGlobalEgressIPSpec{NumberOfIPs: n},
	}
}

func ingressIP(name string) *submarinerv1.GlobalIngressIP {
	return &submarinerv1.GlobalIngressIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy}},
		Spec: submarinerv1.GlobalIngressIPSpec{
			Target: submarinerv1.ClusterIPService, ServiceRef: &corev1.LocalObjectReference{Name: name},
		},
	}
}

// state is the status of an egress or ingress object in one line: addresses and reason.
func (c *cluster) state(o client.Object) string {
	c.Helper()
	if err := c.Get(c.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		return err.Error()
	}
	var ips []string
	var conditions []metav1.Condition
	switch o := o.(type) {
	case *submarinerv1.ClusterGlobalEgressIP:
		ips, conditions = o.Status.AllocatedIPs, o.Status.Conditions
	case *submarinerv1.GlobalEgressIP:
		ips, conditions = o.Status.AllocatedIPs, o.Status.Conditions
	case *submarinerv1.GlobalIngressIP:
		if o.Status.AllocatedIP != "" {
			ips = []string{o.Status.AllocatedIP}
		}
		conditions = o.Status.Conditions
	}
	condition := meta.FindStatusCondition(conditions, submarinerv1.ConditionAllocated)
	if condition == nil {
		return strings.Join(ips, " ")
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s=%s", strings.Join(ips, " "), condition.Status, condition.Reason))
}

// claims lists the GlobalAddresses: name → owner, with a mark for released ones.
func (c *cluster) claims() map[string]string {
	c.Helper()
	var list pelagov1alpha1.GlobalAddressList
	if err := c.List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	claims := map[string]string{}
	for _, a := range list.Items {
		claims[a.Name] = a.Spec.Owner.Name
		if a.Spec.ReleasedAt != nil {
			claims[a.Name] += " released"
		}
	}
	return claims
}

const eight = "120.1.0.1 120.1.0.2 120.1.0.3 120.1.0.4 120.1.0.5 120.1.0.6 120.1.0.7 120.1.0.8"

func TestTheClusterPoolHasTheLowestAddresses(t *testing.T) {
	c := newCluster(t)
	for i := range 20 { // older than the cluster's object
		c.Make(ingressIP(fmt.Sprintf("svc-%d", i)))
	}
	pool := clusterEgressIP(submarinerv1.ClusterGlobalEgressIPName, nil)
	c.Make(pool)
	c.agent("120.1.0.0/24", nil)
	await.Equal(c, eight+" True=Success", func() string { return c.state(pool) })
	await.Equal(c, 28, func() int { return len(c.claims()) })
	if owner := c.claims()["120-1-0-9"]; !strings.HasPrefix(owner, "svc-") {
		t.Errorf("120.1.0.9 belongs to %q", owner)
	}
}

func TestRefusals(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	other := clusterEgressIP("other", ptr.To(3))
	zero := egressIP("zero", ptr.To(0))
	malformed := egressIP("malformed", nil)
	malformed.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}}
	foreign := ingressIP("foreign")
	foreign.Labels = nil
	c.Make(other, zero, malformed, foreign)
	await.Equal(c, "False=InvalidInstance", func() string { return c.state(other) })
	await.Equal(c, "False=ZeroInput", func() string { return c.state(zero) })
	await.Equal(c, "False=InvalidInput", func() string { return c.state(malformed) })
	await.Equal(c, map[string]string{}, c.claims)
	if got := c.state(foreign); got != "" {
		t.Errorf("a GlobalIngressIP that is not ours got %q", got)
	}
}

func TestGrowShrinkRest(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	pool := egressIP("pool", ptr.To(2))
	c.Make(pool)
	await.Equal(c, "120.1.0.1 120.1.0.2 True=Success", func() string { return c.state(pool) })

	resize := func(n int) {
		t.Helper()
		patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"numberOfIPs":%d}}`, n))
		if err := c.Patch(t.Context(), pool, patch); err != nil {
			t.Fatal(err)
		}
	}
	resize(4)
	await.Equal(c, "120.1.0.1 120.1.0.2 120.1.0.3 120.1.0.4 True=Success", func() string { return c.state(pool) })

	block := &pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "120-1-0-3-1024"},
		Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: "120.1.0.3", FirstPort: 1024, Node: "n1", NodeUID: "u1", State: pelagov1alpha1.BlockActive,
			Pool: pelagov1alpha1.EgressPool{Namespace: "default", Name: "pool"},
		},
	}
	c.Make(block)
	time.Sleep(200 * time.Millisecond) // for the agent to see the lease, which nothing shows
	resize(1)
	await.Equal(c, "120.1.0.1 True=Success", func() string { return c.state(pool) })
	await.Equal(c, map[string]string{"120-1-0-1": "pool", "120-1-0-2": "pool released", "120-1-0-3": "pool", "120-1-0-4": "pool released"}, c.claims)

	second := egressIP("second", nil)
	c.Make(second) // must not get a resting or a leased address
	await.Equal(c, "120.1.0.5 True=Success", func() string { return c.state(second) })

	c.Remove(block)
	await.Equal(c, "pool released", func() string { return c.claims()["120-1-0-3"] })
	c.clock.Step(ipam.AddressRest - time.Second)
	c.Nudge(pool)
	time.Sleep(300 * time.Millisecond) // nothing may be freed
	if n := len(c.claims()); n != 5 {
		t.Errorf("%d claims before the rest is over, want 5", n)
	}
	c.clock.Step(3 * time.Second)
	c.Nudge(pool)
	await.Equal(c, map[string]string{"120-1-0-1": "pool", "120-1-0-5": "second"}, c.claims)
	c.Remove(pool)
	await.Equal(c, map[string]string{"120-1-0-1": "pool released", "120-1-0-5": "second"}, c.claims)
}

func TestExhaustedPool(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/29", nil) // 6 addresses
	first, second := egressIP("first", ptr.To(4)), egressIP("second", ptr.To(4))
	c.Make(first)
	await.Equal(c, "120.1.0.1 120.1.0.2 120.1.0.3 120.1.0.4 True=Success", func() string { return c.state(first) })
	c.Make(second)
	await.Equal(c, "False=IPPoolAllocationFailed", func() string { return c.state(second) })
	message := meta.FindStatusCondition(second.Status.Conditions, submarinerv1.ConditionAllocated).Message
	for _, want := range []string{"120.1.0.0/29", "--globalnet-cidr"} {
		if !strings.Contains(message, want) {
			t.Errorf("message %q lacks %q", message, want)
		}
	}
	await.Equal(c, true, func() bool {
		var events corev1.EventList
		if err := c.List(t.Context(), &events); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "second" && e.Reason == submarinerv1.ReasonIPPoolAllocationFailed && e.Message == message
		})
	})
	third, fourth := ingressIP("third"), ingressIP("fourth") // request less: they get what there is
	c.Make(third)
	await.Equal(c, "120.1.0.5 False=AwaitingGateways", func() string { return c.state(third) })
	c.Make(fourth)
	await.Equal(c, "120.1.0.6 False=AwaitingGateways", func() string { return c.state(fourth) })

	c.Remove(first)
	await.Equal(c, map[string]string{
		"120-1-0-1": "first released", "120-1-0-2": "first released", "120-1-0-3": "first released", "120-1-0-4": "first released",
		"120-1-0-5": "third", "120-1-0-6": "fourth",
	}, c.claims)
	c.clock.Step(ipam.AddressRest + time.Second)
	c.Nudge(&pelagov1alpha1.GlobalAddress{ObjectMeta: metav1.ObjectMeta{Name: "120-1-0-4"}})
	await.Equal(c, "120.1.0.1 120.1.0.2 120.1.0.3 120.1.0.4 True=Success", func() string { return c.state(second) })
}

func TestAddressesWaitForAllReadyGateways(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	svc := ingressIP("svc")
	c.Make(svc)
	await.Equal(c, "120.1.0.1 False=AwaitingGateways", func() string { return c.state(svc) })
	report := func(name string, status pelagov1alpha1.NodeIndexStatus) {
		t.Helper()
		n := &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(n), n); err != nil {
			t.Fatal(err)
		}
		n.Status = status
		if err := c.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"g1", "g2", "n3"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{submarinerv1.LabelGateway: strconv.FormatBool(name != "n3")}}}
		c.Make(node)
		c.Make(&pelagov1alpha1.NodeIndex{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pelagov1alpha1.NodeIndexSpec{Index: int32(i + 1), NodeUID: string(node.UID)},
		})
	}
	acks := []string{string(svc.UID)}
	report("n3", pelagov1alpha1.NodeIndexStatus{Ready: true, Acks: acks})
	report("g1", pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true})
	report("g2", pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true, Acks: acks})
	time.Sleep(300 * time.Millisecond) // nothing may be announced
	if got := c.state(svc); got != "120.1.0.1 False=AwaitingGateways" {
		t.Errorf("with one of two gateways: %s", got)
	}
	report("g1", pelagov1alpha1.NodeIndexStatus{Ready: false, Gateway: true})
	await.Equal(c, "120.1.0.1 True=Success", func() string { return c.state(svc) })
	// Acknowledgements are withdrawn at rest, and a gateway that comes later takes nothing back.
	report("g2", pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true})
	report("g1", pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true})
	c.Nudge(svc)
	time.Sleep(300 * time.Millisecond) // nothing may be taken back
	if got := c.state(svc); got != "120.1.0.1 True=Success" {
		t.Errorf("once announced: %s", got)
	}
}

// A gateway that is down is not waited for, however that shows, and the condition names the one that
// is waited for.
func TestADeadGatewayIsNotAwaited(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "pelago-system"}})
	gateway := func(name string) (*corev1.Node, *pelagov1alpha1.NodeIndex) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{submarinerv1.LabelGateway: "true"}}}
		c.Make(node)
		node.Status.NodeInfo.BootID = "b1"
		n := &pelagov1alpha1.NodeIndex{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pelagov1alpha1.NodeIndexSpec{Index: int32(name[1] - '0'), NodeUID: string(node.UID)},
		}
		c.Make(n)
		n.Status = pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true, NodeBootID: "b1"}
		if err := errors.Join(c.Status().Update(t.Context(), node), c.Status().Update(t.Context(), n)); err != nil {
			t.Fatal(err)
		}
		return node, n
	}
	_, alive := gateway("g1")
	agent := &submarinerv1.RouteAgent{ObjectMeta: metav1.ObjectMeta{Namespace: "pelago-system", Name: "g1"}}
	c.Make(agent)
	report := func(silent string) {
		agent.Annotations = map[string]string{
			"update-timestamp": strconv.FormatInt(time.Now().Unix(), 10), "pelago.io/unreachable-clusters": "", "pelago.io/silent-gateways": silent,
		}
		if err := c.Update(t.Context(), agent); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct{ dies, comesBack func(*corev1.Node) }{
		"its Node is not Ready": {
			func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
				if err := c.Status().Update(t.Context(), n); err != nil {
					t.Fatal(err)
				}
			}, nil,
		},
		"it answers no witness": {func(n *corev1.Node) { report(n.Name) }, func(*corev1.Node) { report("") }},
		"it has lost its label": {func(n *corev1.Node) {
			n.Labels = nil
			if err := c.Update(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"its Node is deleted": {func(n *corev1.Node) { c.Remove(n) }, nil},
		"it has booted": {func(n *corev1.Node) {
			n.Status.NodeInfo.BootID = "b2"
			if err := c.Status().Update(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dead, deadIndex := gateway("g2")
			svc := ingressIP("svc")
			c.Make(svc)
			await.True(c, "the condition names the gateway", func() bool {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
					t.Fatal(err)
				}
				condition := meta.FindStatusCondition(svc.Status.Conditions, submarinerv1.ConditionAllocated)
				return condition != nil && strings.Contains(condition.Message, "gateway g1, g2 has it in its tables")
			})
			alive.Status.Acks = []string{string(svc.UID)}
			if err := c.Status().Update(t.Context(), alive); err != nil {
				t.Fatal(err)
			}
			await.True(c, "one gateway is missing", func() bool {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(svc), svc); err != nil {
					t.Fatal(err)
				}
				condition := meta.FindStatusCondition(svc.Status.Conditions, submarinerv1.ConditionAllocated)
				return condition != nil && strings.Contains(condition.Message, "gateway g2 has it in its tables")
			})
			tt.dies(dead)
			await.True(c, "the address is in use", func() bool { return strings.HasSuffix(c.state(svc), "True=Success") })
			if tt.comesBack != nil {
				tt.comesBack(dead)
			}
			for _, o := range []client.Object{svc, deadIndex, dead} {
				if err := client.IgnoreNotFound(c.Delete(t.Context(), o)); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// An egress object does not report success while its pods on a node have no ports.
func TestEgressAwaitsItsBlocks(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	pool := egressIP("app", ptr.To(1))
	c.Make(pool)
	await.Equal(c, "120.1.0.1 True=Success", func() string { return c.state(pool) })
	block := &pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: "120-1-0-1-1024"},
		Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: "120.1.0.1", FirstPort: 1024, Node: "n1", NodeUID: "u1", State: pelagov1alpha1.BlockPending,
			Pool: pelagov1alpha1.EgressPool{Namespace: pool.Namespace, Name: pool.Name},
		},
	}
	c.Make(block)
	await.Equal(c, "120.1.0.1 False=AwaitingGateways", func() string { return c.state(pool) })
	block.Spec.State = pelagov1alpha1.BlockActive
	if err := c.Update(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	await.Equal(c, "120.1.0.1 True=Success", func() string { return c.state(pool) })
	other := block.DeepCopy()
	other.ObjectMeta = metav1.ObjectMeta{Name: "120-1-0-1-1280"}
	other.Spec.FirstPort, other.Spec.Node, other.Spec.State = 1280, "n2", pelagov1alpha1.BlockPending
	c.Make(other)
	await.Equal(c, "120.1.0.1 True=AwaitingGateways", func() string { return c.state(pool) })
	c.Remove(other)
	await.Equal(c, "120.1.0.1 True=Success", func() string { return c.state(pool) })
}

// allDistinct checks what must hold at any moment: no address is shown by two objects, each shown
// one is claimed.
func (c *cluster) allDistinct() (shown int) {
	c.Helper()
	var list submarinerv1.GlobalIngressIPList
	if err := c.List(c.Context(), &list); err != nil {
		c.Fatal(err)
	}
	claims := c.claims()
	owner := map[string]string{}
	for _, g := range list.Items {
		a := g.Status.AllocatedIP
		if a == "" {
			continue
		}
		if other, twice := owner[a]; twice {
			c.Errorf("%s is given to %s and %s", a, other, g.Name)
		}
		owner[a] = g.Name
		if claim := claims[strings.ReplaceAll(a, ".", "-")]; claim != g.Name {
			c.Errorf("%s is shown by %s and claimed by %q", a, g.Name, claim)
		}
	}
	return len(owner)
}

// Twenty agents die between two writes, or right after one that they never hear of; and at last two
// run at once.
func TestKilledAgentsNeverGiveTwice(t *testing.T) {
	c := newCluster(t)
	for i := range 100 {
		c.Make(ingressIP(fmt.Sprintf("svc-%d", i)))
	}
	for range 20 {
		faults := &apiserver.Faults{Every: 8, Fatal: true}
		stop := c.agent("120.1.0.0/24", faults)
		faults.AwaitDeath()
		stop()
		c.allDistinct()
	}
	c.agent("120.1.0.0/24", &apiserver.Faults{Every: 20})
	c.agent("120.1.0.0/24", &apiserver.Faults{Every: 20})
	await.Equal(c, 100, c.allDistinct)
	await.Equal(c, 100, func() int { // what was claimed twice by accident is let go
		return len(slices.DeleteFunc(slices.Collect(maps.Values(c.claims())), func(owner string) bool {
			return strings.HasSuffix(owner, " released")
		}))
	})
}

func TestConflictingEgressIPs(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	conflict := func(g *submarinerv1.GlobalEgressIP) string {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
			return err.Error()
		}
		condition := meta.FindStatusCondition(g.Status.Conditions, submarinerv1.ConditionConflict)
		if condition == nil {
			return ""
		}
		return strings.TrimSpace(string(condition.Status) + " " + condition.Message)
	}
	older, younger := egressIP("older", nil), egressIP("younger", nil)
	c.Make(older)
	time.Sleep(1100 * time.Millisecond) // creation times are whole seconds
	c.Make(younger)
	await.Equal(c, "True GlobalEgressIP older is older and, like this one, has no podSelector: it serves the namespace",
		func() string { return conflict(younger) })
	db, all := egressIP("a-db", nil), egressIP("b-all", nil)
	db.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"role": "db"}}
	all.Spec.PodSelector = &metav1.LabelSelector{}
	c.Make(db, all)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0", Labels: map[string]string{"role": "db"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	c.Make(pod)
	await.Equal(c, true, func() bool {
		return strings.HasSuffix(conflict(db)+conflict(all), "is older and serves the pods that both select, such as db-0")
	})
	c.Remove(pod)
	await.Equal(c, "False", func() string { return conflict(db) + conflict(all) })
	c.Remove(older)
	await.Equal(c, "False", func() string { return conflict(younger) })
}

func TestNATBehavior(t *testing.T) {
	c := newCluster(t)
	c.agent("120.1.0.0/24", nil)
	pool, whole := egressIP("pool", nil), clusterEgressIP(submarinerv1.ClusterGlobalEgressIPName, ptr.To(1))
	pool.Annotations = map[string]string{submarinerv1.AnnotationNATMapping: "EndpointIndependent"}
	whole.Annotations = map[string]string{submarinerv1.AnnotationNATFiltering: "EndpointIndependent"}
	c.Make(pool, whole)
	condition := func(o client.Object, status *submarinerv1.GlobalEgressIPStatus) func() string {
		return func() string {
			allocated := c.state(o)
			if condition := meta.FindStatusCondition(status.Conditions, submarinerv1.ConditionNATBehavior); condition != nil {
				return fmt.Sprintf("%s; %s=%s: %s", allocated, condition.Status, condition.Reason, condition.Message)
			}
			return allocated
		}
	}
	await.Equal(c, "120.1.0.2 True=Success; True=NATBehaviorSet: UDP has mapping EndpointIndependent and filtering AddressAndPortDependent",
		condition(pool, &pool.Status))
	// An error takes no address away.
	await.Equal(c, "120.1.0.1 True=Success; False=InvalidInput: annotation pelago.io/nat-filtering is EndpointIndependent without mappings to filter: "+
		"set pelago.io/nat-mapping to EndpointIndependent as well; until then UDP has mapping AddressAndPortDependent and filtering AddressAndPortDependent",
		condition(whole, &whole.Status))
	annotate := func(o client.Object, annotations map[string]string) {
		t.Helper()
		before := o.DeepCopyObject().(client.Object)
		o.SetAnnotations(annotations)
		if err := c.Patch(c.Context(), o, client.MergeFrom(before)); err != nil {
			t.Fatal(err)
		}
	}
	annotate(whole, map[string]string{submarinerv1.AnnotationNATMapping: "EndpointIndependent", submarinerv1.AnnotationNATFiltering: "EndpointIndependent"})
	await.Equal(c, "120.1.0.1 True=Success; True=NATBehaviorSet: UDP has mapping EndpointIndependent and filtering EndpointIndependent",
		condition(whole, &whole.Status))
	annotate(pool, nil)
	await.Equal(c, "120.1.0.2 True=Success", condition(pool, &pool.Status))
}
