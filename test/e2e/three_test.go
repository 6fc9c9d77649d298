package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestThreeClusters tests what needs a third cluster: choosing between two others, by weight, by
// round-trip time, and after a power failure of one of them.
func TestThreeClusters(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "3", Nodes: 2}, walk.Walk{Clusters: 3, Gateways: 1, Wire: "vxlan", Propagation: true})
	s.run(t, "weights of a ClusterSetIP", testWeights)
	s.run(t, "placement by round-trip time", testNear)
	s.run(t, "power failures", testPowerFailures)
}

const threeNamespace = "three"

// threeClient and threeServers: g1 queries, g2 and g3 answer, on the ClusterSetIP of one service
// and on the global IPs of another.
const threeClient = `apiVersion: v1
kind: Namespace
metadata: {name: three}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: three}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [sleep, infinity]
    securityContext: {capabilities: {add: [NET_ADMIN]}}
`

const threeServers = `apiVersion: v1
kind: Namespace
metadata: {name: three}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: three}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/whereami:dev
        imagePullPolicy: IfNotPresent
        readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
        env:
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
      - {name: echo, image: localhost/whereami:dev, imagePullPolicy: IfNotPresent, command: [whereami, echo]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: three}
spec: {selector: {app: web}, ports: [{name: http, port: 80}, {name: echo, port: 7}, {name: echo-udp, port: 7, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: three}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: web, namespace: three, annotations: {lighthouse.submariner.io/use-clusterset-ip: "true"}}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: plain, namespace: three}
`

// needThree creates the workload and returns the client and the ClusterSetIP.
func (s *clusterset) needThree(t *testing.T) (client walk.Pod, vip string) {
	t.Helper()
	s.applyQuietly(t, "g1", threeClient)
	for _, cluster := range []string{"g2", "g3"} {
		s.applyQuietly(t, cluster, threeServers)
	}
	for _, cluster := range []string{"g2", "g3"} {
		s.kubectl(t, cluster, "-n", threeNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	}
	s.kubectl(t, "g1", "-n", threeNamespace, "wait", "--for=condition=Ready", "pod/client", walk.WaitFlag)
	within(t, func() error {
		out := s.kubectl(t, "g1", "-n", threeNamespace, "get", "serviceimport", "web", "--ignore-not-found", "-o", "jsonpath={.spec.ips[0]} {.status.clusters[*].cluster}")
		fields := strings.Fields(out)
		if len(fields) != 3 {
			return fmt.Errorf("import of web: %q, want an address and two clusters", out)
		}
		vip = fields[0]
		return nil
	})
	return walk.Pod{Cluster: "g1", Namespace: threeNamespace, Name: "client"}, vip
}

// testWeights: of 2,000 connections to a ClusterSetIP g2 gets three quarters, less or more by 5 %
// of all.
func testWeights(t *testing.T, s *clusterset) {
	client, vip := s.needThree(t)
	weights := func(of ...string) {
		t.Helper()
		s.kubectl(t, "g1", append([]string{"-n", threeNamespace, "annotate", "serviceimport", "web", "--overwrite"}, of...)...)
	}
	serving := func() string {
		a, err := s.Ask(t.Context(), client, vip)
		if err != nil {
			return err.Error()
		}
		of, _, _ := strings.Cut(a.Node, "-")
		return of
	}
	only := func(cluster string) { // so that a change of weights is seen to be in use
		t.Helper()
		within(t, func() error {
			for range 5 {
				if by := serving(); by != cluster {
					return fmt.Errorf("a request is answered by %s, want %s", by, cluster)
				}
			}
			return nil
		})
	}
	weights("lighthouse-lb-weight.submariner.io/g2=0", "lighthouse-lb-weight.submariner.io/g3=1")
	only("g3")
	weights("lighthouse-lb-weight.submariner.io/g2=3", "lighthouse-lb-weight.submariner.io/g3=1")
	within(t, func() error {
		if by := serving(); by != "g2" {
			return fmt.Errorf("a request is answered by %s", by)
		}
		return nil
	})
	const requests = 2000
	out, err := s.In(t.Context(), client, "sh", "-c", fmt.Sprintf("for i in $(seq %d); do curl -sS --max-time 10 http://%s/ | grep ^node; done", requests, vip))
	must(t, err)
	counts := map[string]int{}
	for line := range strings.Lines(out) {
		of, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "node: "), "-")
		counts[of]++
	}
	t.Logf("with weights 3 and 1: %v", counts)
	if off := counts["g2"] - requests*3/4; off > requests/20 || off < -requests/20 || counts["g2"]+counts["g3"] != requests {
		t.Errorf("%v of %d requests; want three to one within 5 %%", counts, requests)
	}
	weights("lighthouse-lb-weight.submariner.io/g2-", "lighthouse-lb-weight.submariner.io/g3-")
}

