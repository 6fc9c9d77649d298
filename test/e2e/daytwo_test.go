package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/lab/machine"
)

// TestDayTwo: nodes and clusters come, go and stay away. The agents keep two gateways in each
// cluster, the first two nodes.
func TestDayTwo(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "day", Nodes: 3}, walk.Walk{Wire: "vxlan"})
	s.run(t, "datagrams follow the service", testDatagramsFollow)
	s.run(t, "a dead gateway and a new node", testDeadGatewayNewNode)
	s.run(t, "a gateway is replaced", testGatewayReplaced)
	s.run(t, "eight days off", testDaysOff)
	s.run(t, "unjoin while nodes are off", testUnjoinNodesOff) // the last: g1 is no member any more
}

// kindsOf opens a cluster with the kinds of Submariner, the MCS API and our own.
func (s *clusterset) kindsOf(t *testing.T, cluster string) client.Client {
	t.Helper()
	restConfig, err := s.Lab.RESTConfig(cluster)
	must(t, err)
	restConfig.QPS = -1
	log.SetLogger(logr.Discard())
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme, mcs.Install} {
		must(t, add(kinds))
	}
	c, err := client.New(restConfig, client.Options{Scheme: kinds})
	must(t, err)
	return c
}

// afterDeath bounds the time from a gateway's power failure until an object that is made then is
// usable.
const afterDeath = 5 * time.Second

// testDeadGatewayNewNode: one of g2's two gateways loses its power. A service that is exported, an
// egress IP that is requested and a node that registers at that moment are usable 5 s later; the
// node's pods reach the other cluster while the gateway is still off.
func testDeadGatewayNewNode(t *testing.T, s *clusterset) {
	const dead, added, namespace = "g2-n2", "g2-n3", "dead-new"
	ctx := t.Context()
	s.serveOwn(t, namespace)
	s.retire(t, added)
	*s.load = load{} // its sink was on that node
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(s.register(ctx, added, ""), s.Lab.Heal(ctx, dead), s.Lab.Heal(ctx, added)); err != nil {
			t.Error(err)
		}
	})
	// The lease of an agent that dies with the gateway expires after 15 s: that is not measured here.
	s.leadElsewhere(t, dead)
	s.applyQuietly(t, "g2", fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %[1]s}\n", namespace)+fmt.Sprintf(serverOn, "web", "g2-n1", namespace)+
		fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: %s}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n", namespace))
	s.kubectl(t, "g2", "-n", namespace, "wait", "--for=condition=Ready", "pod/web", walk.WaitFlag)
	s.kubectl(t, "g2", "wait", "--for=delete", "nodeindex/"+added, walk.WaitFlag)
	c := s.kindsOf(t, "g2")
	within(t, func() error { // blocks of a node that is gone stay for as long as its flows may last
		var list pelagov1alpha1.PortBlockList
		if err := c.List(ctx, &list); err != nil {
			return err
		}
		left := 0
		for i := range list.Items {
			if list.Items[i].Spec.Node != added {
				continue
			}
			left++
			if err := c.Delete(ctx, &list.Items[i]); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
		if left > 0 {
			return fmt.Errorf("%s had %d port blocks", added, left)
		}
		return nil
	})
	n, err := s.Lab.Plan().Node(added)
	must(t, err)

	killed := time.Now()
	must(t, s.Lab.Kill(ctx, dead))
	t.Logf("%.2f s for the power failure itself", time.Since(killed).Seconds())
	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
	one := 1
	egress := &submarinerv1.GlobalEgressIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: submarinerv1.GlobalEgressIPSpec{
		NumberOfIPs: &one, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: added, Labels: map[string]string{corev1.LabelHostname: added}},
		Spec: corev1.NodeSpec{PodCIDR: n.PodCIDR.String(), PodCIDRs: []string{n.PodCIDR.String()}}}
	for _, o := range []client.Object{export, egress, node} {
		must(t, c.Create(ctx, o))
	}
	blocks := func(match func(pelagov1alpha1.PortBlockSpec) bool) (bool, error) {
		var list pelagov1alpha1.PortBlockList
		err := c.List(ctx, &list)
		active, n := 0, 0
		for _, b := range list.Items {
			if match(b.Spec) {
				n++
				if b.Spec.State == pelagov1alpha1.BlockActive {
					active++
				}
			}
		}
		return n > 0 && active == n, err
	}
	usable := map[string]func() (bool, error){
		"a witness reports it": func() (bool, error) {
			var agents submarinerv1.RouteAgentList
			err := c.List(ctx, &agents, client.InNamespace("pelago-system"))
			return slices.ContainsFunc(agents.Items, func(a submarinerv1.RouteAgent) bool {
				return a.Annotations[submarinerv1.AnnotationSilentGateways] == dead
			}), err
		},
		"the export": func() (bool, error) {
			err := c.Get(ctx, client.ObjectKeyFromObject(export), export)
			return meta.IsStatusConditionTrue(export.Status.Conditions, "Ready"), err
		},
		"the egress IP": func() (bool, error) {
			err := c.Get(ctx, client.ObjectKeyFromObject(egress), egress)
			condition := meta.FindStatusCondition(egress.Status.Conditions, submarinerv1.ConditionAllocated)
			active, err2 := blocks(func(b pelagov1alpha1.PortBlockSpec) bool { return b.Pool.Namespace == namespace })
			return active && condition != nil && condition.Reason == submarinerv1.ReasonSuccess, errors.Join(err, err2)
		},
		"the blocks of the new node": func() (bool, error) {
			return blocks(func(b pelagov1alpha1.PortBlockSpec) bool { return b.Node == added })
		},
	}
	took := map[string]time.Duration{}
	within(t, func() error {
		for end := time.Now().Add(time.Second); len(took) < len(usable) && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			for what, is := range usable {
				if _, done := took[what]; done {
					continue
				}
				if ok, err := is(); err != nil {
					return err
				} else if ok {
					took[what] = time.Since(killed)
				}
			}
		}
		if len(took) < len(usable) {
			return fmt.Errorf("usable so far: %v", took)
		}
		return nil
	})
	for what, d := range took {
		t.Logf("%s: %.1f s after the power failure", what, d.Seconds())
		if d > afterDeath {
			t.Errorf("%s: %.1f s after the power failure, want at most %s", what, d.Seconds(), afterDeath)
		}
	}

	s.boot(t, added)
	s.applyQuietly(t, "g2", fmt.Sprintf(serverOn, "new", added, namespace))
	s.kubectl(t, "g2", "-n", namespace, "wait", "--for=condition=Ready", "pod/new", walk.WaitFlag)
	must(t, s.ReachesAll(ctx, walk.Pod{Cluster: "g2", Namespace: namespace, Name: "new"}, "own."+namespace+".svc.clusterset.local", 1))
	must(t, s.Lab.Heal(ctx, dead))
	within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n2", "g2-n1", "g2-n2") })
	s.kubectl(t, "g2", "delete", "namespace", namespace)
}

