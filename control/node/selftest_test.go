package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/observe"
	"github.com/pelago-net/pelago/test/clusterset"
	"github.com/pelago-net/pelago/test/netns"
)

// A self-test begins after a change, seldom without, and soon while something is wrong.
func TestSelftestDue(t *testing.T) {
	now := time.Now()
	found := observe.SelftestReport{Findings: []observe.SelftestFinding{{Pod: "default/web"}}}
	for name, tt := range map[string]*struct {
		state   selftest
		changed bool
		now     string // revision of the programs
		want    bool
	}{
		"after the start":            {want: true},
		"while one runs":             {state: selftest{running: true}, changed: true},
		"nothing has changed":        {state: selftest{ended: now.Add(-selftestInterval / 2)}},
		"for long":                   {state: selftest{ended: now.Add(-selftestInterval)}, want: true},
		"a change":                   {state: selftest{ended: now.Add(-selftestPause)}, changed: true, want: true},
		"a change just after one":    {state: selftest{ended: now.Add(-selftestPause / 2)}, changed: true},
		"other programs":             {state: selftest{ended: now.Add(-selftestPause), revision: "3:1 "}, now: "3:2 ", want: true},
		"a finding to be confirmed":  {state: selftest{ended: now.Add(-selftestConfirm), suspected: true}, want: true},
		"a finding that was":         {state: selftest{ended: now.Add(-selftestPause), suspected: true, report: found}},
		"a finding that was, later":  {state: selftest{ended: now.Add(-selftestRetry), suspected: true, report: found}, want: true},
		"the programs are as before": {state: selftest{ended: now.Add(-selftestPause), revision: "3:1 "}, now: "3:1 "},
	} {
		t.Run(name, func(t *testing.T) {
			tt.state.changed.Store(tt.changed)
			if got := tt.state.due(now, func(string) string { return tt.now }); got != tt.want {
				t.Errorf("due: %t", got)
			}
		})
	}
}

// A finding is reported once a second test confirms it, its end at once.
func TestSelftestNote(t *testing.T) {
	well := observe.SelftestReport{Paths: map[observe.SelftestOutcome]int{observe.SelftestPassed: 1}}
	bad := observe.SelftestReport{
		Paths:    map[observe.SelftestOutcome]int{observe.SelftestDiverted: 1},
		Findings: []observe.SelftestFinding{{Outcome: observe.SelftestDiverted, Pod: "default/web", Message: "away"}},
	}
	var s selftest
	for i, step := range []struct {
		report  observe.SelftestReport
		changed bool
		shown   int
	}{{well, true, 0}, {well, false, 0}, {bad, false, 0}, {well, false, 0}, {bad, false, 0}, {bad, true, 1}, {bad, false, 1}, {well, true, 0}} {
		if got := s.note(step.report, time.Now()); got != step.changed || len(s.report.Findings) != step.shown {
			t.Errorf("step %d: changed %t, %+v", i, got, s.report)
		}
	}
}

