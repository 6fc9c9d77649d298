package cluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	remedyv1alpha1 "github.com/pelago-net/pelago/api/remedy/v1alpha1"
)

var epoch = time.Unix(1700000000, 0)

func cluster(name, id string, age time.Duration, member bool) clusterv1alpha1.Cluster {
	c := clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(epoch.Add(-age))},
		Spec: clusterv1alpha1.ClusterSpec{ID: id, SyncMode: clusterv1alpha1.Pull}}
	if member {
		c.Finalizers = []string{clusterv1alpha1.FinalizerCluster}
	}
	return c
}

// spec.id detects a double registration, as in Karmada; the hub is no member of its own, and one
// cluster does not join a second time under another name.
func TestRefusal(t *testing.T) {
	type clusters = []clusterv1alpha1.Cluster
	for name, tt := range map[string]struct {
		this   clusterv1alpha1.Cluster
		others clusters
		want   string // reason, and the cluster that is named
	}{
		"alone":                     {cluster("b", "u1", 0, false), nil, ""},
		"without an id":             {cluster("b", "", 0, false), clusters{cluster("a", "", time.Hour, true)}, ""},
		"another id":                {cluster("b", "u1", 0, false), clusters{cluster("a", "u2", time.Hour, true)}, ""},
		"the hub":                   {cluster("b", "hub", 0, true), nil, "ClusterIsHub"},
		"an older one":              {cluster("b", "u1", 0, false), clusters{cluster("c", "u1", time.Hour, false)}, "ClusterIDTaken c"},
		"a younger one":             {cluster("b", "u1", time.Second, false), clusters{cluster("a", "u1", 0, false)}, ""},
		"of one second":             {cluster("b", "u1", 0, false), clusters{cluster("a", "u1", 0, false)}, "ClusterIDTaken a"},
		"of one second, the first":  {cluster("a", "u1", 0, false), clusters{cluster("b", "u1", 0, false)}, ""},
		"a younger one is a member": {cluster("b", "u1", time.Hour, false), clusters{cluster("c", "u1", 0, true)}, "ClusterIDTaken c"},
		"younger, but a member":     {cluster("b", "u1", 0, true), clusters{cluster("a", "u1", time.Hour, false)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			reason, message := refusal(&tt.this, append(tt.others, tt.this), "hub")
			want, other, _ := strings.Cut(tt.want, " ")
			if reason != want || !strings.Contains(message, other) {
				t.Errorf("%s: %s; want %s", reason, message, tt.want)
			}
			if (reason == "") != (message == "") {
				t.Errorf("reason %q with message %q", reason, message)
			}
		})
	}
}

