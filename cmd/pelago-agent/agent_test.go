package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/test/await"
)

// TestClusterset runs agents of two members against real API servers. The parts use one clusterset.
// Most keep apart by namespaces and run at the same time; the others change what all share.
func TestClusterset(t *testing.T) {
	t.Parallel()
	s := newClusterset(t)
	t.Run("peers know each other", s.testPeers)
	t.Run("apart", func(t *testing.T) {
		for name, part := range map[string]func(*testing.T){
			"export and un-export":           s.testExport,
			"headless":                       s.testHeadless,
			"what the cache holds":           s.testCache,
			"what cannot be exported":        s.testInvalid,
			"two clusters with other ports":  s.testConflict,
			"a namespace that comes later":   s.testLateNamespace,
			"what others made is left alone": s.testForeign,
			"a hundred exports at once":      s.testMany,
			"the token is renewed":           s.testToken,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				part(t)
			})
		}
	})
	t.Run("a dead gateway is not waited for", s.testDeadGateway)
	t.Run("hub away", s.testHubAway)
	t.Run("agent started while the hub is away", s.testStartWithoutHub)
	t.Run("the hub moves", s.testHubMoves)
	t.Run("a gateway goes, a cluster goes", s.testLeaving)
	t.Run("a new configuration ends the agent", s.testNewConfiguration)
}

var web = corev1.ServicePort{Name: "http", Port: 80}

func (s *clusterset) testExport(t *testing.T) {
	const ns, name = "sample", "whereami-cs"
	namespace(t, ns, s.g1, s.g2)
	service := s.g2.service(t, ns, name, web)
	clusterIP := service.Spec.ClusterIP
	start := time.Now()
	s.g2.export(t, ns, name)
	within(t, "Ready", s.g2.conditionIs(ns, name, "Ready", "True/Exported: Service was successfully exported to the broker"))
	global := s.g2.address(t, ns, name)
	if !strings.HasPrefix(global, "120.2.0.") {
		t.Errorf("global IP %s is not of 120.2.0.0/24", global)
	}
	for kind, want := range map[string]string{
		"Valid":    "True/Valid",
		"Synced":   "True/Exported: ServiceImport was successfully synced to the broker",
		"Conflict": "False/NoConflicts",
	} {
		within(t, kind, s.g2.conditionIs(ns, name, kind, want))
	}
	within(t, "hub", s.atHubIs(ns, name,
		"contribution g2.sample.whereami-cs ["+global+"]", "slice of g2: "+global+", port 80"))
	within(t, "g1", s.g1.viewIs(ns, name,
		"import ClusterSetIP TCP/80 g2",
		"copy whereami-cs-sample-g2: ClusterSetIP TCP/80 "+global,
		"slice of g2: "+global+", port 80"))
	within(t, "g2", s.g2.viewIs(ns, name,
		"import ClusterSetIP TCP/80 g2",
		"copy whereami-cs-sample-g2: ClusterSetIP TCP/80 "+global,
		"slice of g2: "+clusterIP+", port 80"))
	t.Logf("export to import in both clusters: %s", time.Since(start).Round(time.Millisecond))
	s.checkLabels(t, ns)

	s.g2.backends(t, service, backend("10.7.0.9", &corev1.Pod{}, false))
	within(t, "no backend ready", s.g1.viewIs(ns, name,
		"import ClusterSetIP TCP/80 g2",
		"copy whereami-cs-sample-g2: ClusterSetIP TCP/80 "+global,
		"slice of g2: "+global+" unready, port 80"))

	s.g2.unexport(t, ns, name)
	within(t, "hub is clean", s.atHubIs(ns, name))
	within(t, "g1 is clean", s.g1.viewIs(ns, name))
	within(t, "g2 is clean", s.g2.viewIs(ns, name))
}

