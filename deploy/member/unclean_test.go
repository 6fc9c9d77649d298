package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// leaving is a cluster with these nodes, of which those in cleaned have a pod that has cleaned it.
type leaving struct {
	*testing.T
	client.Client
	said []string
}

func newLeaving(t *testing.T, nodes ...client.Object) *leaving {
	t.Helper()
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	objs, err := manifests.MemberObjects(manifests.MemberOptions{Image: "pelago:1", PullPolicy: "Always"})
	if err != nil {
		t.Fatal(err)
	}
	all := nodes
	for _, u := range objs {
		all = append(all, u)
	}
	system := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: name}
	}
	all = append(all, &corev1.ConfigMap{ObjectMeta: system(config.ConfigMapName)}, &corev1.Secret{ObjectMeta: system(config.BrokerSecretName)},
		&corev1.Secret{ObjectMeta: system(config.PSKSecretName)}, &corev1.Secret{ObjectMeta: system(config.OverlayTokenSecretName)})
	return &leaving{T: t, Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(all...).
		WithInterceptorFuncs(interceptor.Funcs{List: slowly}).Build()}
}

// slowly answers later than the timeout of remove, as a busy API server does.
func slowly(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
	if _, ok := list.(*corev1.NodeList); ok {
		select {
		case <-time.After(2 * removalTimeout):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return c.List(ctx, list, o...)
}

const removalTimeout = 50 * time.Millisecond

// ran is the state of a pod that has cleaned a node.
func (l *leaving) ran(node string, exit int32) {
	l.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: "pelago-node-" + node, Labels: map[string]string{"app": "pelago-node"}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{{Name: cleanContainer,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exit}}}}}}
	if err := l.Create(l.Context(), p); err != nil {
		l.Fatal(err)
	}
}

func (l *leaving) remove(force bool) error {
	l.Helper()
	_, err := RemoveMember(l.Context(), l, Removal{HubID: "hub", Timeout: removalTimeout, Force: force,
		Progress: func(format string, args ...any) { l.said = append(l.said, fmt.Sprintf(format, args...)) }})
	return err
}

func (l *leaving) has(obj client.Object, name string) bool {
	l.Helper()
	err := l.Get(l.Context(), client.ObjectKey{Namespace: config.SystemNamespace, Name: name}, obj)
	if client.IgnoreNotFound(err) != nil {
		l.Fatal(err)
	}
	return !apierrors.IsNotFound(err)
}

func nodeNamed(name string, ready corev1.ConditionStatus, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
}

// A node that is off is named, and its cleaner stays until it has come back; nodes that cannot run the
// daemon are not waited for. The removal can be repeated until all are clean.
func TestUncleanNodes(t *testing.T) {
	l := newLeaving(t, nodeNamed("n1", corev1.ConditionTrue, nil), nodeNamed("n2", corev1.ConditionUnknown, nil), nodeNamed("n3", corev1.ConditionTrue, nil),
		nodeNamed("virtual", corev1.ConditionTrue, map[string]string{"type": "virtual-kubelet"}),
		nodeNamed("windows", corev1.ConditionTrue, map[string]string{"kubernetes.io/os": "windows"}))
	l.ran("n1", 0)
	l.ran("n3", 1)
	for range 2 {
		var unclean *UncleanError
		if err := l.remove(false); !errors.As(err, &unclean) {
			t.Fatalf("error %v, want an UncleanError", err)
		}
		if diff := cmp.Diff([]string{"n2", "n3"}, unclean.Nodes); diff != "" {
			t.Errorf("unclean nodes: -want +got\n%s", diff)
		}
		d := &appsv1.DaemonSet{}
		if !l.has(d, manifests.NodeDaemonSet) {
			t.Fatal("the cleaner is gone")
		}
		if diff := cmp.Diff([]string{"n2", "n3"}, topology.AffinityNames(d.Spec.Template.Spec.Affinity)); diff != "" {
			t.Errorf("nodes of the cleaner: -want +got\n%s", diff)
		}
		for _, v := range d.Spec.Template.Spec.Volumes {
			if v.Secret != nil && (v.Secret.Optional == nil || !*v.Secret.Optional) {
				t.Errorf("the cleaner needs Secret %s, which is gone", v.Secret.SecretName)
			}
		}
		if !l.has(&corev1.ConfigMap{}, config.ConfigMapName) || !l.has(&corev1.ServiceAccount{}, manifests.NodeDaemonSet) {
			t.Error("the configuration or the account of the cleaner is gone")
		}
		if l.has(&corev1.Secret{}, config.BrokerSecretName) || l.has(&appsv1.Deployment{}, manifests.AgentDeployment) || l.has(&rbacv1.Role{}, "pelago-agent") {
			t.Error("credentials, the agent or its rights are left")
		}
	}
	if said := strings.Join(l.said, "\n"); !strings.Contains(said, "node n2 is not clean: it is not Ready") || !strings.Contains(said, "node n3 is not clean: it has not been cleaned yet") {
		t.Errorf("it says\n%s", said)
	}
	// The pod of n1, which is not wanted any more, is gone; n2 comes back, n3 is deleted.
	for _, gone := range []client.Object{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: "pelago-node-n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}},
	} {
		if err := l.Delete(t.Context(), gone); err != nil {
			t.Fatal(err)
		}
	}
	l.ran("n2", 0)
	if err := l.remove(false); err != nil {
		t.Fatal(err)
	}
	if l.has(&appsv1.DaemonSet{}, manifests.NodeDaemonSet) || l.has(&corev1.ServiceAccount{}, manifests.NodeDaemonSet) {
		t.Error("the cleaner is left")
	}
}

// With force nodes that are off are given up by name, and their pods do not keep the namespace.
func TestUncleanNodesGivenUp(t *testing.T) {
	l := newLeaving(t, nodeNamed("n1", corev1.ConditionTrue, nil), nodeNamed("n2", corev1.ConditionUnknown, nil))
	l.ran("n1", 0)
	l.ran("n2", 1)
	if err := l.remove(true); err != nil {
		t.Fatal(err)
	}
	if l.has(&corev1.Pod{}, "pelago-node-n2") || l.has(&appsv1.DaemonSet{}, manifests.NodeDaemonSet) {
		t.Error("a pod of the node that is off or the cleaner is left")
	}
	if !slices.ContainsFunc(l.said, func(s string) bool { return strings.HasPrefix(s, "Giving up nodes n2:") }) {
		t.Errorf("it says %q", l.said)
	}
}
