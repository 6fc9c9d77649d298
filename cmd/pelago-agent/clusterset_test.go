package main

import (
	"context"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// Ranges of the walk-through: both members have the same pods and services.
var (
	podCIDR     = netip.MustParsePrefix("10.7.0.0/16")
	serviceCIDR = netip.MustParsePrefix("10.77.0.0/16")
	globalRange = netip.MustParsePrefix("120.0.0.0/8")
	fabricCIDR  = netip.MustParsePrefix(config.DefaultFabricCIDR)
)

const gatewayNode = "gw"

func TestMain(m *testing.M) {
	flag.Parse()
	log := slog.DiscardHandler
	if testing.Verbose() {
		log = slog.NewTextHandler(os.Stderr, nil)
	}
	ctrllog.SetLogger(logr.FromSlogHandler(log))
	klog.SetSlogLogger(slog.New(log))
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		// most of their time tests wait for API servers
		if err := parallel.Value.Set("4"); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(builtDir) // empty unless an operator was tested
	os.Exit(code)
}

// clusterset is a hub and two members that have joined it as `pelago join` does, each with a
// gateway node and an agent.
type clusterset struct {
	hub    client.Client   // administrator
	line   *apiserver.Line // between the members and the hub
	config *rest.Config    // administrator of the hub
	g1, g2 *member
	// of all members
	hubID string
	psk   map[string][]byte
	vips  netip.Prefix
}

// member is one of them.
type member struct {
	client.Client // administrator
	id            string
	whole         *testing.T   // the test that the clusterset lives as long as
	config        *rest.Config // administrator
	agent         *rest.Config // the rights of the agent's ServiceAccount
	running       *agent
	stop          func()     // ends the agent
	ended         chan error // gets what the agent returned, if it was not stopped
}

// memberRanges are the addresses of a member; without a GlobalCIDR there is no globalnet, without vips no
// ClusterSetIPs.
type memberRanges struct{ pods, services, global, vips string }

func (r memberRanges) globalCIDRs() []netip.Prefix {
	if r.global == "" {
		return nil
	}
	return []netip.Prefix{netip.MustParsePrefix(r.global)}
}

func newClusterset(t *testing.T) *clusterset {
	t.Helper()
	book, err := broker.NewBook(true, globalRange, 256)
	must(t, err)
	return newClustersetWith(t, book,
		memberRanges{pods: podCIDR.String(), services: serviceCIDR.String(), global: "120.1.0.0/24"},
		memberRanges{pods: podCIDR.String(), services: serviceCIDR.String(), global: "120.2.0.0/24"})
}

// newClustersetWith makes one whose members have these ranges.
func newClustersetWith(t *testing.T, book broker.Book, first, second memberRanges) *clusterset {
	t.Helper()
	ctx := t.Context()
	hubConfig := apiserver.Start(t, apiserver.HubControllers(), installed(t, manifests.HubCRDs))
	must(t, manifests.HubBase(ctx, installer(t, hubConfig), t.Logf))
	hub := newClient(t, hubConfig)
	hubID, err := broker.ClusterUID(ctx, hub)
	must(t, err)
	psk, err := broker.Setup(ctx, hub, book, broker.Clusterset{Mode: "submariner", HubID: hubID, Fabric: fabricCIDR,
		ClusterRanges: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, nil)
	must(t, err)
	must(t, manifests.Hub(ctx, installer(t, hubConfig), t.Logf))
	s := &clusterset{hub: hub, config: hubConfig, line: apiserver.NewLine(t, hubConfig), hubID: hubID, psk: psk.Data, vips: book.ClusterSetIPs}
	s.g1 = s.join(t, "g1", first, "192.0.2.1")
	s.g2 = s.join(t, "g2", second, "192.0.2.2")
	return s
}

// join makes a member: an API server with what `pelago join` installs, a gateway node and a running
// agent.
func (s *clusterset) join(t *testing.T, id string, r memberRanges, address string) *member {
	t.Helper()
	ctx := t.Context()
	cfg := apiserver.Start(t, apiserver.Controllers("namespace-controller", "garbage-collector-controller"), apiserver.ServiceCIDR(r.services),
		installed(t, manifests.MemberCRDs))
	pods, services := netip.MustParsePrefix(r.pods), netip.MustParsePrefix(r.services)
	must(t, manifests.MemberBase(ctx, installer(t, cfg), t.Logf))
	m := &member{id: id, whole: t, Client: newClient(t, cfg), config: cfg, agent: rest.CopyConfig(cfg)}
	m.agent.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:pelago-system:pelago-agent",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:pelago-system", "system:authenticated"},
	}
	uid, err := broker.ClusterUID(ctx, m)
	must(t, err)
	request := broker.Request{ClusterID: id, ClusterUID: uid, Pods: []netip.Prefix{pods}, Services: []netip.Prefix{services}, Fabric: fabricCIDR}
	for _, g := range r.globalCIDRs() {
		request.GlobalCIDR = g
	}
	if r.vips != "" {
		request.ClusterSetIPCIDR = netip.MustParsePrefix(r.vips)
	}
	entry, err := broker.Claim(ctx, s.hub, manifests.BrokerNamespace, request)
	must(t, err)
	proof, err := broker.Identity(ctx, s.hub, manifests.BrokerNamespace, id, "")
	must(t, err)
	token, err := broker.Token(ctx, s.hub, manifests.BrokerNamespace, id, proof)
	must(t, err)
	must(t, broker.Admit(ctx, s.hub, manifests.BrokerNamespace, broker.Member{
		Entry: entry, PodCIDR: []netip.Prefix{pods}, ServiceCIDR: []netip.Prefix{services}, Fabric: fabricCIDR,
	}))
	c := config.Config{
		ClusterID: id, ClusterIndex: uint16(entry.ClusterIndex), GlobalCIDRs: r.globalCIDRs(),
		PodCIDRs: []netip.Prefix{pods}, ServiceCIDRs: []netip.Prefix{services}, FabricCIDR: fabricCIDR,
		Mode: config.ModeSubmariner, CableDriver: config.CableVXLAN, CablePort: 4500,
		HubID: s.hubID, HubServer: "https://" + s.line.Address(), BrokerNamespace: manifests.BrokerNamespace,
		ClusterSetIPCIDRs: entry.ClusterSetIPCIDR, ClusterSetIPRange: s.vips,
	}
	system := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: name}
	}
	m.create(t, &corev1.ConfigMap{ObjectMeta: system(config.ConfigMapName), Data: c.Data()})
	m.create(t, &corev1.Secret{ObjectMeta: system(config.BrokerSecretName), Data: map[string][]byte{
		config.KeyBrokerCA: s.config.CAData, config.KeyNamespace: []byte(manifests.BrokerNamespace),
		config.KeyBrokerToken: []byte(token), config.KeyBrokerServer: []byte(c.HubServer),
	}})
	m.create(t, &corev1.Secret{ObjectMeta: system(config.PSKSecretName), Data: s.psk})
	must(t, manifests.Member(ctx, installer(t, cfg), manifests.MemberOptions{}, t.Logf))
	m.node(t, address)
	m.start()
	return m
}