// checkLabels: imported slices must never become backends of a local Service.
func (s *clusterset) checkLabels(t *testing.T, ns string) {
	t.Helper()
	for _, m := range []*member{s.g1, s.g2} {
		for _, slice := range m.importedSlices(t, ns) {
			if _, ok := slice.Labels["kubernetes.io/service-name"]; ok {
				t.Errorf("%s in %s has the label kubernetes.io/service-name", slice.Name, m.id)
			}
			for key, want := range map[string]string{
				"service.kubernetes.io/service-proxy-name": "pelago",
				"endpointslice.kubernetes.io/managed-by":   "lighthouse-agent.submariner.io",
				"lighthouse.submariner.io/is-headless":     "false",
			} {
				if slice.Labels[key] != want {
					t.Errorf("%s in %s: label %s=%q, want %q", slice.Name, m.id, key, slice.Labels[key], want)
				}
			}
		}
	}
}

func (s *clusterset) testHeadless(t *testing.T) {
	const ns, name = "headless", "whereami-ss"
	namespace(t, ns, s.g1, s.g2)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{web}},
	}
	s.g2.create(t, service)
	first, second := s.g2.pod(t, ns, "whereami-0"), s.g2.pod(t, ns, "whereami-1")
	s.g2.backends(t, service, backend("10.7.0.10", first, true), backend("10.7.0.11", second, true))
	s.g2.export(t, ns, name)
	within(t, "Ready", s.g2.conditionIs(ns, name, "Ready", "True"))
	zero, one := s.g2.address(t, ns, "pod-whereami-0"), s.g2.address(t, ns, "pod-whereami-1")
	within(t, "g1", s.g1.viewIs(ns, name,
		"import Headless TCP/80 g2",
		"copy whereami-ss-headless-g2: Headless TCP/80",
		fmt.Sprintf("slice of g2: whereami-0=%s, whereami-1=%s, port 8080", zero, one)))
	within(t, "g2", s.g2.viewIs(ns, name,
		"import Headless TCP/80 g2",
		"copy whereami-ss-headless-g2: Headless TCP/80",
		"slice of g2: whereami-0=10.7.0.10, whereami-1=10.7.0.11, port 8080"))

	// The second pod is replaced by another of its name, as a StatefulSet does it: its address is
	// another one.
	must(t, s.g2.Delete(t.Context(), second, client.GracePeriodSeconds(0)))
	s.g2.backends(t, service, backend("10.7.0.10", first, true), backend("10.7.0.12", s.g2.pod(t, ns, "whereami-1"), false))
	within(t, "g1 after a pod was replaced", func() string {
		got := strings.Join(s.g1.view(ns, name), "\n")
		if !strings.Contains(got, "whereami-0="+zero) || !strings.Contains(got, " unready") || strings.Contains(got, one+" ") {
			return got
		}
		return ""
	})
	if got := s.g2.condition(ns, name, "Ready"); !strings.HasPrefix(got, "True") {
		t.Errorf("Ready after a pod has come: %s", got)
	}
	must(t, s.g2.Delete(t.Context(), service))
	within(t, "g1 after the Service was deleted", s.g1.viewIs(ns, name))
	within(t, "Valid", s.g2.conditionIs(ns, name, "Valid", "False/NoService: ServiceUnavailable"))
}

func (s *clusterset) testInvalid(t *testing.T) {
	const ns = "invalid"
	namespace(t, ns, s.g1, s.g2)
	s.g1.create(t, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "outside"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"},
	})
	s.g1.export(t, ns, "outside")
	s.g1.export(t, ns, "missing")
	within(t, "ExternalName", s.g1.conditionIs(ns, "outside", "Valid", "False/InvalidServiceType: UnsupportedServiceType"))
	within(t, "no Service", s.g1.conditionIs(ns, "missing", "Valid", "False/NoService: ServiceUnavailable"))
	for _, name := range []string{"outside", "missing"} {
		if lines := append(s.atHub(ns, name), s.g2.view(ns, name)...); len(lines) > 0 {
			t.Errorf("%s: %q", name, lines)
		}
	}
}