// Karmada: the conditions of one policy are ANDed, an older policy comes first, adding
// precedes removing.
func TestApplyPolicies(t *testing.T) {
	type p = policyv1alpha1.ClusterTaintPolicySpec
	ready := func(operator policyv1alpha1.MatchConditionOperator, values ...metav1.ConditionStatus) policyv1alpha1.MatchCondition {
		return policyv1alpha1.MatchCondition{ConditionType: "Ready", Operator: operator, StatusValues: values}
	}
	absent := policyv1alpha1.MatchCondition{ConditionType: "Absent", Operator: "NotIn", StatusValues: []metav1.ConditionStatus{"True"}}
	is, not := []policyv1alpha1.MatchCondition{ready("In", "False", "Unknown")}, []policyv1alpha1.MatchCondition{ready("NotIn", "False")}
	a, b := policyv1alpha1.PolicyTaint{Key: "a", Effect: corev1.TaintEffectNoSchedule}, policyv1alpha1.PolicyTaint{Key: "b", Effect: corev1.TaintEffectNoExecute}
	hub := policyv1alpha1.PolicyTaint{Key: clusterv1alpha1.TaintNotReady, Effect: corev1.TaintEffectNoSchedule}
	all := func(taints ...policyv1alpha1.PolicyTaint) []policyv1alpha1.PolicyTaint { return taints }
	for name, tt := range map[string]struct {
		have     string
		policies []p // the youngest first
		want     string
	}{
		"none":                     {"x", nil, "x"},
		"added":                    {"x", []p{{AddOnConditions: is, Taints: all(a, b)}}, "x a b"},
		"there already":            {"a", []p{{AddOnConditions: is, Taints: all(a)}}, "a"},
		"does not match":           {"", []p{{AddOnConditions: not, Taints: all(a)}}, ""},
		"one of two matches":       {"", []p{{AddOnConditions: append(is, not...), Taints: all(a)}}, ""},
		"a condition is absent":    {"", []p{{AddOnConditions: append(is, absent), Taints: all(a)}}, ""},
		"removed":                  {"a x", []p{{RemoveOnConditions: is, Taints: all(a)}}, "x"},
		"added and removed":        {"", []p{{AddOnConditions: is, RemoveOnConditions: is, Taints: all(a)}}, ""},
		"the younger one has it":   {"", []p{{RemoveOnConditions: is, Taints: all(a)}, {AddOnConditions: is, Taints: all(a)}}, ""},
		"the younger one adds":     {"", []p{{AddOnConditions: is, Taints: all(a)}, {RemoveOnConditions: is, Taints: all(a)}}, "a"},
		"another cluster":          {"", []p{{TargetClusters: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"d"}}, AddOnConditions: is, Taints: all(a)}}, ""},
		"a taint of the hub's own": {"", []p{{AddOnConditions: is, Taints: all(a, hub)}}, ""},
		"an invalid selector": {"", []p{{TargetClusters: &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"-": "-"}}},
			AddOnConditions: is, Taints: all(a)}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster("c", "", 0, true)
			c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionFalse}}
			var have []clusterv1alpha1.Taint
			for _, key := range strings.Fields(tt.have) {
				have = append(have, clusterv1alpha1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
			}
			var policies []policyv1alpha1.ClusterTaintPolicy
			for i, spec := range tt.policies {
				policies = append(policies, policyv1alpha1.ClusterTaintPolicy{Spec: spec,
					ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(epoch.Add(-time.Duration(i) * time.Hour))}})
			}
			var got []string
			for _, taint := range applyPolicies(&c, have, policies, metav1.NewTime(epoch)) {
				got = append(got, taint.Key)
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// One policy removes a taint and a younger one adds it: it keeps its time, from which toleration
// seconds count, and nothing is written.
func TestTaintKeepsItsTime(t *testing.T) {
	c := cluster("c", "", 0, true)
	c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: metav1.ConditionTrue}, {Type: "Disk", Status: metav1.ConditionFalse}}
	when := func(condition string, status metav1.ConditionStatus) []policyv1alpha1.MatchCondition {
		return []policyv1alpha1.MatchCondition{{ConditionType: condition, Operator: policyv1alpha1.MatchConditionOpIn, StatusValues: []metav1.ConditionStatus{status}}}
	}
	of := []policyv1alpha1.PolicyTaint{{Key: "a", Effect: corev1.TaintEffectNoExecute}}
	policies := []policyv1alpha1.ClusterTaintPolicy{
		{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(epoch.Add(-time.Hour))},
			Spec: policyv1alpha1.ClusterTaintPolicySpec{Taints: of, RemoveOnConditions: when("Ready", metav1.ConditionTrue)}},
		{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(epoch)},
			Spec: policyv1alpha1.ClusterTaintPolicySpec{Taints: of, AddOnConditions: when("Disk", metav1.ConditionFalse)}},
	}
	for range 2 {
		c.Spec.Taints = applyPolicies(&c, slices.Clone(c.Spec.Taints), policies, metav1.NewTime(epoch.Add(time.Duration(len(c.Spec.Taints))*time.Minute)))
	}
	if len(c.Spec.Taints) != 1 || !c.Spec.Taints[0].TimeAdded.Equal(&metav1.Time{Time: epoch}) {
		t.Errorf("taints %+v, want one with the time at which it was added first", c.Spec.Taints)
	}
}