const nearManifests = `apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: near, namespace: default, annotations: {pelago.io/near: '{"cluster": "g1"}'}}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: near}]
  placement:
    clusterAffinity: {clusterNames: [g2, g3]}
    spreadConstraints: [{spreadByField: cluster, minGroups: 1, maxGroups: 1}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: near, namespace: default}
spec:
  replicas: 2
  selector: {matchLabels: {app: near}}
  template:
    metadata: {labels: {app: near}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: whereami, image: "localhost/whereami:dev", imagePullPolicy: Never}]
`

// testNear: with 40 ms between g1 and g2 a template that is to be near g1 runs in g3; when 40 ms
// are between g1 and g3 instead, it moves.
func testNear(t *testing.T, s *clusterset) {
	t.Cleanup(func() {
		_, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "hub", "delete", "--ignore-not-found",
			"deployment/near", "propagationpolicy.policy.karmada.io/near")
		if err := errors.Join(s.Lab.HealPaths(), err); err != nil {
			t.Error(err)
		}
	})
	far := func(cluster string) {
		t.Helper()
		must(t, s.Lab.HealPaths())
		must(t, s.Lab.ImpairPath(t.Context(), "g1", cluster, lab.Impairment{Delay: 20 * time.Millisecond}))
	}
	placed := func() string {
		return s.kubectl(t, "hub", "get", "resourcebindings", "near-deployment", "--ignore-not-found", "-o", "jsonpath={.spec.clusters[*].name}")
	}
	runs := func(in string) {
		t.Helper()
		within(t, func() error {
			if got := placed(); got != in {
				return fmt.Errorf("placed in %q, want %s", got, in)
			}
			if got := s.kubectl(t, in, "get", "deployment", "near", "--ignore-not-found", "-o", "jsonpath={.status.readyReplicas}"); got != "2" {
				return fmt.Errorf("%q replicas are ready in %s, want 2", got, in)
			}
			return nil
		})
	}
	far("g2")
	within(t, func() error { // until the measurement is at the hub
		text := s.kubectl(t, "hub", "get", "clusters.cluster.karmada.io", "g1", "-o", `jsonpath={.status.network[?(@.cluster=="g2")].rtt}`)
		if rtt, err := time.ParseDuration(text); err != nil || rtt < 35*time.Millisecond {
			return fmt.Errorf("round-trip time from g1 to g2: %q, want 40 ms", text)
		}
		return nil
	})
	s.applyQuietly(t, "hub", nearManifests)
	runs("g3")
	_, err := s.Pelago(t.Context(), "why", "deployment", "near", "--context", "hub")
	must(t, err)
	far("g3")
	runs("g2")
	within(t, func() error {
		if got := s.kubectl(t, "g3", "get", "deployment", "near", "--ignore-not-found", "-o", "name"); got != "" {
			return fmt.Errorf("g3 still has %s", got)
		}
		return nil
	})
}

const poweredManifests = `apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: powered, namespace: default, annotations: {pelago.io/failback: WhenHealthy(20s)}}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: powered}]
  placement:
    clusterAffinity: {clusterNames: [g1, g2, g3]}
    replicaScheduling:
      replicaSchedulingType: Divided
      replicaDivisionPreference: Weighted
      weightPreference: {dynamicWeight: AvailableReplicas}
  failover: {cluster: {purgeMode: Gracefully}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: powered, namespace: default}
spec:
  replicas: 9
  selector: {matchLabels: {app: powered}}
  template:
    metadata: {labels: {app: powered}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: whereami, image: "localhost/whereami:dev", imagePullPolicy: Never}]
`

// outage is what one power failure of g3 cost, from its beginning on.
type outage struct {
	dial, slices, dns, moved time.Duration
}