func (s *clusterset) testConflict(t *testing.T) {
	const ns, name = "conflict", "web"
	namespace(t, ns, s.g1, s.g2)
	s.g1.service(t, ns, name, web)
	s.g2.service(t, ns, name, corev1.ServicePort{Name: "metrics", Port: 9090})
	s.g1.export(t, ns, name)
	within(t, "g1 alone", s.g1.conditionIs(ns, name, "Conflict", "False/NoConflicts"))
	time.Sleep(1100 * time.Millisecond) // creation times have seconds
	s.g2.export(t, ns, name)
	for _, m := range []*member{s.g1, s.g2} {
		within(t, "conflict in "+m.id, m.conditionIs(ns, name, "Conflict", "True/PortConflict: ports: 1/2 clusters disagree with the oldest export, that of cluster g1"))
		within(t, "union in "+m.id, func() string {
			if lines := m.view(ns, name); len(lines) == 0 || lines[len(lines)-3] != "import ClusterSetIP TCP/80 TCP/9090 g1 g2" {
				return fmt.Sprintf("%q", lines)
			}
			return ""
		})
	}
	s.g1.unexport(t, ns, name)
	within(t, "conflict ends", s.g2.conditionIs(ns, name, "Conflict", "False/NoConflicts"))
}

func (s *clusterset) testLateNamespace(t *testing.T) {
	const ns, name = "late", "web"
	namespace(t, ns, s.g2)
	s.g2.service(t, ns, name, web)
	s.g2.export(t, ns, name)
	within(t, "Ready", s.g2.conditionIs(ns, name, "Ready", "True"))
	global := s.g2.address(t, ns, name)
	copied := "copy web-late-g2: ClusterSetIP TCP/80 " + global
	within(t, "only a copy in g1", s.g1.viewIs(ns, name, copied))
	namespace(t, ns, s.g1)
	all := []string{copied, "import ClusterSetIP TCP/80 g2", "slice of g2: " + global + ", port 80"}
	within(t, "imported once the namespace is there", s.g1.viewIs(ns, name, all...))

	must(t, s.g1.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	within(t, "namespace gone", s.g1.viewIs(ns, name, copied))
	within(t, "namespace finalized", func() string {
		if err := s.g1.Get(t.Context(), client.ObjectKey{Name: ns}, &corev1.Namespace{}); client.IgnoreNotFound(err) != nil || err == nil {
			return fmt.Sprint("still there: ", err)
		}
		return ""
	})
	namespace(t, ns, s.g1)
	within(t, "imported again", s.g1.viewIs(ns, name, all...))
}

// testForeign: a ServiceImport and a copy's name that another component has are not touched.
func (s *clusterset) testForeign(t *testing.T) {
	const ns, name = "foreign", "web"
	namespace(t, ns, s.g1, s.g2)
	theirs := &mcs.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"theirs": "yes"}},
		Spec:       mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, Ports: []mcs.ServicePort{{Port: 1}}},
	}
	s.g1.create(t, theirs)
	s.g2.service(t, ns, name, web)
	s.g2.export(t, ns, name)
	within(t, "Event about it", func() string {
		var events corev1.EventList
		if err := s.g1.List(t.Context(), &events, client.InNamespace(ns)); err != nil {
			return err.Error()
		}
		for _, e := range events.Items {
			if e.Reason == "NotImported" {
				return ""
			}
		}
		return "no Event NotImported"
	})
	s.g2.unexport(t, ns, name)
	within(t, "hub is clean", s.atHubIs(ns, name))
	var now mcs.ServiceImport
	must(t, s.g1.Get(t.Context(), client.ObjectKeyFromObject(theirs), &now))
	if now.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("a foreign ServiceImport was changed: %+v", now)
	}
}

