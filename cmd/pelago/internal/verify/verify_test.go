package verify

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// testCluster is member number n of a clusterset with globalnet, whose pods are ready and whose
// exports are published at once.
func testCluster(t *testing.T, n int, objects ...client.Object) *Cluster {
	t.Helper()
	scheme, err := manifests.Scheme()
	if err = errors.Join(err, mcs.Install(scheme)); err != nil {
		t.Fatal(err)
	}
	p := netip.MustParsePrefix
	cfg := config.Config{ClusterID: fmt.Sprintf("g%d", n), ClusterIndex: uint16(n), Mode: config.ModeSubmariner, CableDriver: config.CableWireGuard, CablePort: 4500,
		PodCIDRs: []netip.Prefix{p("10.7.0.0/16")}, ServiceCIDRs: []netip.Prefix{p("10.77.0.0/16")}, FabricCIDR: p("241.0.0.0/8"),
		GlobalCIDRs: []netip.Prefix{p(fmt.Sprintf("120.%d.0.0/24", n))}, GlobalRange: p("120.0.0.0/8"),
		ClusterSetIPCIDRs: []netip.Prefix{p(fmt.Sprintf("243.0.%d.0/28", n))}, ClusterSetIPRange: p("243.0.0.0/8"),
		HubID: "hub", HubServer: "https://hub:6443", BrokerNamespace: config.DefaultBrokerNamespace}
	mapper := meta.NewDefaultRESTMapper(scheme.PrioritizedVersionsAllGroups())
	for gvk := range scheme.AllKnownTypes() {
		mapper.Add(gvk, meta.RESTScopeNamespace)
	}
	objects = append(objects, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: cfg.Data()})
	c := ctrlfake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			switch o := o.(type) {
			case *corev1.Pod:
				o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			case *unstructured.Unstructured:
				o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True", "reason": "Exported"}}}
			}
			return c.Create(ctx, o, opts...)
		},
	}).Build()
	daemon := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.NodeDaemonSet}}
	daemon.Spec.Template.Spec.Containers = []corev1.Container{{Name: manifests.NodeDaemonSet, Image: "registry/pelago:v1", ImagePullPolicy: corev1.PullNever}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{submarinerv1.LabelGateway: "true"}}}
	out, err := Open(t.Context(), view.Member{Client: c, Typed: fake.NewClientset(daemon, node)}, "")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wire is an Exec that replies as a working clusterset does; change alters replies.
type wire struct {
	mu     sync.Mutex
	seen   []string
	change func(from *Cluster, p Probe, r *Reply)
	err    error
}

func (w *wire) exec(_ context.Context, from *Cluster, probes []Probe, input io.Reader) ([]Reply, error) {
	if w.err != nil {
		return nil, w.err
	}
	if _, err := io.Copy(io.Discard, input); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var replies []Reply
	for _, p := range probes {
		w.seen = append(w.seen, from.ID()+" "+string(p.Kind)+" "+p.Address)
		to := strings.TrimPrefix(p.Cluster, "g")
		if to == "" {
			to = strings.TrimSuffix(strings.TrimPrefix(p.Address, "web-g"), domain+":8080")
		}
		r := Reply{Answer: Answer{Cluster: "g" + to, Pod: p.Pod, Source: "120." + strings.TrimPrefix(from.ID(), "g") + ".0.3:1025"}, Remote: "120." + to + ".0.9:8080"}
		if strings.HasPrefix(p.Address, "vip") {
			r.Remote = "243.0." + to + ".1:8080"
		}
		switch p.Kind {
		case Datagram:
			r.Sent = 40
		case Transfer:
			r.Down, r.Up = 9e8, 8e8
		}
		if w.change != nil {
			w.change(from, p, &r)
		}
		replies = append(replies, r)
	}
	return replies, nil
}

var update = flag.Bool("update", false, "write testdata")

func quiet(string, ...any) {}