// testPowerFailures: the nodes and the API server of g3 are gone at once, under new connections
// from g1 to a ClusterSetIP that g2 and g3 serve. Connections that g2 serves stay, new ones go to
// g2, g3 leaves EndpointSlices and DNS, its workloads run elsewhere; all of it comes back, nothing
// runs twice, and when g3 has been healthy for a while its replicas return, without fewer than 9
// ready at any time.
func testPowerFailures(t *testing.T, s *clusterset) {
	client, vip := s.needThree(t)
	var outages []outage
	for i := range *rounds {
		o := s.powerFailure(t, client, vip)
		t.Logf("%d: new connections failed for %d ms, endpoints were ready for %d ms, DNS gave the address for %d ms, all replicas ran elsewhere after %.1f s",
			i+1, o.dial.Milliseconds(), o.slices.Milliseconds(), o.dns.Milliseconds(), o.moved.Seconds())
		outages = append(outages, o)
	}
	for name, of := range map[string]func(outage) time.Duration{
		"new connections": func(o outage) time.Duration { return o.dial }, "EndpointSlices": func(o outage) time.Duration { return o.slices },
		"DNS": func(o outage) time.Duration { return o.dns }, "workloads": func(o outage) time.Duration { return o.moved },
	} {
		var all []time.Duration
		for _, o := range outages {
			all = append(all, of(o))
		}
		slices.Sort(all)
		t.Logf("%s of %d: median %d ms, worst %d ms", name, len(all), all[len(all)/2].Milliseconds(), all[len(all)-1].Milliseconds())
	}
}

// dialed is what `whereami load` prints of its new connections.
type dialed struct {
	Dials struct {
		Done   int `json:"done"`
		Failed []struct {
			At int64 `json:"at"` // when it began, in nanoseconds since 1970
		} `json:"failed"`
	} `json:"dials"`
}