func (s *clusterset) testMany(t *testing.T) {
	const ns, count = "many", 100
	namespace(t, ns, s.g1, s.g2)
	for n := range count {
		s.g2.service(t, ns, fmt.Sprint("web-", n), web)
	}
	for n := range count {
		s.g2.export(t, ns, fmt.Sprint("web-", n))
	}
	next := 0
	within(t, "all ready", func() string {
		for ; next < count; next++ {
			if problem := s.g2.conditionIs(ns, fmt.Sprint("web-", next), "Ready", "True")(); problem != "" {
				return problem
			}
		}
		return ""
	})
	imports := func(want int) func() string {
		return func() string {
			var list mcs.ServiceImportList
			if err := s.g1.List(t.Context(), &list, client.InNamespace(ns)); err != nil || len(list.Items) != want {
				return fmt.Sprintf("%d imports in g1, %v", len(list.Items), err)
			}
			return ""
		}
	}
	within(t, "all imported", imports(count))
	must(t, s.g2.DeleteAllOf(t.Context(), &mcs.ServiceExport{}, client.InNamespace(ns)))
	within(t, "all gone", imports(0))
}

// One of two gateways dies. New exports name it until that is known, and are ready 5 s later.
func (s *clusterset) testDeadGateway(t *testing.T) {
	const ns, name, second = "dead-gateway", "web", "gw-b"
	ctx := t.Context()
	namespace(t, ns, s.g2)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: second, Labels: map[string]string{"submariner.io/gateway": "true"}}}
	s.g2.create(t, node)
	var index v1alpha1.NodeIndex
	within(t, "an index of the second gateway", func() string {
		if err := s.g2.Get(ctx, client.ObjectKey{Name: second}, &index); err != nil {
			return err.Error()
		}
		return ""
	})
	index.Status = v1alpha1.NodeIndexStatus{Ready: true, Gateway: true, BootID: "boot"}
	must(t, s.g2.Status().Update(ctx, &index))
	s.g2.service(t, ns, name, web)
	s.g2.export(t, ns, name)
	within(t, "the condition names the gateway", func() string {
		var e mcs.ServiceExport
		if err := s.g2.Get(ctx, client.ObjectKey{Namespace: ns, Name: name}, &e); err != nil {
			return err.Error()
		}
		for _, c := range e.Status.Conditions {
			if c.Type == "Ready" && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "once gateway gw-b has it in its tables") {
				return ""
			}
		}
		return fmt.Sprintf("%+v", e.Status.Conditions)
	})
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	must(t, s.g2.Status().Update(ctx, node))
	known := time.Now()
	within(t, "Ready", s.g2.conditionIs(ns, name, "Ready", "True"))
	took := time.Since(known)
	t.Logf("ready %s after the death was known", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("the export is ready %s after the death of the gateway was known; want at most 5 s", took)
	}
	must(t, s.g2.Delete(ctx, node))
	s.g2.unexport(t, ns, name)
}

func (s *clusterset) testHubAway(t *testing.T) {
	const ns = "away"
	namespace(t, ns, s.g1, s.g2)
	kept := s.g2.service(t, ns, "kept", web)
	s.g2.service(t, ns, "dropped", web)
	s.g2.service(t, ns, "added", web)
	for _, name := range []string{"kept", "dropped"} {
		s.g2.export(t, ns, name)
	}
	before := map[string][]string{}
	for _, name := range []string{"kept", "dropped"} {
		within(t, name+" is imported", func() string {
			before[name] = s.g1.view(ns, name)
			if !complete(before[name], "g2") {
				return fmt.Sprintf("%q", before[name])
			}
			return ""
		})
	}

	s.line.Cut()
	s.g2.unexport(t, ns, "dropped")
	s.g2.export(t, ns, "added")
	s.g2.backends(t, kept, backend("10.7.0.9", &corev1.Pod{}, false))
	within(t, "own part of an un-exported service goes at once", s.g2.viewIs(ns, "dropped"))
	within(t, "own view of readiness follows", s.g2.viewIs(ns, "kept",
		"import ClusterSetIP TCP/80 g2", before["kept"][0], "slice of g2: "+kept.Spec.ClusterIP+" unready, port 80"))
	within(t, "the new export says why it waits", s.g2.conditionIs(ns, "added", "Ready", "False/Failed: ExportFailed: the hub cannot be reached"))
	time.Sleep(8 * time.Second) // g1 may change nothing, also not after retries of a few seconds
	for name, want := range before {
		if problem := s.g1.viewIs(ns, name, want...)(); problem != "" {
			t.Errorf("changed while the hub was away: %s", problem)
		}
	}
	for _, m := range []*member{s.g1, s.g2} {
		if err := m.running.live(nil); err != nil {
			t.Errorf("a restart is due while the hub is away: %v", err)
		}
	}

	s.line.Heal()
	within(t, "un-export reaches the hub", s.atHubIs(ns, "dropped"))
	within(t, "un-export reaches g1", s.g1.viewIs(ns, "dropped"))
	within(t, "the new export is ready", s.g2.conditionIs(ns, "added", "Ready", "True"))
	global := s.g2.address(t, ns, "added")
	within(t, "the new export reaches g1", s.g1.viewIs(ns, "added",
		"import ClusterSetIP TCP/80 g2", "copy added-away-g2: ClusterSetIP TCP/80 "+global, "slice of g2: "+global+", port 80"))
	within(t, "readiness reaches g1", func() string {
		if lines := s.g1.view(ns, "kept"); !strings.Contains(strings.Join(lines, "\n"), "unready") {
			return fmt.Sprintf("%q", lines)
		}
		return ""
	})
}