// serveOwn exports a service of g1, own, in a namespace.
func (s *clusterset) serveOwn(t *testing.T, namespace string) {
	t.Helper()
	s.applyQuietly(t, "g1", fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %[1]s}\n", namespace)+fmt.Sprintf(serverOn, "own", "g1-n3", namespace)+
		fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: own, namespace: %s}\nspec: {selector: {app: own}, ports: [{port: 80}]}\n", namespace))
	_, err := s.Pelago(t.Context(), "export", "service", "--context", "g1", "--namespace", namespace, "own")
	must(t, err)
	s.kubectl(t, "g1", "-n", namespace, "wait", "serviceexport/own", "--for=condition=Ready", walk.WaitFlag)
}

// leadElsewhere waits until the agent of g2 that leads is not on a node.
func (s *clusterset) leadElsewhere(t *testing.T, node string) {
	t.Helper()
	within(t, func() error {
		leader := s.agentThatLeads(t)
		if on := s.kubectl(t, "g2", "-n", "pelago-system", "get", "pod", leader, "-o", "jsonpath={.spec.nodeName}"); on == node {
			s.killAgent(t, leader)
			return fmt.Errorf("the agent that leads is on %s", on)
		}
		return nil
	})
}

// longestGap bounds the time without an answer when a gateway loses its power; test/failover
// measures it.
const longestGap = 5 * time.Second

