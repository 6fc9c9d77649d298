package collect_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// One server is the hub and, over a line, the member: what a collector reads and what it writes are
// different kinds.
var server = apiserver.NewShared(apiserver.CRDs("clusters.cluster.karmada.io", "portblocks.pelago.io", "gateways.submariner.io"))

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

// place is a hub with one Cluster, and the member that it stands for.
type place struct {
	hub, member *apiserver.Cluster
	line        *apiserver.Line
}

func newPlace(t *testing.T, cluster *clusterv1alpha1.Cluster) place {
	t.Helper()
	p := place{
		hub:    apiserver.Connect(t, server.Config(t), clusterv1alpha1.AddToScheme),
		member: apiserver.Connect(t, server.Config(t), submarinerv1.AddToScheme),
		line:   apiserver.NewLine(t, server.Config(t)),
	}
	p.member.Empty(&corev1.Pod{}, &corev1.Node{})
	p.hub.Empty(&clusterv1alpha1.Cluster{})
	p.hub.Make(cluster)
	return p
}

func (p place) start(o collect.CollectorOptions) {
	p.hub.Helper()
	o.Cluster, o.Hub, o.Log = "m1", p.hub.Client, slog.New(slog.DiscardHandler)
	if o.Member == nil {
		o.Member = p.line.Config()
	}
	c, err := collect.NewCollector(o)
	if err != nil {
		p.hub.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	p.hub.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			p.hub.Error(err)
		}
	})
}

func (p place) cluster() *clusterv1alpha1.Cluster {
	p.hub.Helper()
	c := &clusterv1alpha1.Cluster{}
	if err := p.hub.Get(context.Background(), client.ObjectKey{Name: "m1"}, c); err != nil {
		p.hub.Fatal(err)
	}
	return c
}

// ready is the condition in short.
func (p place) ready() string {
	if r := p.cluster().Ready(); r != nil {
		return string(r.Status) + " " + r.Reason
	}
	return ""
}

// allocated is CPU of bound pods, CPU of others, nodes.
func (p place) allocated() string {
	s := p.cluster().Status
	if s.ResourceSummary == nil {
		return ""
	}
	r, nodes := s.ResourceSummary, s.NodeSummary.TotalNum
	return fmt.Sprintf("%s of %s, %s to come, %d nodes", r.Allocated.Cpu(), r.Allocatable.Cpu(), r.Allocating.Cpu(), nodes)
}

func (p place) addNode(name, cpu string) {
	p.member.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.member.Make(n)
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": resource.MustParse(cpu), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110"),
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if err := p.member.Status().Update(context.Background(), n); err != nil {
		p.member.Fatal(err)
	}
}

func (p place) addPod(name, node, cpu string) *corev1.Pod {
	p.member.Helper()
	requests := corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node,
		Containers: []corev1.Container{{Name: "c", Image: "i", Resources: requests}}}}
	p.member.Make(pod)
	return pod
}

func pushCluster() *clusterv1alpha1.Cluster {
	c := &clusterv1alpha1.Cluster{Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push}}
	c.Name = "m1"
	return c
}

// The rows status, conditions and resource summary of Karmada; the numbers follow the
// member sooner than the next probe.
func TestStatusOfAMember(t *testing.T) {
	p := newPlace(t, pushCluster())
	p.addNode("n1", "4")
	p.addPod("bound", "n1", "1500m")
	p.start(collect.CollectorOptions{Every: time.Hour, Delay: 50 * time.Millisecond})
	await.Equal(t, "1500m of 4, 0 to come, 1 nodes", p.allocated)
	s := p.cluster().Status
	if !strings.HasPrefix(s.KubernetesVersion, "v1.") {
		t.Errorf("version %q", s.KubernetesVersion)
	}
	if !meta.IsStatusConditionTrue(s.Conditions, clusterv1alpha1.ConditionCompleteAPIEnablements) {
		t.Errorf("conditions %v", s.Conditions)
	}
	for gv, resource := range map[string]string{"v1": "pods", "apps/v1": "deployments", "pelago.io/v1alpha1": "portblocks"} {
		is := func(r clusterv1alpha1.APIResource) bool { return r.Name == resource }
		if !slices.ContainsFunc(s.APIEnablements, func(e clusterv1alpha1.APIEnablement) bool {
			return e.GroupVersion == gv && slices.ContainsFunc(e.Resources, is)
		}) {
			t.Errorf("%s %s is served, but not listed", gv, resource)
		}
	}
	// 2.5 of 4 cores are free: Karmada's grade 2
	if m := s.ResourceSummary.AllocatableModelings; len(m) != 9 || m[1].Count != 1 {
		t.Errorf("nodes by grade: %v (memory of 8Gi is grade 1)", m)
	}

	pending := p.addPod("pending", "", "2")
	await.Equal(t, "1500m of 4, 2 to come, 1 nodes", p.allocated)
	p.addNode("n2", "8")
	await.Equal(t, "1500m of 12, 2 to come, 2 nodes", p.allocated)
	p.member.Remove(pending)
	ended := p.addPod("ended", "n2", "3")
	await.Equal(t, "4500m of 12, 0 to come, 2 nodes", p.allocated)
	ended.Status.Phase = corev1.PodSucceeded
	if err := p.member.Status().Update(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "1500m of 12, 0 to come, 2 nodes", p.allocated)
}

