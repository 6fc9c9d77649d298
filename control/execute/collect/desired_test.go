package collect

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Karmada, health probing: when the cluster is not online, only conditions are updated and
// the rest is kept; also before the threshold has passed.
func TestOnlyConditionsWhileNotReady(t *testing.T) {
	for name, tt := range map[string]struct {
		stands, found metav1.ConditionStatus
		passes        bool
		ready         metav1.ConditionStatus
		version       string
	}{
		"ready":                              {"True", "True", true, "True", "v2"},
		"fails, below the threshold":         {"True", "False", false, "True", "v1"},
		"fails":                              {"True", "False", true, "False", "v1"},
		"comes back, below the threshold":    {"False", "True", false, "False", "v1"},
		"comes back":                         {"False", "True", true, "True", "v2"},
		"lost from sight, and is here again": {"Unknown", "True", true, "True", "v2"},
	} {
		t.Run(name, func(t *testing.T) {
			c := &clusterv1alpha1.Cluster{Status: clusterv1alpha1.ClusterStatus{KubernetesVersion: "v1",
				NodeSummary: &clusterv1alpha1.NodeSummary{TotalNum: 7},
				Conditions:  []metav1.Condition{{Type: "Ready", Status: tt.stands}}}}
			v := observation{ready: metav1.Condition{Type: "Ready", Status: tt.found}, version: "v2", counted: true,
				complete: &metav1.Condition{Type: "CompleteAPIEnablements", Status: metav1.ConditionTrue}}
			got := desiredStatus(c, v, tt.passes)
			nodes := int32(7)
			if tt.version == "v2" {
				nodes = 0
			}
			ready := meta.FindStatusCondition(got.Conditions, "Ready").Status
			if ready != tt.ready || got.KubernetesVersion != tt.version || got.NodeSummary.TotalNum != nodes {
				t.Errorf("%s, %s, %d nodes; want %s, %s, %d",
					ready, got.KubernetesVersion, got.NodeSummary.TotalNum, tt.ready, tt.version, nodes)
			}
			if (meta.FindStatusCondition(got.Conditions, "CompleteAPIEnablements") != nil) != (tt.version == "v2") {
				t.Errorf("conditions %v", got.Conditions)
			}
		})
	}
}

// That a cluster has been lost from sight meanwhile does not change since when it has not been
// ready.
func TestNotReadySince(t *testing.T) {
	long := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	for _, tt := range []struct {
		stands, found metav1.ConditionStatus
		kept          bool
	}{
		{"Unknown", "False", true},
		{"False", "False", true},
		{"True", "True", true},
		{"True", "False", false},
		{"Unknown", "True", false},
	} {
		c := &clusterv1alpha1.Cluster{Status: clusterv1alpha1.ClusterStatus{
			Conditions: []metav1.Condition{{Type: "Ready", Status: tt.stands, Reason: "Old", LastTransitionTime: long}}}}
		got := desiredStatus(c, observation{ready: metav1.Condition{Type: "Ready", Status: tt.found, Reason: "New"}}, true)
		ready := meta.FindStatusCondition(got.Conditions, "Ready")
		if ready.Status != tt.found || ready.Reason != "New" || ready.LastTransitionTime.Equal(&long) != tt.kept {
			t.Errorf("from %s to %s: %+v, want the time kept: %t", tt.stands, tt.found, ready, tt.kept)
		}
	}
}

// That another cluster answers is not waited out, as a failure is; the member's coming back is.
func TestAnotherClusterIsToldAtOnce(t *testing.T) {
	c := &clusterv1alpha1.Cluster{}
	c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True"}}
	for reason, want := range map[string]metav1.ConditionStatus{
		clusterv1alpha1.ReasonClusterIDMismatch: "False", clusterv1alpha1.ReasonClusterNotReachable: "True",
	} {
		got := desiredStatus(c, observation{ready: metav1.Condition{Type: "Ready", Status: "False", Reason: reason}}, false)
		if ready := meta.FindStatusCondition(got.Conditions, "Ready"); ready.Status != want {
			t.Errorf("%s below the threshold: %s, want %s", reason, ready.Status, want)
		}
	}
}

