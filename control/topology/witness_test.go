package topology_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// reports are written "node: unreachable clusters / silent gateways"; "?" is a node that is no
// witness.
func reports(lines ...string) (out []topology.Report) {
	for _, line := range lines {
		node, rest, _ := strings.Cut(line, ":")
		clusters, gateways, _ := strings.Cut(rest, "/")
		r := topology.Report{Node: node, Witness: strings.TrimSpace(clusters) != "?", Silent: strings.Fields(gateways)}
		if r.Witness {
			r.Unreachable = strings.Fields(clusters)
		}
		out = append(out, r)
	}
	return out
}

func TestMajority(t *testing.T) {
	for name, tt := range map[string]struct {
		reports []string
		former  string
		want    string
		known   bool
	}{
		"all reach all":                              {[]string{"n1:", "n2:"}, "", "", true},
		"all agree that one is dead":                 {[]string{"n1: g2", "n2: g2", "n3: g2"}, "", "g2", true},
		"a node whose port is closed has no say":     {[]string{"n1:", "n2: ? / n1"}, "", "", true},
		"nor does it bring a dead cluster back":      {[]string{"n1: g2", "n2: ?", "n3: ?"}, "g2", "g2", true},
		"one of three is mistaken":                   {[]string{"n1:", "n2: g2 g3", "n3: g3"}, "", "g3", true},
		"two of three bring it back":                 {[]string{"n1:", "n2: g2", "n3:"}, "g2", "", true},
		"a tie leaves a dead one dead":               {[]string{"n1:", "n2: g2"}, "g2", "g2", true},
		"a tie leaves a living one alive":            {[]string{"n1:", "n2: g2"}, "", "", true},
		"no witness: nothing is known":               {[]string{"n1: ?", "n2: ?"}, "g2", "", false},
		"no report: nothing is known":                {nil, "g2", "", false},
		"a cluster that has left is not dead":        {[]string{"n1:", "n2:"}, "g9", "", true},
		"the verdict does not depend on a quiet one": {[]string{"n1: g2", "n2: g2", "n3:"}, "", "g2", true},
	} {
		got, known := topology.Majority(reports(tt.reports...), strings.Fields(tt.former))
		if known != tt.known || known && strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, known %t; want %q, %t", name, got, known, tt.want, tt.known)
		}
	}
}

func TestSilent(t *testing.T) {
	for name, tt := range map[string]struct {
		reports []string
		want    string
	}{
		"it answers one":                          {[]string{"a: / b", "n1:", "b:"}, ""},
		"it answers nobody, and its own is old":   {[]string{"a: / b", "n1: / b", "b:"}, "b"},
		"two gateways that do not see another":    {[]string{"a: / b", "b: / a"}, "a b"},
		"a node that sees one of the two":         {[]string{"a: / b", "b: / a", "n1: / b"}, "b"},
		"what one without any gateway reports":    {[]string{"n1: ? / a", "a:"}, ""},
		"the only witness is the other gateway":   {[]string{"a: / b"}, "b"},
		"there is no witness":                     {[]string{"n1: ? / a b", "n2: ? / a b"}, ""},
		"what a gateway reports of itself":        {[]string{"a: / a"}, ""},
		"a gateway that is no witness has no say": {[]string{"a: ? / b", "n1:"}, ""},
	} {
		got := topology.Silent(reports(tt.reports...))
		var names []string
		for gateway := range got {
			names = append(names, gateway)
		}
		slices.Sort(names)
		if strings.Join(names, " ") != tt.want {
			t.Errorf("%s: %q, want %q", name, names, tt.want)
		}
	}
}

func TestReportOf(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	agent := func(age time.Duration, annotations ...string) metav1.Object {
		a := &submarinerv1.RouteAgent{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{
			submarinerv1.AnnotationUpdated: strconv.FormatInt(now.Add(-age).Unix(), 10),
		}}}
		for i := 0; i < len(annotations); i += 2 {
			a.Annotations[annotations[i]] = annotations[i+1]
		}
		return a
	}
	const unreachable, silent = submarinerv1.AnnotationUnreachableClusters, submarinerv1.AnnotationSilentGateways
	for name, tt := range map[string]struct {
		agent   metav1.Object
		ok      bool
		witness bool
		lists   string
	}{
		"a witness that reaches all": {agent(time.Minute, unreachable, ""), true, true, "|"},
		"one that does not":          {agent(time.Minute, unreachable, "g2,g3", silent, "gw"), true, true, "g2 g3|gw"},
		"no witness":                 {agent(time.Minute, silent, "gw,gx"), true, false, "|gw gx"},
		"left behind":                {agent(topology.ReportLife+time.Second, unreachable, ""), false, false, "|"},
		"of another writer":          {&submarinerv1.RouteAgent{}, false, false, "|"},
	} {
		r, ok := topology.ReportOf(tt.agent, now)
		if lists := strings.Join(r.Unreachable, " ") + "|" + strings.Join(r.Silent, " "); ok != tt.ok || r.Witness != tt.witness || lists != tt.lists {
			t.Errorf("%s: %+v, %t", name, r, ok)
		}
	}
	if !topology.SameReport(agent(time.Hour, unreachable, ""), agent(0, unreachable, "")) {
		t.Error("a new time stamp is another report")
	}
	if topology.SameReport(agent(0, unreachable, ""), agent(0)) || topology.SameReport(agent(0, silent, "a"), agent(0, silent, "a,b")) {
		t.Error("another report is the same")
	}
}