// A working clusterset passes every step, each cluster from each other, and nothing is left.
func TestAcceptance(t *testing.T) {
	w := &wire{}
	a := Acceptance{Clusters: []*Cluster{testCluster(t, 1), testCluster(t, 2)}, Failover: true, Exec: w.exec, Progress: quiet}
	if err := a.Validate(); err != nil {
		t.Fatal(err)
	}
	outcomes, err := a.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"table", "json", "junit"} {
		var out bytes.Buffer
		if err := Print(&out, form, outcomes); err != nil {
			t.Fatal(err)
		}
		golden(t, filepath.Join("testdata", "outcomes."+form), out.String())
	}
	for _, want := range []string{"g1 request server-1.g2.headless-g2.pelago-verify.svc.clusterset.local.:8080", "g2 request vip-g1.pelago-verify.svc.clusterset.local.:8080",
		"g2 datagram web-g1.pelago-verify.svc.clusterset.local.:8080"} {
		if !slices.Contains(w.seen, want) {
			t.Errorf("%q was not tried", want)
		}
	}
	var pod corev1.Pod
	if err := a.Clusters[0].Client.Get(t.Context(), key("client"), &pod); err != nil || pod.Spec.Containers[0].Image != "registry/pelago:v1" ||
		pod.Spec.Containers[0].ImagePullPolicy != corev1.PullNever {
		t.Errorf("the client's pod: %v, %+v", err, pod.Spec.Containers)
	}
	if err := Cleanup(t.Context(), a.Clusters, quiet); err != nil {
		t.Fatal(err)
	}
	for _, c := range a.Clusters {
		if err := c.Client.Get(t.Context(), client.ObjectKey{Name: Namespace}, &corev1.Namespace{}); client.IgnoreNotFound(err) != nil || err == nil {
			t.Errorf("cluster %s has the namespace: %v", c.ID(), err)
		}
	}
}

// Each fault fails its step, between the clusters that have it, with the reason.
func TestFaults(t *testing.T) {
	from1 := func(prefix string, change func(*Reply)) func(*Cluster, Probe, *Reply) {
		return func(from *Cluster, p Probe, r *Reply) {
			if from.ID() == "g1" && strings.HasPrefix(p.Address, prefix) {
				change(r)
			}
		}
	}
	for name, tt := range map[string]struct {
		change func(*Cluster, Probe, *Reply)
		err    error
		failed int
		step   string
		reason string
	}{
		"no answer":          {from1("web-g2", func(r *Reply) { r.Err = "i/o timeout" }), nil, 3, "service", "i/o timeout"},
		"source of the pod":  {from1("web-g2", func(r *Reply) { r.Answer.Source = "10.7.0.4:1025" }), nil, 1, "service", "10.7.0.4:1025, which is not of the GlobalCIDR of cluster g1"},
		"address of the pod": {from1("web-g2", func(r *Reply) { r.Remote = "10.77.0.4:8080" }), nil, 1, "service", "10.77.0.4:8080, which is not of the GlobalCIDR of cluster g2"},
		"headless":           {from1("server-1.g2", func(r *Reply) { r.Err = "no such host" }), nil, 1, "headless", "no such host"},
		"loss":               {from1("web-g2", func(r *Reply) { r.Lost = r.Sent / 10 }), nil, 1, "udp", "4 of 40 datagrams lost"},
		"little loss":        {from1("web-g2", func(r *Reply) { r.Lost = r.Sent / 20 }), nil, 0, "", ""},
		"no ClusterSetIP":    {from1("vip-g2", func(r *Reply) { r.Remote = "120.2.0.4:8080" }), nil, 1, "ClusterSetIP", "no ClusterSetIP of 243.0.0.0/8"},
		"own ClusterSetIP":   {from1("vip.", func(r *Reply) { r.Err = "cluster g2 answers" }), nil, 1, "own ClusterSetIP", "g2 answers"},
		"no exec":            {nil, errors.New("pods/exec is forbidden"), 14, "service", "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &wire{change: tt.change, err: tt.err}
			a := Acceptance{Clusters: []*Cluster{testCluster(t, 1), testCluster(t, 2)}, Exec: w.exec, Progress: quiet}
			outcomes, err := a.Run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n := Count(outcomes, Failed); n != tt.failed {
				t.Errorf("%d steps failed, want %d: %+v", n, tt.failed, outcomes)
			}
			if tt.step == "" {
				return
			}
			i := slices.IndexFunc(outcomes, func(o Outcome) bool { return o.Verdict == Failed })
			if i < 0 || outcomes[i].Step != tt.step || outcomes[i].From != "g1" || !strings.Contains(outcomes[i].Detail, tt.reason) {
				t.Errorf("outcomes %+v", outcomes)
			}
		})
	}
}