// testGatewayReplaced: under traffic from g1, a gateway's Node is deleted, and the agent makes
// another node a gateway; then a gateway is replaced by a machine of the same name.
func testGatewayReplaced(t *testing.T, s *clusterset) {
	l := s.needLoadOn(t, "g1-n3", "g2-n3")
	within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n2", "g2-n1", "g2-n2") })
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 200, l.sink.String()+":7")

	begin := time.Now()
	s.retire(t, "g1-n2")
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(s.register(ctx, "g1-n2", ""), s.Lab.Heal(ctx, "g1-n2")); err != nil {
			t.Error(err)
		}
	})
	within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n3", "g2-n1", "g2-n2") })
	t.Logf("g1-n2 is deleted: g1-n3 is a gateway after %.1f s", time.Since(begin).Seconds())
	within(t, func() error { return s.metricIs(t.Context(), "g1-n3", `pelago_gateway_state{state="serving"}`, 1) })
	s.answered(t, l)

	begin = time.Now()
	s.retire(t, "g1-n1")
	s.newMachine(t, "g1-n1")
	must(t, s.register(t.Context(), "g1-n1", ", "+gatewayLabel+`: "true"`))
	must(t, s.Lab.Heal(t.Context(), "g1-n1"))
	for _, image := range []string{"pelago.tar", "whereami.tar"} {
		must(t, s.loadInto(t, "g1-n1", filepath.Join(s.Images, image)))
	}
	s.boot(t, "g1-n1")
	within(t, func() error { return s.metricIs(t.Context(), "g1-n1", `pelago_gateway_state{state="serving"}`, 1) })
	t.Logf("g1-n1 is another machine: it serves %.1f s after the former one had lost its power", time.Since(begin).Seconds())
	within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n3", "g2-n1", "g2-n2") })
	s.answered(t, l)

	onlyBrokenOf(t, connections)
	p := finish[pings](t, datagrams)
	t.Logf("%d datagrams sent, %d lost at two power failures, longest gap %.0f ms", p.Sent, p.Lost, p.LongestGapMs)
	if gap := time.Duration(p.LongestGapMs) * time.Millisecond; gap > longestGap {
		t.Errorf("no answer for %s, want at most %s", gap, longestGap)
	}
	must(t, s.register(t.Context(), "g1-n2", ""))
	s.boot(t, "g1-n2")
}

// loadInto loads an image into one node.
func (s *clusterset) loadInto(t *testing.T, node, archive string) error {
	t.Helper()
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	return s.Lab.ExecStreams(t.Context(), node, lab.Streams{In: f, Out: io.Discard, Err: t.Output()},
		"ctr", "--address="+machine.Socket, "--namespace=k8s.io", "images", "import", "-")
}

// answered sends requests of new connections, each of which must be answered.
func (s *clusterset) answered(t *testing.T, l load) {
	t.Helper()
	for range 50 {
		if _, err := s.Ask(t.Context(), l.client, l.web.String()); err != nil {
			t.Fatal(err)
		}
	}
}

// off is how long g1 is away, by its tokens.
const off = 8 * 24 * time.Hour