func (s *clusterset) testStartWithoutHub(t *testing.T) {
	const ns, name = "restart", "web"
	namespace(t, ns, s.g1, s.g2)
	own := s.g1.service(t, ns, "own", web)
	s.g1.export(t, ns, "own")
	s.g2.service(t, ns, name, web)
	s.g2.export(t, ns, name)
	within(t, "imported", func() string {
		if n, o := s.g1.view(ns, name), s.g1.view(ns, "own"); !complete(n, "g2") || !complete(o, "g1") {
			return fmt.Sprintf("%q %q", n, o)
		}
		return ""
	})
	peers := s.g1.peers(t)
	imported, owned := s.g1.view(ns, name), s.g1.view(ns, "own")

	s.line.Cut()
	s.g1.stop()
	s.g1.start()
	s.g1.backends(t, own, backend("10.7.0.9", &corev1.Pod{}, false))
	within(t, "the own part works without the hub", func() string {
		if lines := s.g1.view(ns, "own"); !strings.Contains(strings.Join(lines, "\n"), "unready") || len(lines) != len(owned) {
			return fmt.Sprintf("%q", lines)
		}
		return ""
	})
	time.Sleep(3 * time.Second) // g1 may change nothing
	if problem := s.g1.viewIs(ns, name, imported...)(); problem != "" {
		t.Errorf("an agent that has not seen the hub changed something: %s", problem)
	}
	if now := s.g1.peers(t); now != peers {
		t.Errorf("peers %q, before %q", now, peers)
	}
	if got := s.g1.condition(ns, "own", "Ready"); !strings.HasPrefix(got, "True") {
		t.Errorf("Ready of an export that is at the hub: %s", got)
	}
	s.g2.unexport(t, ns, name) // g2 cannot tell the hub yet
	s.line.Heal()
	within(t, "what went meanwhile is cleaned up", s.g1.viewIs(ns, name))
}

// importedSlices lists the slices of a namespace that speak of the clusterset.
func (m *member) importedSlices(t *testing.T, ns string) []discoveryv1.EndpointSlice {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	must(t, m.List(t.Context(), &list, client.InNamespace(ns), client.HasLabels{mcs.LabelSourceCluster}))
	return list.Items
}

func (s *clusterset) testNewConfiguration(t *testing.T) {
	var cm corev1.ConfigMap
	must(t, s.g2.Get(t.Context(), configKey, &cm))
	cm.Data["custom-domains"] = "Example.org" // the case does not matter, the domain does
	must(t, s.g2.Update(t.Context(), &cm))
	var err error
	await.True(t, "the agent ends, as its configuration is a former one", func() bool {
		select {
		case err = <-s.g2.ended:
			return true
		default:
			return false
		}
	})
	if err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	s.g2.ended <- nil // for stop
}