// Without globalnet the server must see an address of a pod; without ClusterSetIPs these steps are
// skipped.
func TestFlat(t *testing.T) {
	for source, failed := range map[string]int{"10.7.0.4:1025": 0, "192.0.2.11:1025": 2} {
		clusters := []*Cluster{testCluster(t, 1), testCluster(t, 2)}
		for _, c := range clusters {
			c.Config.GlobalCIDRs, c.Config.ClusterSetIPCIDRs = nil, nil
		}
		w := &wire{change: func(_ *Cluster, _ Probe, r *Reply) { r.Answer.Source = source }}
		a := Acceptance{Clusters: clusters, Exec: w.exec, Progress: quiet}
		outcomes, err := a.Run(t.Context())
		if err != nil || Count(outcomes, Failed) != failed || Count(outcomes, Skipped) != 4 {
			t.Errorf("source %s: %v, %+v", source, err, outcomes)
		}
	}
}

// Each cluster measures towards each, its own too; a pair that fails is named beside the others.
func TestBenchmark(t *testing.T) {
	w := &wire{change: func(from *Cluster, p Probe, r *Reply) {
		r.Down, r.Up, r.Requests, r.P50, r.P99, r.Slowest = 9e8, 8e8, 100, 300*time.Microsecond, time.Millisecond, 2*time.Millisecond
		if from.ID() == "g2" && strings.HasPrefix(p.Address, "web-g1") {
			r.Err = "i/o timeout"
		}
	}}
	for kind, want := range map[Kind]string{
		Throughput: "FROM   TO   DOWN Mbit/s   UP Mbit/s\ng1     g1   900           800\ng1     g2   900           800\ng2     g1   failed        -\ng2     g2   900           800\n\n",
		Latency:    "FROM   TO   REQUESTS   P50     P99   SLOWEST\ng1     g1   100        300µs   1ms   2ms\ng1     g2   100        300µs   1ms   2ms\ng2     g1   failed     -       -     -\ng2     g2   100        300µs   1ms   2ms\n\n",
	} {
		a := Acceptance{Clusters: []*Cluster{testCluster(t, 1), testCluster(t, 2)}, Exec: w.exec, Progress: quiet}
		all, err := a.Benchmark(t.Context(), kind, time.Second)
		if err == nil || !strings.Contains(err.Error(), "from g2 to g1: i/o timeout") {
			t.Errorf("%s: error %v", kind, err)
		}
		var out bytes.Buffer
		if err := view.PrintTables(&out, "table", Measurements(kind, all)); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s", kind, err, &out)
		}
	}
}

// Clusters that cannot be verified together are refused.
func TestValidate(t *testing.T) {
	one, two, other := testCluster(t, 1), testCluster(t, 2), testCluster(t, 3)
	other.Config.HubID = "another"
	for want, clusters := range map[string][]*Cluster{
		"needs two": {one}, "two contexts": {one, one}, "different clustersets": {one, other}, "": {one, two},
	} {
		a := Acceptance{Clusters: clusters}
		if err := a.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	empty := view.Member{Client: ctrlfake.NewClientBuilder().WithScheme(scheme).Build(), Typed: fake.NewClientset()}
	if _, err := Open(t.Context(), empty, ""); !errors.Is(err, ErrNoMember) {
		t.Errorf("a cluster that has not joined: %v", err)
	}
}

// An interrupt ends the run: the step that it cuts off has not failed, and no later one is tried.
func TestInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	w := &wire{change: func(_ *Cluster, p Probe, r *Reply) {
		if p.Kind == Datagram {
			interrupt()
			r.Err = "canceled"
		}
	}}
	a := Acceptance{Clusters: []*Cluster{testCluster(t, 1), testCluster(t, 2)}, Failover: true, Exec: w.exec, Progress: quiet}
	outcomes, err := a.Run(ctx)
	last := outcomes[len(outcomes)-1]
	if !errors.Is(err, context.Canceled) || Count(outcomes, Failed) > 0 || Count(outcomes, Skipped) != 2 || last.Step != "udp" {
		t.Errorf("%v, %+v", err, outcomes)
	}
}

