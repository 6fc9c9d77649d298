package gateways

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// ready is a worker that has been Ready for an hour.
func ready(name, zone string, change ...func(*Node)) Node {
	n := Node{Name: name, Zone: zone, Ready: true, Since: now.Add(-time.Hour)}
	for _, c := range change {
		c(&n)
	}
	return n
}

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

func kept(n *Node)    { n.Gateway, n.Kept, n.Serving = true, true, true }
func users(n *Node)   { n.Gateway, n.Serving = true, true }
func out(n *Node)     { n.Out = true }
func control(n *Node) { n.ControlPlane = true }
func refused(n *Node) { n.Refused = true }
func starts(n *Node)  { n.Serving = false }
func optOut(n *Node)  { n.Kept, n.Gateway = true, false }
func dead(for_ time.Duration) func(*Node) {
	return func(n *Node) { n.Ready, n.Since = false, now.Add(-for_) }
}
func back(for_ time.Duration) func(*Node) { return func(n *Node) { n.Since = now.Add(-for_) } }

func TestDesired(t *testing.T) {
	const a, b = "zone-a", "zone-b"
	for name, tt := range map[string]struct {
		want  int
		nodes []Node
		plan  Plan
	}{
		"none is kept":                    {0, []Node{ready("n1", a), ready("n2", a, users)}, Plan{Serving: 1}},
		"two zones":                       {2, []Node{ready("n1", a), ready("n2", a), ready("n3", b)}, Plan{Add: []string{"n1", "n3"}}},
		"one zone":                        {2, []Node{ready("n1", a), ready("n2", a), ready("n3", a)}, Plan{Add: []string{"n1", "n2"}}},
		"only one node":                   {2, []Node{ready("n1", a)}, Plan{Add: []string{"n1"}, Missing: 1}},
		"a control plane beside workers":  {2, []Node{ready("c", a, control), ready("n1", a)}, Plan{Add: []string{"n1"}, Missing: 1}},
		"nothing but control planes":      {2, []Node{ready("c1", a, control), ready("c2", a, control)}, Plan{Add: []string{"c1", "c2"}}},
		"a user's gateway counts":         {2, []Node{ready("n1", a, users), ready("n2", a), ready("n3", b)}, Plan{Add: []string{"n3"}, Serving: 1}},
		"not Windows, not label=false":    {2, []Node{ready("n1", a, refused), ready("n2", a)}, Plan{Add: []string{"n2"}, Missing: 1}},
		"a user has removed our label":    {1, []Node{ready("n1", a, optOut), ready("n2", a)}, Plan{Add: []string{"n2"}}},
		"enough":                          {2, []Node{ready("n1", a, kept), ready("n2", b, kept), ready("n3", b)}, Plan{Serving: 2}},
		"one is drained":                  {2, []Node{ready("n1", a, kept, out), ready("n2", b, kept), ready("n3", a)}, Plan{Add: []string{"n3"}, Serving: 1}},
		"its substitute starts":           {2, []Node{ready("n1", a, kept, out), ready("n2", b, kept), ready("n3", a, kept, starts)}, Plan{Serving: 1}},
		"its substitute serves":           {2, []Node{ready("n1", a, kept, out), ready("n2", b, kept), ready("n3", a, kept)}, Plan{Serving: 2}},
		"one reboots":                     {2, []Node{ready("n1", a, kept, dead(20*time.Second)), ready("n2", b, kept), ready("n3", a)}, Plan{Serving: 1, Wait: 40 * time.Second}},
		"one is dead":                     {2, []Node{ready("n1", a, kept, dead(time.Minute)), ready("n2", b, kept), ready("n3", a)}, Plan{Add: []string{"n3"}, Serving: 1, Wait: 9 * time.Minute}},
		"dead for long, substitute works": {2, []Node{ready("n1", a, kept, dead(time.Hour)), ready("n2", b, kept), ready("n3", a, kept)}, Plan{Remove: []string{"n1"}, Serving: 2}},
		"dead for long, none serves":      {2, []Node{ready("n1", a, kept, dead(time.Hour)), ready("n2", b, kept)}, Plan{Serving: 1, Missing: 1}},
		"a user's is dead for long":       {1, []Node{ready("n1", a, users, dead(time.Hour)), ready("n2", b, kept)}, Plan{Serving: 1}},
		"the dead one is back":            {2, []Node{ready("n1", a, kept, back(time.Minute)), ready("n2", b, kept), ready("n3", a, kept)}, Plan{Serving: 3, Wait: 4 * time.Minute}},
		"and stays":                       {2, []Node{ready("n1", a, kept), ready("n2", b, kept), ready("n3", a, kept)}, Plan{Remove: []string{"n3"}, Serving: 3}},
		"surplus of users":                {1, []Node{ready("n1", a, users), ready("n2", b, users)}, Plan{Serving: 2}},
		"ours beside users'":              {2, []Node{ready("n1", a, users), ready("n2", b, users), ready("n3", b, kept)}, Plan{Remove: []string{"n3"}, Serving: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.plan, Desired(tt.nodes, tt.want, now)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// A machine that replaces a gateway under the same name is another node: its label is gone with the old
// Node, and what the old one has reported does not count. The agent labels it, or another one.
func TestReplacedNode(t *testing.T) {
	index := &v1alpha1.NodeIndex{Spec: v1alpha1.NodeIndexSpec{NodeUID: "old"},
		Status: v1alpha1.NodeIndexStatus{Gateway: true, Ready: true, Serving: true, NodeBootID: "boot-1"}}
	node := func(uid, boot string, labels, annotations map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gw", UID: types.UID(uid), Labels: labels, Annotations: annotations},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: boot}, Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}}}}
	}
	label, mark := map[string]string{submarinerv1.LabelGateway: "true"}, map[string]string{v1alpha1.AnnotationGatewayKept: "true"}
	for name, tt := range map[string]struct {
		node *corev1.Node
		plan Plan
	}{
		"as before":                    {node("old", "boot-1", label, mark), Plan{Serving: 1}},
		"rebooted":                     {node("old", "boot-2", label, mark), Plan{}},
		"replaced":                     {node("new", "boot-2", nil, nil), Plan{Add: []string{"gw"}}},
		"replaced, labelled by a pool": {node("new", "boot-2", label, nil), Plan{}},
	} {
		if diff := cmp.Diff(tt.plan, Desired([]Node{Of(tt.node, index)}, 1, now)); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}