// Which clusters the gateways of the member reach is reported, and gone with them.
func TestNetworkOfAMember(t *testing.T) {
	p := newPlace(t, pushCluster())
	p.addNode("n1", "4")
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "net-"}}
	p.member.Make(ns)
	endpoint := func(cluster string) submarinerv1.EndpointSpec {
		return submarinerv1.EndpointSpec{ClusterID: cluster, CableName: "cable-" + cluster, Backend: "vxlan", Subnets: []string{}}
	}
	g := &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "n1"}, Status: submarinerv1.GatewayStatus{
		HAStatus: submarinerv1.HAStatusActive, LocalEndpoint: endpoint("m1"),
		Connections: []submarinerv1.Connection{{Status: submarinerv1.Connected, Endpoint: endpoint("m2")}}}}
	p.member.Make(g)
	p.start(collect.CollectorOptions{Every: 100 * time.Millisecond, Delay: 50 * time.Millisecond})
	network := func() (out string) {
		for _, path := range p.cluster().Status.Network {
			out += fmt.Sprintf("%s %t;", path.Cluster, path.Reachable)
		}
		return out
	}
	await.Equal(t, "m2 true;", network)
	g.Status.Connections[0].Status = submarinerv1.ConnectionError
	if err := p.member.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "m2 false;", network)
	p.member.Remove(g)
	await.Equal(t, "", network)
}

// slow lets the lists of pods wait.
type slow struct{ next http.RoundTripper }

func (s slow) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/api/v1/pods" {
		select {
		case <-time.After(time.Second): // the fault itself: a list that is slow
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return s.next.RoundTrip(r)
}

// The first status has it all, also if the list of pods takes longer than the rest: a cluster that
// becomes ready without room would be passed over.
func TestTheFirstStatusIsWhole(t *testing.T) {
	p := newPlace(t, pushCluster())
	p.addNode("n1", "4")
	member := p.line.Config()
	member.Wrap(func(next http.RoundTripper) http.RoundTripper { return slow{next} })
	p.start(collect.CollectorOptions{Delay: 50 * time.Millisecond, Member: member})
	await.Equal(t, "True ClusterReady", p.ready)
	if got := p.allocated(); got != "0 of 4, 0 to come, 1 nodes" {
		t.Errorf("the first status says %q", got)
	}
}

// Karmada, health probing: thresholds; when not online only conditions are updated and the
// rest kept. Nothing is written while nothing changes, not even another message for each attempt.
func TestOutage(t *testing.T) {
	p := newPlace(t, pushCluster())
	p.addNode("n1", "4")
	p.start(collect.CollectorOptions{Every: 50 * time.Millisecond, Delay: 50 * time.Millisecond,
		FailureThreshold: time.Second, SuccessThreshold: time.Second})
	await.Equal(t, "True ClusterReady", p.ready)
	await.Equal(t, "0 of 4, 0 to come, 1 nodes", p.allocated)

	cut := time.Now()
	p.line.Cut()
	await.Equal(t, "False ClusterNotReachable", p.ready)
	if took := time.Since(cut); took < time.Second {
		t.Errorf("not ready after %v, before the threshold of 1 s", took)
	}
	p.addPod("meanwhile", "n1", "1")
	before := p.cluster()
	if got := p.allocated(); got != "0 of 4, 0 to come, 1 nodes" {
		t.Errorf("a cluster that is away has %q", got)
	}
	await.Never(t, 500*time.Millisecond, "the Cluster is written while nothing changes, in ten probes", func() bool {
		return p.cluster().ResourceVersion != before.ResourceVersion
	})

	healed := time.Now()
	p.line.Heal()
	await.Equal(t, "True ClusterReady", p.ready)
	if took := time.Since(healed); took < time.Second {
		t.Errorf("ready after %v, before the threshold of 1 s", took)
	}
	await.Equal(t, "1 of 4, 0 to come, 1 nodes", p.allocated)
}

