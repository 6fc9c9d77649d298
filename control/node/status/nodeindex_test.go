package status

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/observe"
	"github.com/pelago-net/pelago/test/clusterset"
)

func TestDemand(t *testing.T) {
	have := map[netip.Addr][]uint16{ip("120.1.0.1"): {1024, 1280}}
	for _, tt := range []struct {
		name      string
		crowding  int
		exhausted uint64
		want      map[netip.Addr]int
	}{
		{"quiet", 10, 0, map[netip.Addr]int{ip("120.1.0.1"): 1}},
		{"what is held is still needed", 200, 0, map[netip.Addr]int{ip("120.1.0.1"): 2}},
		{"crowded: more blocks before the ports run out", 320, 0, map[netip.Addr]int{ip("120.1.0.1"): 3}},
		{"exhausted: twice as many", 500, 5, map[netip.Addr]int{ip("120.1.0.1"): 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d Demand
			d.Update(map[netip.Addr]int{ip("120.1.0.1"): tt.crowding}, have, tt.exhausted)
			if diff := cmp.Diff(tt.want, d.blocks, clusterset.Comparable); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestXDPCondition(t *testing.T) {
	var conditions []metav1.Condition
	for _, step := range []struct {
		asked    bool
		problems []string
		want     string
	}{
		{false, nil, ""}, {true, nil, "True Attached "}, {true, []string{"eth0: no", "eth1: no"}, "False NotAttached eth0: no; eth1: no"},
		{false, []string{"detach: no"}, "False NotAttached detach: no"}, {false, nil, ""},
	} {
		setXDP(&conditions, step.asked, step.problems)
		got := ""
		for _, c := range conditions {
			got += string(c.Status) + " " + c.Reason + " " + c.Message
		}
		if got != step.want {
			t.Errorf("asked %t, problems %q: %q; want %q", step.asked, step.problems, got, step.want)
		}
	}
}

// The message is short, and the same for the same errors in another order.
func TestReconciledCondition(t *testing.T) {
	var conditions []metav1.Condition
	full := errors.New("write map paths: full")
	for i, step := range []struct {
		err  error
		want string
	}{
		{nil, "True Reconciled "},
		{errors.Join(errors.New("run iptables: no"), full, full), "False ReconcileFailed run iptables: no; write map paths: full"},
		{errors.Join(full, full, errors.New("run iptables: no")), "False ReconcileFailed run iptables: no; write map paths: full"},
		{nil, "True Reconciled "},
	} {
		setReconciled(&conditions, step.err)
		if c := conditions[0]; len(conditions) != 1 || string(c.Status)+" "+c.Reason+" "+c.Message != step.want {
			t.Errorf("step %d: %+v; want %q", i, conditions, step.want)
		}
	}
	var many []error
	for i := range 1000 {
		many = append(many, fmt.Errorf("route %d", i))
	}
	if setReconciled(&conditions, errors.Join(many...)); !strings.HasSuffix(conditions[0].Message, "; and 990 more") {
		t.Errorf("message of a thousand errors: %s", conditions[0].Message)
	}
}

func TestKeyRotation(t *testing.T) {
	if got := keyRotation(cable.Rotation{}); got != nil {
		t.Errorf("without a request: %+v", got)
	}
	want := &pelagov1alpha1.KeyRotation{Request: "2026-01-31T12:00:00Z", TunnelsLeft: 2, Message: "tunnel 4 is being emptied"}
	if diff := cmp.Diff(want, keyRotation(cable.Rotation{Request: want.Request, Left: 2, Waits: want.Message})); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestFirewallCondition(t *testing.T) {
	var conditions []metav1.Condition
	for _, step := range []struct {
		missing error
		blocked []string
		want    string
	}{
		{nil, nil, "Firewall True Open "},
		{nil, []string{"chain b drops", "chain a drops"}, "Firewall False Blocks chain a drops; chain b drops"},
		{errors.New("run iptables: no"), nil, "Firewall False RulesMissing run iptables: no"},
		{errors.New("run iptables: no"), []string{"chain a drops"}, "Firewall False Blocks chain a drops; run iptables: no"},
		{nil, nil, "Firewall True Open "},
	} {
		setFirewall(&conditions, step.missing, step.blocked)
		c := conditions[0]
		if got := strings.Join([]string{c.Type, string(c.Status), c.Reason, c.Message}, " "); got != step.want || len(conditions) != 1 {
			t.Errorf("%v, %q: %q, want %q", step.missing, step.blocked, got, step.want)
		}
	}
}

func TestHostCondition(t *testing.T) {
	var conditions []metav1.Condition
	for _, step := range []struct {
		foreign []string
		want    string
	}{
		{nil, "HostNetwork True Clear "}, {[]string{"rule a", "filter b"}, "HostNetwork False Obstructed rule a; filter b"}, {nil, "HostNetwork True Clear "},
	} {
		setHost(&conditions, step.foreign)
		c := conditions[0]
		if got := strings.Join([]string{c.Type, string(c.Status), c.Reason, c.Message}, " "); got != step.want || len(conditions) != 1 {
			t.Errorf("%q: %q, want %q", step.foreign, got, step.want)
		}
	}
}

// The condition of the self-test has the worst outcome of all paths. Lost packets are Unknown: a
// NetworkPolicy may have dropped them. The RouteAgent has the same messages.
func TestSelfTestCondition(t *testing.T) {
	find := func(o observe.SelftestOutcome, message string) observe.SelftestFinding {
		return observe.SelftestFinding{Outcome: o, Pod: "default/web", Message: message}
	}
	paths := func(n ...int) map[observe.SelftestOutcome]int {
		out := map[observe.SelftestOutcome]int{}
		for i, o := range observe.SelftestOutcomes {
			out[o] = n[i]
		}
		return out
	}
	var conditions []metav1.Condition
	for _, step := range []struct {
		report observe.SelftestReport
		want   string
	}{
		{observe.SelftestReport{}, ""},
		{observe.SelftestReport{Paths: paths(2, 0, 0, 0)}, "SelfTest True Passed "},
		{observe.SelftestReport{Paths: paths(1, 1, 0, 0), Findings: []observe.SelftestFinding{find(observe.SelftestLost, "lost")}}, "SelfTest Unknown Lost lost"},
		{observe.SelftestReport{Paths: paths(1, 0, 1, 0), Findings: []observe.SelftestFinding{find(observe.SelftestBypassed, "by")}}, "SelfTest False Bypassed by"},
		{observe.SelftestReport{Paths: paths(0, 1, 0, 1), Findings: []observe.SelftestFinding{find(observe.SelftestLost, "lost"), find(observe.SelftestDiverted, "away")}},
			"SelfTest False Diverted away; lost"},
		{observe.SelftestReport{}, ""},
	} {
		setSelfTest(&conditions, step.report)
		got := ""
		for _, c := range conditions {
			got += strings.Join([]string{c.Type, string(c.Status), c.Reason, c.Message}, " ")
		}
		if got != step.want {
			t.Errorf("%+v: %q, want %q", step.report, got, step.want)
		}
		agent := NewTracker("v3").routeAgent(Snapshot{SelfTest: step.report})
		if want := strings.Join(SelfTestMessages(step.report), "; "); agent.Status.StatusFailure != want {
			t.Errorf("RouteAgent: %q, want %q", agent.Status.StatusFailure, want)
		}
	}
}

// A message that the API server would refuse is cut, between characters.
func TestLongMessage(t *testing.T) {
	var conditions []metav1.Condition
	setXDP(&conditions, true, []string{strings.Repeat("ü", maxMessage)})
	m := conditions[0].Message
	if len(m) > maxMessage || len(m) < maxMessage-4 || !utf8.ValidString(m) || !strings.HasSuffix(m, "ü...") {
		t.Errorf("%d bytes, valid: %t, end %q", len(m), utf8.ValidString(m), m[max(0, len(m)-8):])
	}
}