func TestSelftestInputs(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	gone := clusterset.Pod("gone", "n1", "10.7.2.6")
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	objs.Pods = append(objs.Pods, gone, clusterset.Pod("away", "n2", "10.7.2.7"), clusterset.Pod("new", "n1", "10.7.2.8"), clusterset.Pod("strict", "n1", "10.7.2.9"))
	s := dataplane.State{
		Settings: dataplane.Settings{Cluster: 1},
		Routes:   map[netip.Prefix]uint16{netip.MustParsePrefix("120.1.0.0/24"): 1, netip.MustParsePrefix("120.3.0.0/24"): 3, netip.MustParsePrefix("120.2.0.0/24"): 2},
		VIPRange: netip.MustParsePrefix("243.0.0.0/8"),
		Sources:  map[netip.Addr]dataplane.Source{ip("10.7.2.5"): {Ifindex: 3}, ip("10.7.2.6"): {Ifindex: 3}, ip("10.7.2.7"): {Ifindex: 3}, ip("10.7.2.9"): {Ifindex: 3}},
		Endpoints: map[netip.Addr]dataplane.Endpoint{
			ip("10.7.2.5"): {Ifindex: 7, MAC: [6]byte{7}, Datapath: dataplane.Hybrid},
		},
	}
	devices := map[netip.Addr]netdev.PodDevice{
		ip("10.7.2.5"): {Namespace: "/run/netns/5", Endpoint: dataplane.Endpoint{Ifindex: 7, MAC: [6]byte{7}}},
		ip("10.7.2.9"): {Namespace: "/run/netns/9", Endpoint: dataplane.Endpoint{Ifindex: 9, MAC: [6]byte{9}}},
	}
	want := []observe.SelftestPod{
		{Name: "sample/web-1", Address: ip("10.7.2.5"), Source: 3, Device: 7, MAC: [6]byte{7}, Namespace: "/run/netns/5", Programs: true, Datapath: dataplane.Hybrid},
		{Name: "sample/strict", Address: ip("10.7.2.9"), Source: 3, Device: 9, MAC: [6]byte{9}, Namespace: "/run/netns/9"},
	}
	if diff := cmp.Diff(want, selftestPods(objs, s, devices), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	targets := []observe.SelftestTarget{{Address: ip("120.2.0.0")}, {Address: ip("243.0.0.0"), VIP: true}}
	if diff := cmp.Diff(targets, selftestTargets(s), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// A rule of others that takes the packets of a pod is in the condition SelfTest of the node, and in
// its RouteAgent, once a second test confirms it.
func TestSelftestOfNode(t *testing.T) {
	objs, _ := clusterset.Globalnet("n1")
	n := newKernelNode(t, objs)
	pod := netns.ForTest(t, "pod")
	for _, err := range []error{
		n.ns.Sysctl("net/ipv4/ip_forward", "1"),
		netns.Veth(netns.End{NS: pod, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.7.2.5/24")}},
			netns.End{NS: n.ns, Name: "veth5", Addrs: []netip.Prefix{netip.MustParsePrefix("10.7.2.1/24")}}),
		pod.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), ip("10.7.2.1"), "eth0"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	test := func() *metav1.Condition {
		t.Helper()
		if err := n.ns.Do(func() error {
			snap := n.d.latest
			report, err := observe.Selftest(n.d.loader, snap.State.Settings.Edge, selftestPods(snap.Objects, snap.State, n.d.selftest.devices), selftestTargets(snap.State))
			n.d.selftest.note(report, time.Now())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		index, _, err := n.reconcile()
		if err != nil {
			t.Fatal(err)
		}
		return meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeSelfTest)
	}
	if index, _, err := n.reconcile(); err != nil || meta.FindStatusCondition(index.Conditions, pelagov1alpha1.NodeSelfTest) != nil {
		t.Fatalf("%+v, error %v; want no result yet", index.Conditions, err)
	}
	if c := test(); c == nil || c.Status != metav1.ConditionTrue {
		t.Fatalf("%+v; want the test passed", c)
	}
	for _, command := range [][]string{{"ip", "route", "add", "default", "via", "172.31.1.1", "dev", "un0", "table", "9"}, {"ip", "rule", "add", "pref", "50", "iif", "veth5", "lookup", "9"}} {
		if out, err := n.ns.Run(command[0], command[1:]...); err != nil {
			t.Fatal(err, string(out))
		}
	}
	if c := test(); c.Status != metav1.ConditionTrue {
		t.Errorf("%+v; want no finding before it is confirmed", c)
	}
	c := test()
	if c.Status != metav1.ConditionFalse || c.Reason != pelagov1alpha1.ReasonSelfTestDiverted || !strings.Contains(c.Message, "sample/web-1") || !strings.Contains(c.Message, "un0") {
		t.Errorf("%+v; want the pod and the device", c)
	}
	if err := n.d.watchPathsOnce(n.d.latest, time.Now()); err != nil {
		t.Fatal(err)
	}
	if r := <-n.d.reports.agent.next; !strings.Contains(r.Status.StatusFailure, "sample/web-1") {
		t.Errorf("RouteAgent: %+v", r.Status)
	}
	if out, err := n.ns.Run("ip", "rule", "del", "pref", "50"); err != nil {
		t.Fatal(err, string(out))
	}
	if c := test(); c.Status != metav1.ConditionTrue || c.Message != "" {
		t.Errorf("%+v; want the test passed again", c)
	}
}