// One gateway that reaches a cluster suffices; those of nodes that are not ready, or unknown, do
// not count.
func TestNetwork(t *testing.T) {
	gateway := func(name string, connections ...string) submarinerv1.Gateway {
		g := submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, c := range connections {
			to, status, _ := strings.Cut(c, "=")
			g.Status.Connections = append(g.Status.Connections, submarinerv1.Connection{Status: submarinerv1.ConnectionStatus(status),
				Endpoint: submarinerv1.EndpointSpec{ClusterID: to}})
		}
		return g
	}
	nodes := []node{{name: "n1", ready: true}, {name: "n2", ready: true}, {name: "n3"}}
	got := network([]submarinerv1.Gateway{gateway("n1", "c=error", "b=connecting", "d=none"), gateway("n2", "c=connected", "b=error"),
		gateway("n3", "b=connected"), gateway("n4", "b=connected", "e=connected"), gateway("n1", "=connected")}, nodes, nil)
	want := []clusterv1alpha1.NetworkPath{{Cluster: "b"}, {Cluster: "c", Reachable: true}, {Cluster: "d"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The nearest path without loss counts, and figures that have hardly changed are those of before.
func TestNetworkFigures(t *testing.T) {
	type path struct {
		rtt, jitter string
		loss        int32
	}
	gateways := func(paths ...path) []submarinerv1.Gateway {
		g := submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		for _, p := range paths {
			g.Status.Connections = append(g.Status.Connections, submarinerv1.Connection{Status: submarinerv1.Connected, LossPercent: p.loss,
				Endpoint: submarinerv1.EndpointSpec{ClusterID: "b"}, LatencyRTT: &submarinerv1.LatencyRTTSpec{Average: p.rtt, StdDev: p.jitter}})
		}
		return []submarinerv1.Gateway{g}
	}
	figures := func(rtt, jitter time.Duration, loss int32) []clusterv1alpha1.NetworkPath {
		return []clusterv1alpha1.NetworkPath{{Cluster: "b", Reachable: true, LossPercent: loss, RTT: &metav1.Duration{Duration: rtt}, Jitter: &metav1.Duration{Duration: jitter}}}
	}
	const ms = time.Millisecond
	before := figures(20*ms, 2*ms, 0)
	for name, tt := range map[string]struct {
		paths  []path
		before []clusterv1alpha1.NetworkPath
		want   []clusterv1alpha1.NetworkPath
	}{
		"the first report":      {[]path{{"19.987654ms", "2ms", 0}}, nil, figures(19990*time.Microsecond, 2*ms, 0)},
		"the nearest of two":    {[]path{{"30ms", "1ms", 0}, {"9ms", "2ms", 0}}, nil, figures(9*ms, 2*ms, 0)},
		"the one without loss":  {[]path{{"9ms", "1ms", 20}, {"30ms", "2ms", 0}}, nil, figures(30*ms, 2*ms, 0)},
		"hardly changed":        {[]path{{"23.9ms", "2.9ms", 0}}, before, before},
		"a longer way":          {[]path{{"24.1ms", "2ms", 0}}, before, figures(24100*time.Microsecond, 2*ms, 0)},
		"more jitter":           {[]path{{"20ms", "3.1ms", 0}}, before, figures(20*ms, 3100*time.Microsecond, 0)},
		"it begins to lose":     {[]path{{"20ms", "2ms", 11}}, before, figures(20*ms, 2*ms, 11)},
		"it loses a bit more":   {[]path{{"20ms", "2ms", 12}}, figures(20*ms, 2*ms, 11), figures(20*ms, 2*ms, 11)},
		"it loses much more":    {[]path{{"20ms", "2ms", 30}}, figures(20*ms, 2*ms, 11), figures(20*ms, 2*ms, 30)},
		"not measured any more": {[]path{{"", "", 0}}, before, []clusterv1alpha1.NetworkPath{{Cluster: "b", Reachable: true}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, network(gateways(tt.paths...), []node{{name: "n1", ready: true}}, tt.before)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