// Karmada, taints by condition.
func TestTaints(t *testing.T) {
	const not, un, cordon = clusterv1alpha1.TaintNotReady, clusterv1alpha1.TaintUnreachable, clusterv1alpha1.TaintUnschedulable
	type list = []clusterv1alpha1.Taint
	taint := func(key string, effect corev1.TaintEffect) clusterv1alpha1.Taint {
		return clusterv1alpha1.Taint{Key: key, Effect: effect}
	}
	for name, tt := range map[string]struct {
		have  list
		ready metav1.ConditionStatus // empty: not known yet
		want  string
	}{
		"not known yet":       {nil, "", not + ":NoSchedule"},
		"False":               {nil, metav1.ConditionFalse, not + ":NoSchedule"},
		"Unknown":             {nil, metav1.ConditionUnknown, un + ":NoSchedule"},
		"True":                {nil, metav1.ConditionTrue, "none"},
		"True again":          {list{taint(not, "NoSchedule"), taint(un, "NoSchedule")}, metav1.ConditionTrue, "none"},
		"False, then Unknown": {list{taint(not, "NoSchedule")}, metav1.ConditionUnknown, un + ":NoSchedule"},
		"Unknown, then False": {list{taint(un, "NoSchedule")}, metav1.ConditionFalse, not + ":NoSchedule"},
		"stays as it is":      {list{taint(not, "NoSchedule")}, metav1.ConditionFalse, not + ":NoSchedule"},
		"others stay": {list{taint(cordon, "NoSchedule"), taint("x", "NoSchedule")}, metav1.ConditionTrue,
			cordon + ":NoSchedule, x:NoSchedule"},
		"with NoExecute it is a user's": {list{taint(un, "NoExecute")}, metav1.ConditionTrue, un + ":NoExecute"},
	} {
		t.Run(name, func(t *testing.T) {
			var ready *metav1.Condition
			if tt.ready != "" {
				ready = &metav1.Condition{Status: tt.ready}
			}
			if got := words(taints(tt.have, ready, metav1.NewTime(epoch))); got != tt.want {
				t.Errorf("taints %s, want %s", got, tt.want)
			}
		})
	}
}

// Karmada, taints by condition: timeAdded is filled for NoExecute taints, once.
func TestTimeAdded(t *testing.T) {
	before, now := metav1.NewTime(epoch), metav1.NewTime(epoch.Add(time.Hour))
	have := []clusterv1alpha1.Taint{
		{Key: "new", Effect: corev1.TaintEffectNoExecute}, {Key: "known", Effect: corev1.TaintEffectNoExecute, TimeAdded: &before},
		{Key: "soft", Effect: corev1.TaintEffectNoSchedule},
	}
	got := taints(have, &metav1.Condition{Status: metav1.ConditionTrue}, now)
	if !got[0].TimeAdded.Equal(&now) || !got[1].TimeAdded.Equal(&before) || got[2].TimeAdded != nil {
		t.Errorf("times %v, %v, %v", got[0].TimeAdded, got[1].TimeAdded, got[2].TimeAdded)
	}
	if have[0].TimeAdded != nil {
		t.Error("the Cluster of the cache was changed")
	}
}

// Karmada, pull heartbeat: grace 40 s, 60 s for one that has never reported; Ready becomes
// Unknown.
func TestExpired(t *testing.T) {
	o := MembershipOptions{Grace: 40 * time.Second, StartupGrace: time.Minute}
	type look struct {
		at      time.Duration
		renewed time.Duration // by a clock that is an hour ahead
	}
	for name, tt := range map[string]struct {
		ready metav1.ConditionStatus // empty: never reported
		looks []look
		want  string // the reason after the last look
	}{
		"alive":                                 {"True", []look{{0, 0}, {30, 30}, {60, 60}}, ""},
		"silent for less than the grace":        {"True", []look{{0, 0}, {30, 30}, {69, 30}}, ""},
		"silent":                                {"True", []look{{0, 0}, {30, 30}, {70, 30}}, "ClusterStatusUnknown"},
		"not ready, and silent":                 {"False", []look{{0, 0}, {40, 0}}, "ClusterStatusUnknown"},
		"silent, said already":                  {"Unknown", []look{{0, 0}, {400, 0}}, ""},
		"an old lease, the hub has just begun":  {"True", []look{{0, -9999}}, ""},
		"never reported, joined a moment ago":   {"", []look{{0, 0}, {59, 0}}, ""},
		"never reported":                        {"", []look{{0, 0}, {60, 0}}, "ClusterStatusNeverUpdated"},
		"never reported, but the agent is here": {"", []look{{0, 0}, {50, 50}, {100, 100}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster("m1", "", 0, true)
			if tt.ready != "" {
				c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: tt.ready}}
			}
			var p heartbeat
			var got metav1.Condition
			for _, l := range tt.looks {
				now := epoch.Add(l.at * time.Second)
				p = p.observe(epoch.Add(time.Hour+l.renewed*time.Second), epoch, now)
				got, _ = o.expired(&c, p, now)
			}
			if got.Reason != tt.want || got.Reason != "" && got.Status != metav1.ConditionUnknown {
				t.Errorf("%s %s, want %s", got.Status, got.Reason, tt.want)
			}
		})
	}
}