// start runs the member's agent until stop or the end of the whole test.
func (m *member) start() {
	t := m.whole
	t.Helper()
	a, err := open(t.Context(), m.agent, options{
		metricsAddress: "0", healthAddress: "0", leaderElect: true, roles: roles{network: true}, several: true,
		hubPause: [2]time.Duration{100 * time.Millisecond, time.Second}, interval: time.Second,
	})
	must(t, err)
	m.running = a
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx) }()
	m.ended = ended
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("agent of %s: %v", m.id, err)
		}
	})
	t.Cleanup(m.stop)
}

// node makes a gateway node and plays its node daemon: ready at once, with every address in its
// tables.
func (m *member) node(t *testing.T, address string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gatewayNode, Labels: map[string]string{"submariner.io/gateway": "true"}}}
	m.create(t, n)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	must(t, m.Status().Update(t.Context(), n))
	objects, err := cache.New(m.config, cache.Options{Scheme: m.Scheme()})
	must(t, err)
	changed := make(chan struct{}, 1)
	notify := func(any) {
		select {
		case changed <- struct{}{}:
		default: // a report is due already
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	for _, kind := range []client.Object{&v1alpha1.NodeIndex{}, &submarinerv1.GlobalIngressIP{}, &v1alpha1.PortBlock{}} {
		informer, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		must(t, err)
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: notify, UpdateFunc: func(_, o any) { notify(o) }, DeleteFunc: notify})
		must(t, err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() {
		if err := objects.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		for objects.WaitForCacheSync(ctx) {
			m.report(ctx, objects)
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-time.After(time.Second): // after an error
			}
		}
	})
}

// report writes the status of the gateway's NodeIndex; an error is mended by the next report.
func (m *member) report(ctx context.Context, objects client.Reader) {
	var index v1alpha1.NodeIndex
	if err := objects.Get(ctx, client.ObjectKey{Name: gatewayNode}, &index); err != nil {
		return
	}
	var addresses submarinerv1.GlobalIngressIPList
	var blocks v1alpha1.PortBlockList
	if objects.List(ctx, &addresses) != nil || objects.List(ctx, &blocks) != nil {
		return
	}
	want := v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, BootID: "boot"}
	for _, a := range addresses.Items {
		if !meta.IsStatusConditionTrue(a.Status.Conditions, submarinerv1.ConditionAllocated) {
			want.Acks = append(want.Acks, string(a.UID))
		}
	}
	for _, b := range blocks.Items {
		if b.Spec.State == v1alpha1.BlockPending {
			want.Acks = append(want.Acks, string(b.UID))
		}
	}
	slices.Sort(want.Acks)
	if !cmp.Equal(want, index.Status) {
		index.Status = want
		_ = m.Status().Update(ctx, &index) // a lost write is made up for by the next report
	}
}

func (m *member) create(t *testing.T, objs ...client.Object) {
	t.Helper()
	for _, o := range objs {
		must(t, m.Create(t.Context(), o))
	}
}

func newClient(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	scheme, err := newScheme("v1beta1")
	must(t, err)
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// within waits until check returns an empty text, which reports what is missing, and logs how long
// it took.
func within(t *testing.T, what string, check func() string) {
	t.Helper()
	start := time.Now()
	await.Equal(t, what+": ", func() string { return what + ": " + check() })
	t.Logf("%s: %s", what, time.Since(start).Round(time.Millisecond))
}

// installed starts an API server with definitions that an earlier installation has left.
func installed(t *testing.T, definitions ...func() ([]*unstructured.Unstructured, error)) apiserver.Option {
	t.Helper()
	var names []string
	for _, read := range definitions {
		crds, err := read()
		must(t, err)
		for _, crd := range crds {
			names = append(names, crd.GetName())
		}
	}
	slices.Sort(names)
	return apiserver.InstalledCRDs(manifests.LabelCRDRevision, "1", slices.Compact(names)...)
}

// installer is a client for the functions of deploy.
func installer(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := manifests.NewClient(cfg)
	must(t, err)
	return c
}
