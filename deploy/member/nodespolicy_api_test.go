package member

import (
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var policyServer = apiserver.NewShared()

func TestMain(m *testing.M) { os.Exit(policyServer.Run(m)) }

// TestAgentChangesNodes: of a Node the agent changes its label of gateways and the annotation beside it,
// whatever RBAC lets it patch.
func TestAgentChangesNodes(t *testing.T) {
	c := apiserver.Connect(t, policyServer.Config(t))
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