func TestFew(t *testing.T) {
	for want, all := range map[string][]string{
		"a": {"a"}, "a, b, c": {"a", "b", "c"}, "a, b, c and 2 more": {"a", "b", "c", "d", "e"},
	} {
		if got := few(all); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Which clusters need the actions of a Remedy.
func TestRemedyActions(t *testing.T) {
	is := func(operator remedyv1alpha1.ClusterConditionOperator, status string) remedyv1alpha1.DecisionMatch {
		return remedyv1alpha1.DecisionMatch{ClusterConditionMatch: &remedyv1alpha1.ClusterConditionRequirement{ConditionType: "DNS", Operator: operator, ConditionStatus: status}}
	}
	named := func(names ...string) *remedyv1alpha1.ClusterAffinity {
		return &remedyv1alpha1.ClusterAffinity{ClusterNames: names}
	}
	type spec = remedyv1alpha1.RemedySpec
	do := func(actions ...remedyv1alpha1.RemedyAction) []remedyv1alpha1.RemedyAction { return actions }
	for name, tt := range map[string]struct {
		specs []spec
		want  string
	}{
		"none":                         {nil, ""},
		"at once, all clusters":        {[]spec{{Actions: do("TrafficControl")}}, "TrafficControl"},
		"another cluster":              {[]spec{{ClusterAffinity: named("x"), Actions: do("TrafficControl")}}, ""},
		"no cluster":                   {[]spec{{ClusterAffinity: named(), Actions: do("TrafficControl")}}, ""},
		"this one, Equal":              {[]spec{{ClusterAffinity: named("x", "m"), DecisionMatches: []remedyv1alpha1.DecisionMatch{is("Equal", "False")}, Actions: do("TrafficControl")}}, "TrafficControl"},
		"Equal to another status":      {[]spec{{DecisionMatches: []remedyv1alpha1.DecisionMatch{is("Equal", "True")}, Actions: do("TrafficControl")}}, ""},
		"NotEqual":                     {[]spec{{DecisionMatches: []remedyv1alpha1.DecisionMatch{is("NotEqual", "True")}, Actions: do("TrafficControl")}}, "TrafficControl"},
		"one of several":               {[]spec{{DecisionMatches: []remedyv1alpha1.DecisionMatch{is("Equal", "True"), is("Equal", "False")}, Actions: do("TrafficControl")}}, "TrafficControl"},
		"a match of nothing":           {[]spec{{DecisionMatches: []remedyv1alpha1.DecisionMatch{{}}, Actions: do("TrafficControl")}}, ""},
		"the same of two, and another": {[]spec{{Actions: do("TrafficControl", "B")}, {Actions: do("TrafficControl", "A")}}, "A B TrafficControl"},
	} {
		c := cluster("m", "u1", 0, true)
		c.Status.Conditions = []metav1.Condition{{Type: "DNS", Status: metav1.ConditionFalse}}
		var remedies []remedyv1alpha1.Remedy
		for _, s := range tt.specs {
			remedies = append(remedies, remedyv1alpha1.Remedy{Spec: s})
		}
		if got := strings.Join(remedyActions(&c, remedies), " "); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	c := cluster("m", "u1", 0, true)
	if got := remedyActions(&c, []remedyv1alpha1.Remedy{{Spec: spec{DecisionMatches: []remedyv1alpha1.DecisionMatch{is("NotEqual", "True")}, Actions: do("TrafficControl")}}}); len(got) > 0 {
		t.Errorf("without the condition: %v", got)
	}
}