// testDaysOff: g1 is off, and its tokens are made eight days older, so that the hub refuses the one
// with a life of seven days. Clocks cannot be set: a kernel has one for all of the lab, and Go's
// programs read it without a library that could be replaced. What the API server checks is the same.
func testDaysOff(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoadOn(t, "g1-n3", "g2-n3")
	const secretName = "submariner-broker-secret"
	within(t, func() error {
		if s.kubectl(t, "g1", "-n", "pelago-system", "get", "secret", secretName, "-o", "jsonpath={.data."+config.KeyReturnToken+"}") == "" {
			return errors.New("g1 has no return token yet")
		}
		return nil
	})
	for _, node := range s.nodes(t, "g1") {
		must(t, s.Lab.Kill(ctx, node))
	}
	t.Cleanup(func() {
		for _, node := range s.nodes(t, "g1") {
			if err := s.Lab.Heal(context.Background(), node); err != nil {
				t.Error(err)
			}
		}
	})
	c := s.kindsOf(t, "g1")
	secret := &corev1.Secret{}
	must(t, c.Get(ctx, client.ObjectKey{Namespace: "pelago-system", Name: secretName}, secret))
	key := s.signingKey(t, "hub")
	for _, name := range []string{config.KeyBrokerToken, config.KeyReturnToken} {
		secret.Data[name] = []byte(older(t, string(secret.Data[name]), off, key))
	}
	must(t, c.Update(ctx, secret))
	expired := string(secret.Data[config.KeyBrokerToken])
	lists := func(token string) error {
		at := s.atHub(t, "g1")
		at.BearerToken = token
		hub, err := client.New(at, client.Options{})
		must(t, err)
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(submarinerv1.GroupVersion.WithKind("EndpointList"))
		return hub.List(ctx, list, client.InNamespace(brokerNamespace))
	}
	if err := lists(expired); !apierrors.IsUnauthorized(err) {
		t.Fatalf("the hub answers an expired token with %v, want 401", err)
	}
	must(t, lists(string(secret.Data[config.KeyReturnToken])))
	for _, node := range s.nodes(t, "g1") {
		must(t, s.Lab.Heal(ctx, node))
	}
	back := time.Now()
	within(t, func() error {
		events := s.kubectl(t, "g1", "-n", "pelago-system", "get", "events", "--field-selector", "reason=ReturnedToHub,involvedObject.name="+secretName,
			"-o", "jsonpath={.items[*].message}")
		if !strings.Contains(events, "the cluster is back with its return token") {
			return fmt.Errorf("Events on the Secret: %q", events)
		}
		if err := c.Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil {
			return err
		}
		return lists(string(secret.Data[config.KeyBrokerToken]))
	})
	t.Logf("g1 has a new token %.1f s after its nodes were Ready", time.Since(back).Seconds())
	within(t, func() error {
		_, err := s.Ask(ctx, l.client, l.web.String())
		return err
	})
	t.Logf("pods of g1 reach g2 %.1f s after the nodes were Ready", time.Since(back).Seconds())
	// Both directions of the exchange with the hub.
	const namespace = "days-off"
	s.serveOwn(t, namespace)
	must(t, s.Apply(ctx, "g2", fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %[1]s}\n", namespace)+fmt.Sprintf(serverOn, "client", "g2-n3", namespace)))
	s.kubectl(t, "g2", "-n", namespace, "wait", "--for=condition=Ready", "pod/client", walk.WaitFlag)
	must(t, s.ReachesAll(ctx, walk.Pod{Cluster: "g2", Namespace: namespace, Name: "client"}, "own."+namespace+".svc.clusterset.local", 1))
}

// signingKey is the key with which a cluster's API server signs tokens.
func (s *clusterset) signingKey(t *testing.T, cluster string) *ecdsa.PrivateKey {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Lab.Dir(), "cluster", cluster, "pki", "sa.key"))
	must(t, err)
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("the signing key of %s is no PEM", cluster)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	must(t, err)
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		t.Fatalf("the signing key of %s is a %T", cluster, key)
	}
	return ec
}