// A cluster that is not there at the first probe is reported as not reachable at once; who collects
// does not wait for it.
func TestDeadFromTheStart(t *testing.T) {
	p := newPlace(t, pushCluster())
	p.line.Cut()
	p.start(collect.CollectorOptions{Every: 50 * time.Millisecond})
	await.Equal(t, "False ClusterNotReachable", p.ready)
}

// A credential that may not list nodes and pods: the cluster is ready, and reports what is missing.
func TestNotAllowedToCount(t *testing.T) {
	p := newPlace(t, pushCluster())
	member := p.line.Config()
	member.Impersonate.UserName = "nobody-in-particular"
	member.Impersonate.Groups = []string{"system:authenticated"}
	p.start(collect.CollectorOptions{Every: 50 * time.Millisecond, Member: member})
	await.True(t, "the message names what cannot be listed", func() bool {
		r := p.cluster().Ready()
		return r != nil && r.Status == metav1.ConditionTrue &&
			strings.Contains(r.Message, "list nodes:") && strings.Contains(r.Message, "list pods:")
	})
	if s := p.cluster().Status; s.ResourceSummary != nil || s.NodeSummary != nil {
		t.Errorf("what was not seen is counted: %v %v", s.NodeSummary, s.ResourceSummary)
	}
}

// docs/validation.md: models that contradict each other are not used.
func TestInvalidModels(t *testing.T) {
	c := pushCluster()
	c.Spec.ResourceModels = []clusterv1alpha1.ResourceModel{{Grade: 0, Ranges: []clusterv1alpha1.ResourceModelRange{
		{Name: "cpu", Min: resource.MustParse("1"), Max: resource.MustParse("2")},
	}}}
	p := newPlace(t, c)
	p.addNode("n1", "4")
	p.start(collect.CollectorOptions{Delay: 50 * time.Millisecond})
	await.Equal(t, "0 of 4, 0 to come, 1 nodes", p.allocated)
	if m := p.cluster().Status.ResourceSummary.AllocatableModelings; len(m) != 0 {
		t.Errorf("nodes are counted by invalid models: %v", m)
	}
}

// Others write the Cluster too: their fields stay.
func TestFieldsOfOthersStay(t *testing.T) {
	p := newPlace(t, pushCluster())
	c := p.cluster()
	c.Status.RemedyActions = []string{"TrafficControl"}
	const theirs = clusterv1alpha1.ConditionServiceDomainNameResolutionReady
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: theirs, Status: metav1.ConditionTrue, Reason: "X"})
	if err := p.hub.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	p.start(collect.CollectorOptions{})
	await.Equal(t, "True ClusterReady", p.ready)
	s := p.cluster().Status
	if len(s.RemedyActions) != 1 || !meta.IsStatusConditionTrue(s.Conditions, theirs) {
		t.Errorf("a collector has changed what is others': %v %v", s.RemedyActions, s.Conditions)
	}
}

// Karmada, pull heartbeat: Lease karmada-cluster/<name> of 40 s; a member that hangs does
// not hold it up.
func TestLease(t *testing.T) {
	p := newPlace(t, pushCluster())
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: clusterv1alpha1.SecretNamespace}}
	if err := p.hub.Create(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "m1"}}
	p.hub.Make(lease)
	p.line.Cut()
	p.start(collect.CollectorOptions{Lease: true})
	await.True(t, "the lease is renewed", func() bool {
		if err := p.hub.Get(t.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
			t.Fatal(err)
		}
		return lease.Spec.RenewTime != nil && *lease.Spec.LeaseDurationSeconds == int32(collect.LeaseDuration/time.Second) && *lease.Spec.HolderIdentity == "m1"
	})
}