func (s *clusterset) powerFailure(t *testing.T, client walk.Pod, vip string) (o outage) {
	ctx := t.Context()
	slice := func() discoveryv1.EndpointSlice {
		t.Helper()
		return s.importedSlice(t, "g3")
	}
	address := func() string { return slice().Endpoints[0].Addresses[0] }
	within(t, func() error {
		if e := slice(); len(e.Endpoints) == 0 || e.Endpoints[0].Conditions.Ready == nil || !*e.Endpoints[0].Conditions.Ready {
			return fmt.Errorf("g3's endpoints of plain are not ready: %v", e.Endpoints)
		}
		return nil
	})
	dead := address()
	dns := s.kubectl(t, "g1", "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
	asking := s.last(t, "g1")
	ask := func() string {
		out, err := s.Lab.Exec(ctx, asking, "dig", "+short", "+time=5", "+tries=3", "@"+dns, "plain.three.svc.clusterset.local")
		must(t, err)
		return strings.TrimSpace(out)
	}
	within(t, func() error {
		if got := ask(); got != dead { // answers take turns
			return fmt.Errorf("plain resolves to %s", got)
		}
		return nil
	})
	s.applyQuietly(t, "hub", poweredManifests)
	placed := func() map[string]string {
		out := s.kubectl(t, "hub", "get", "resourcebindings", "powered-deployment", "--ignore-not-found", "-o", `jsonpath={range .spec.clusters[*]}{.name}={.replicas} {end}`)
		clusters := map[string]string{}
		for field := range strings.FieldsSeq(out) {
			name, replicas, _ := strings.Cut(field, "=")
			clusters[name] = replicas
		}
		return clusters
	}
	ready := func(clusters ...string) (n int) {
		for _, cluster := range clusters {
			text := s.kubectl(t, cluster, "get", "deployment", "powered", "--ignore-not-found", "-o", "jsonpath={.status.readyReplicas}")
			var in int
			_, _ = fmt.Sscan(text, &in) // empty: none
			n += in
		}
		return n
	}
	within(t, func() error {
		if n := ready(s.Members()...); n != 9 || placed()["g3"] == "" {
			return fmt.Errorf("%d of 9 replicas are ready, placed in %v, want some in g3", n, placed())
		}
		return nil
	})

	divided := placed()
	pods := strings.Fields(s.kubectl(t, "g3", "-n", threeNamespace, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}"))
	held := s.hold(t, client, 100, vip+":80")
	load := s.start(t, client, "whereami", "load", "-flows", "8", "-rate", "50", "-connections", "0", "-dials", "50", vip+":7")
	nodes := s.nodes(t, "g3")
	t.Cleanup(func() { must(t, s.restorePower(context.Background(), nodes)) })
	begin := time.Now()
	must(t, s.Lab.CutLink("g3", false))
	// Endpoints and names are watched side by side; the last time that either showed g3 counts.
	var until atomic.Int64
	stopped := make(chan error, 1)
	go func() {
		stopped <- walk.Eventually(ctx, walk.Patience, func() error {
			e, err := s.importedSlices(ctx, "g3")
			if err != nil {
				return err
			}
			for _, slice := range e {
				for _, endpoint := range slice.Endpoints {
					if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
						until.Store(int64(time.Since(begin)))
						return errors.New("g3's endpoints are ready")
					}
				}
			}
			return nil
		})
	}()
	for none := 0; none < 20; none++ {
		if ask() == dead {
			o.dns, none = time.Since(begin), -1
		}
		if time.Since(begin) > walk.Patience {
			t.Fatalf("plain still resolves to %s %s after g3 lost its power", dead, o.dns)
		}
	}
	must(t, <-stopped)
	o.slices = time.Duration(until.Load())
	for _, node := range nodes {
		must(t, s.Lab.Kill(ctx, node))
	}
	within(t, func() error {
		if n := ready("g1", "g2"); n != 9 {
			return fmt.Errorf("%d of 9 replicas are ready in g1 and g2", n)
		}
		return nil
	})
	o.moved = time.Since(begin)
	result := finish[dialed](t, load)
	for _, d := range result.Dials.Failed {
		o.dial = max(o.dial, time.Unix(0, d.At).Sub(begin))
	}
	t.Logf("%d new connections succeeded, %d failed", result.Dials.Done, len(result.Dials.Failed))
	if last := begin.Add(o.dial); result.Dials.Done == 0 || time.Since(last) < 10*time.Second {
		t.Errorf("new connections: %d succeeded, the last that failed began %s after the power failure", result.Dials.Done, o.dial)
	}
	if h := onlyBrokenOf(t, held, pods...); len(h.Broken) == 0 {
		t.Error("no held connection broke, although g3 served some")
	}

	must(t, s.restorePower(ctx, nodes))
	within(t, func() error {
		if got := ask(); got != dead {
			return fmt.Errorf("plain resolves to %s, never to g3's address", got)
		}
		return nil
	})
	healed := time.Now()
	within(t, func() error {
		now := placed()
		if n := ready("g1", "g2", "g3"); n < 9 {
			t.Errorf("%d of 9 replicas are ready while those of g3 return", n)
		}
		if s.returning(t) || !maps.Equal(now, divided) {
			return fmt.Errorf("placed in %v, want %v as before the power failure, and no eviction task", now, divided)
		}
		for cluster, replicas := range now {
			if n := ready(cluster); fmt.Sprint(n) != replicas {
				return fmt.Errorf("%d replicas are ready in %s, want %s", n, cluster, replicas)
			}
		}
		return nil
	})
	t.Logf("the replicas of g3 were back %.1f s after its endpoints", time.Since(healed).Seconds())
	s.kubectl(t, "hub", "delete", "deployment/powered", "propagationpolicy.policy.karmada.io/powered")
	within(t, func() error {
		if n := ready(s.Members()...); n != 0 {
			return fmt.Errorf("%d replicas of a deleted template are left", n)
		}
		return nil
	})
	return o
}

// returning reports whether clusters still have the replicas that return to another one.
func (s *clusterset) returning(t *testing.T) bool {
	return s.kubectl(t, "hub", "get", "resourcebindings", "powered-deployment", "-o", "jsonpath={.spec.gracefulEvictionTasks}") != ""
}

// restorePower switches the nodes of g3 on, and its link.
func (s *clusterset) restorePower(ctx context.Context, nodes []string) error {
	errs := []error{s.Lab.HealLink("g3")}
	for _, node := range nodes {
		errs = append(errs, s.Lab.Heal(ctx, node))
	}
	return errors.Join(errs...)
}

// importedSlices are g1's EndpointSlices of service plain from a cluster.
func (s *clusterset) importedSlices(ctx context.Context, from string) ([]discoveryv1.EndpointSlice, error) {
	client, err := s.Lab.Clientset("g1")
	if err != nil {
		return nil, err
	}
	list, err := client.DiscoveryV1().EndpointSlices(threeNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "multicluster.kubernetes.io/service-name=plain,multicluster.kubernetes.io/source-cluster=" + from})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// importedSlice is the one that g1 has, once it has one.
func (s *clusterset) importedSlice(t *testing.T, from string) (slice discoveryv1.EndpointSlice) {
	t.Helper()
	within(t, func() error {
		list, err := s.importedSlices(t.Context(), from)
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("g1 has %d EndpointSlices of plain from %s, want 1", len(list), from)
		}
		if err == nil {
			slice = list[0]
		}
		return err
	})
	return slice
}