// older is a token with all times earlier, signed with the key that has signed it (RFC 7515, ES256).
func older(t *testing.T, token string, by time.Duration, key *ecdsa.PrivateKey) string {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("a token has %d parts", len(parts))
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	must(t, err)
	claims := decode[map[string]json.RawMessage](t, string(payload))
	for _, name := range []string{"iat", "nbf", "exp"} {
		at := decode[int64](t, string(claims[name]))
		claims[name] = fmt.Appendf(nil, "%d", at-int64(by.Seconds()))
	}
	payload, err = json.Marshal(claims)
	must(t, err)
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(signed))
	r, v, err := ecdsa.Sign(rand.Reader, key, digest[:])
	must(t, err)
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	v.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// testUnjoinNodesOff: g1 is unjoined while one node has no power and nothing on another runs. unjoin
// names both, also a second time. When they are back they become clean, and then unjoin succeeds.
func testUnjoinNodesOff(t *testing.T, s *clusterset) {
	const dead, stopped = "g1-n2", "g1-n3"
	ctx := t.Context()
	leftovers := func(node string) string {
		return s.node(t, node, "sh", "-c", `ip rule | grep -w 4800
ip route show table 4800
ip -br link | grep pelago
ls /sys/fs/bpf/pelago /sys/fs/bpf/tcx 2>/dev/null
nft list tables 2>/dev/null | grep pelago
iptables-save 2>/dev/null | grep -i pelago
true`)
	}
	for _, node := range s.nodes(t, "g1") {
		if leftovers(node) == "" {
			t.Fatalf("%s has nothing of Pelago", node)
		}
	}
	_, err := s.Pelago(ctx, "unjoin", "--context", "hub", "--clusterid", "g1")
	must(t, err)
	must(t, s.Lab.Kill(ctx, dead))
	must(t, s.Lab.Pause(ctx, stopped))
	t.Cleanup(func() {
		if err := errors.Join(s.Lab.Heal(context.Background(), dead), s.Lab.Heal(context.Background(), stopped)); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		out, err := s.Pelago(ctx, "unjoin", "--context", "g1", "--yes", "--timeout", "20s")
		if err == nil || !strings.Contains(err.Error(), "exit status 1") || !strings.Contains(err.Error(), "nodes "+dead+", "+stopped) {
			t.Fatalf("unjoin with two nodes off: %v\n%s\nwant status 1 and the names %s, %s", err, out, dead, stopped)
		}
	}
	if left := leftovers("g1-n1"); left != "" {
		t.Errorf("g1-n1 was on, and has\n%s", left)
	}
	for _, node := range []string{stopped, dead} {
		must(t, s.Lab.Heal(ctx, node))
		back := time.Now()
		within(t, func() error {
			if left := leftovers(node); left != "" {
				return fmt.Errorf("%s has\n%s", node, left)
			}
			return nil
		})
		t.Logf("%s is clean %.1f s after it was Ready", node, time.Since(back).Seconds())
	}
	_, err = s.Pelago(ctx, "unjoin", "--context", "g1", "--yes")
	must(t, err)
	if namespaces := s.kubectl(t, "g1", "get", "namespaces", "-o", "name"); strings.Contains(namespaces, "pelago-system") {
		t.Errorf("g1 still has the namespace pelago-system")
	}
}

// followsWithin bounds the time until a UDP flow follows a change of its service, or the death of
// its server's node.
const followsWithin = time.Second

// testDatagramsFollow: one socket sends without a pause. Its flow goes to the pod that the Service
// selects, each time that this changes, and to the other pod when the first one's node dies.
func testDatagramsFollow(t *testing.T, s *clusterset) {
	const home, away = "g2-n3", "g2-n1"
	l := s.needLoadOn(t, "g1-n3", home)
	s.applyQuietly(t, "g2", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: echo, namespace: load, labels: {app: echo, udp: echo}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  containers: [{name: echo, image: localhost/whereami:dev, imagePullPolicy: Never, command: [whereami, echo]}]
`, away))
	s.kubectl(t, "g2", "-n", loadNamespace, "label", "pod", "sink", "udp=echo")
	s.kubectl(t, "g2", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod/echo", walk.WaitFlag)
	choose := func(selector string) {
		s.kubectl(t, "g2", "-n", loadNamespace, "patch", "service", "sink", "--type=merge", "-p", `{"spec":{"selector":`+selector+`}}`)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		_, err := s.Quietly(ctx, s.Lab.Kubectl(), "--context", "g2", "-n", loadNamespace, "patch", "service", "sink", "--type=merge", "-p", `{"spec":{"selector":{"app":"sink","udp":null}}}`)
		if err := errors.Join(err, s.Lab.Heal(ctx, home)); err != nil {
			t.Error(err)
		}
	})
	received := func(pod string) int {
		out, err := s.In(t.Context(), walk.Pod{Cluster: "g2", Namespace: loadNamespace, Name: pod}, "sh", "-c", "awk '/^Udp: [0-9]/{print $2}' /proc/net/snmp")
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(out))
		must(t, err)
		return n
	}
	moves := func(pod string) time.Duration {
		before := received(pod)
		return within(t, func() error {
			if received(pod) == before {
				return fmt.Errorf("pod %s has received nothing", pod)
			}
			return nil
		})
	}
	datagrams := s.start(t, l.client, "whereami", "ping", "-rate", "200", l.sink.String()+":7")
	quickest := walk.Patience
	for _, pod := range []string{"echo", "sink", "echo", "sink"} {
		choose(`{"app":"` + pod + `"}`)
		took := moves(pod)
		t.Logf("the Service selects %s: it is sent to after %.2f s", pod, took.Seconds())
		quickest = min(quickest, took)
	}
	if quickest > followsWithin {
		t.Errorf("the flow follows the Service after %s at best, want %s", quickest, followsWithin)
	}
	finish[pings](t, datagrams)

	datagrams = s.ping(t, l.client, 200, l.sink.String()+":7")
	others := received("echo")
	choose(`{"app":null,"udp":"echo"}`)
	within(t, func() error {
		if all := s.kubectl(t, "g2", "-n", loadNamespace, "get", "endpointslices", "-l", "kubernetes.io/service-name=sink", "-o", "jsonpath={.items[*].endpoints[*].targetRef.name}"); len(strings.Fields(all)) != 2 {
			return fmt.Errorf("the Service selects %q", all)
		}
		return nil
	})
	if received("echo") != others {
		t.Error("the flow has left a pod that is still selected")
	}
	must(t, s.Lab.Kill(t.Context(), home))
	moves("echo")
	p := finish[pings](t, datagrams)
	t.Logf("%s is dead: no answer for %.0f ms", home, p.LongestGapMs)
	if gap := time.Duration(p.LongestGapMs) * time.Millisecond; gap > followsWithin {
		t.Errorf("no answer for %s after the death of %s, want %s", gap, home, followsWithin)
	}
}
