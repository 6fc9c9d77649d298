package member

import (
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var policyServer = apiserver.NewShared(apiserver.CRDs("nodeindices.pelago.io", "portblocks.pelago.io"))

func TestMain(m *testing.M) { os.Exit(policyServer.Run(m)) }

// withPolicies is an API server with the admission policies of a member.
func withPolicies(t *testing.T) *apiserver.Cluster {
	t.Helper()
	c := apiserver.Connect(t, policyServer.Config(t), pelagov1alpha1.AddToScheme)
	objs, err := manifests.MemberObjects(manifests.MemberOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range slices.DeleteFunc(objs, func(u *unstructured.Unstructured) bool {
		return u.GetKind() != "ValidatingAdmissionPolicy" && u.GetKind() != "ValidatingAdmissionPolicyBinding"
	}) {
		if err := manifests.Apply(t.Context(), c, u); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// TestAgentChangesNodes: of a Node the agent changes its label of gateways and the annotation beside it,
// whatever RBAC lets it patch.
func TestAgentChangesNodes(t *testing.T) {
	c := withPolicies(t)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"pool": "a"}}}
	c.Make(n)
	as := rest.CopyConfig(c.Config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:pelago-system:pelago-agent", Groups: []string{"system:masters"}}
	agent, err := client.New(as, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	try := func(change func(*corev1.Node)) error {
		have := &corev1.Node{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(n), have); err != nil {
			t.Fatal(err)
		}
		before := have.DeepCopy()
		change(have)
		return agent.Patch(t.Context(), have, client.MergeFrom(before))
	}
	// a policy takes a moment to apply
	await.True(t, "the policy refuses a cordon", func() bool {
		return apierrors.IsInvalid(try(func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable }))
	})
	for name, tt := range map[string]struct {
		change func(*corev1.Node)
		ok     bool
	}{
		"gateway": {func(n *corev1.Node) {
			n.Labels[submarinerv1.LabelGateway] = "true"
			n.Annotations = map[string]string{pelagov1alpha1.AnnotationGatewayKept: "true"}
		}, true},
		"another label":      {func(n *corev1.Node) { n.Labels["pool"] = "b" }, false},
		"a label less":       {func(n *corev1.Node) { delete(n.Labels, "pool") }, false},
		"another annotation": {func(n *corev1.Node) { n.Annotations = map[string]string{"x": "y"} }, false},
		"a taint":            {func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}} }, false},
	} {
		if err := try(tt.change); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDaemonReportsOnItsNode: with the token of one node's daemon the reports of no other node can be
// written. Tokens of Kubernetes before 1.30 do not name the node.
func TestDaemonReportsOnItsNode(t *testing.T) {
	c := withPolicies(t)
	daemon := func(extra map[string][]string) client.Client {
		as := rest.CopyConfig(c.Config)
		as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:pelago-system:pelago-node", Groups: []string{"system:masters"}, Extra: extra}
		d, err := client.New(as, client.Options{Scheme: c.Scheme()})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	of := func(node string) client.Client {
		return daemon(map[string][]string{"authentication.kubernetes.io/node-name": {node}})
	}
	index := &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1, NodeUID: "u1"}}
	block := &pelagov1alpha1.PortBlock{ObjectMeta: metav1.ObjectMeta{Name: "b1"}, Spec: pelagov1alpha1.PortBlockSpec{
		EgressIP: "120.1.0.1", FirstPort: 1024, Node: "w1", NodeUID: "u1", Pool: pelagov1alpha1.EgressPool{Name: "cluster"}, State: pelagov1alpha1.BlockActive}}
	c.Make(index)
	c.Make(block)
	for _, o := range []client.Object{index, block} {
		report := func(d client.Client) error {
			return d.Status().Patch(t.Context(), o.DeepCopyObject().(client.Object), client.RawPatch(types.MergePatchType, []byte(`{"status":{}}`)), client.DryRunAll)
		}
		await.True(t, "the policy refuses another node's report", func() bool { return apierrors.IsForbidden(report(of("w2"))) })
		for name, d := range map[string]client.Client{"the own node": of("w1"), "a token without a node": daemon(nil)} {
			if err := report(d); err != nil {
				t.Errorf("%s, %T: %v", name, o, err)
			}
		}
	}
}