// A namespace that no run has made stays, and nothing is made beside it.
func TestForeignNamespace(t *testing.T) {
	foreign := testCluster(t, 1, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}})
	a := Acceptance{Clusters: []*Cluster{foreign, testCluster(t, 2)}, Exec: (&wire{}).exec, Progress: quiet}
	if _, err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "has no label") {
		t.Errorf("error %v", err)
	}
	if err := foreign.Client.Get(t.Context(), client.ObjectKey{Name: Namespace}, &corev1.Namespace{}); err != nil {
		t.Error(err)
	}
}

// What the client pod reads and prints.
func TestInClient(t *testing.T) {
	at := server(t, Answer{Cluster: "g2"})
	var out bytes.Buffer
	if err := InClient(t.Context(), strings.NewReader(fmt.Sprintf(`[{"kind": "request", "address": %q}]`, at)), &out); err != nil ||
		!strings.Contains(out.String(), `"cluster":"g2"`) {
		t.Errorf("%v, %s", err, &out)
	}
	if err := InClient(t.Context(), strings.NewReader("{"), &out); err == nil {
		t.Error("input that is no JSON is taken")
	}
}

// Facts of nodes: MTU of the device with the address, and UDP ports; a pod that fails is named
// beside the facts of the others, and everything is removed.
func TestNodes(t *testing.T) {
	nodes := []runtime.Object{}
	for _, name := range []string{"n1", "n2", "w1"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		if name == "w1" {
			n.Labels[corev1.LabelOSStable] = "windows"
		}
		nodes = append(nodes, n)
	}
	for broken, want := range map[string]string{"": "", "n2": "pod on node n2, image registry/pelago:v1: Error, exit status 1 no device"} {
		var ran []string
		scheme, err := manifests.Scheme()
		if err != nil {
			t.Fatal(err)
		}
		c := ctrlfake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				if p, ok := o.(*corev1.Pod); ok {
					ran = append(ran, p.Spec.NodeName)
					ended := &corev1.ContainerStateTerminated{Message: fmt.Sprintf(`{"node": %q, "device": "eth0", "mtu": 1500, "udp": [4800]}`, p.Spec.NodeName)}
					p.Status.Phase = corev1.PodSucceeded
					if p.Spec.NodeName == broken {
						p.Status.Phase, ended = corev1.PodFailed, &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: "no device"}
					}
					p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: ended}}}
					if !p.Spec.HostNetwork || len(p.Spec.Containers[0].SecurityContext.Capabilities.Drop) == 0 {
						t.Errorf("the pod is %+v", p.Spec)
					}
				}
				return c.Create(ctx, o, opts...)
			},
		}).Build()
		facts, err := Nodes(t.Context(), view.Member{Client: c, Typed: fake.NewClientset(nodes...)}, "registry/pelago:v1", quiet)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("broken %q: %v", broken, err)
		}
		if n := 2 - len(broken)/2; len(facts) != n || facts[0].Node != "n1" || facts[0].MTU != 1500 || !slices.Equal(ran, []string{"n1", "n2"}) {
			t.Errorf("broken %q: facts %+v by pods on %q", broken, facts, ran)
		}
		if err := c.Get(t.Context(), client.ObjectKey{Name: Namespace}, &corev1.Namespace{}); err == nil {
			t.Error("the namespace stays")
		}
	}
}

func TestReadNode(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
  123: 0100007F:12C0 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 0
  124: 00000000000000000000000000000000:1194 00000000000000000000000000000000:0000 07 0 0 0 0 0 0 0 0
`
	f, err := ReadNode("n1", "127.0.0.1", strings.NewReader(table), strings.NewReader(table))
	if err != nil || f.Device != "lo" || f.MTU < 1500 || !slices.Equal(f.UDP, []uint16{4500, 4800}) {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := ReadNode("n1", "192.0.2.77"); err == nil || !strings.Contains(err.Error(), "192.0.2.77") {
		t.Errorf("an address of no device: %v", err)
	}
	if _, err := ReadNode("n1", "127.0.0.1", strings.NewReader("1: 0100007F:xyz 0\n")); err == nil {
		t.Error("a port that is no number is taken")
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got\n%s", file, diff)
	}
}
