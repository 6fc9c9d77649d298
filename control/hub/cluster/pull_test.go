package cluster_test

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/test/await"
)

// agent joins a pull member and returns what its agent sees of the hub: a client with the member's
// own token.
func (h hub) agent(name string) client.Client {
	h.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "submariner-k8s-broker"}}
	if err := h.Create(context.Background(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		h.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "cluster-" + name}}
	h.Make(account)
	h.join(name, "u-"+name, clusterv1alpha1.Pull)
	h.awaitMember(name)
	token := &authenticationv1.TokenRequest{}
	if err := h.SubResource("token").Create(context.Background(), account, token); err != nil {
		h.Fatal(err)
	}
	config := rest.AnonymousClientConfig(h.Config)
	config.BearerToken = token.Status.Token
	c, err := client.New(config, client.Options{Scheme: h.Scheme()})
	if err != nil {
		h.Fatal(err)
	}
	await.True(h, "the rights of "+name+" are in force", func() bool {
		return c.Get(context.Background(), client.ObjectKey{Namespace: "karmada-cluster", Name: name}, &coordinationv1.Lease{}) == nil &&
			c.List(context.Background(), &workv1alpha1.WorkList{}, client.InNamespace("karmada-es-"+name)) == nil &&
			c.Get(context.Background(), client.ObjectKey{Name: name}, &clusterv1alpha1.Cluster{}) == nil
	})
	return c
}

var touch = client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"yes"}}}`))

// statusPatch reports that the cluster has a node.
var statusPatch = client.RawPatch(types.MergePatchType, []byte(`{"status":{"nodeSummary":{"totalNum":1}}}`))

// With its identity a member reads and writes its own objects, and no other cluster's.
func TestAPullMemberReachesItsOwnOnly(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	ctx := t.Context()
	one := h.agent("p1")
	h.agent("p2")
	own, other := h.work("p1", "web"), h.work("p2", "web")
	event := func(namespace string) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "e-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Work", Namespace: namespace, Name: "web"}}
	}
	lease := func(name string) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-cluster", Name: name}}
		if !h.reads(l) {
			t.Fatalf("no Lease %s", name)
		}
		return l
	}
	cluster := func(name string) *clusterv1alpha1.Cluster {
		return &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	copyOf := func(w *workv1alpha1.Work) *workv1alpha1.Work { return w.DeepCopy() }
	named := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}

	rules := &pelagov1alpha1.KindRules{ObjectMeta: named("", "mine"), Spec: pelagov1alpha1.KindRulesSpec{
		Kinds: []pelagov1alpha1.RuledKind{{APIVersion: "apps/v1", Kind: "Deployment"}}, Rules: pelagov1alpha1.Rules{Healthy: "true"},
	}}
	workStatus := client.RawPatch(types.MergePatchType, []byte(`{"status":{"manifestStatuses":[]}}`))
	free := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	for what, err := range map[string]error{
		"list its Works":           one.List(ctx, &workv1alpha1.WorkList{}, client.InNamespace("karmada-es-p1")),
		"write a Work's status":    one.Status().Patch(ctx, copyOf(own), workStatus),
		"take a Work's finalizer":  one.Patch(ctx, copyOf(own), free),
		"make an Event":            one.Create(ctx, event("karmada-es-p1")),
		"read its Cluster":         one.Get(ctx, client.ObjectKey{Name: "p1"}, cluster("p1")),
		"write its Cluster status": one.Status().Patch(ctx, cluster("p1"), statusPatch),
		"renew its Lease":          one.Update(ctx, lease("p1")),
		"read the rules of kinds":  one.List(ctx, &pelagov1alpha1.KindRulesList{}),
	} {
		if err != nil {
			t.Errorf("%s: %v, want it allowed", what, err)
		}
	}
	for what, err := range map[string]error{
		"list another's Works":          one.List(ctx, &workv1alpha1.WorkList{}, client.InNamespace("karmada-es-p2")),
		"list all Works":                one.List(ctx, &workv1alpha1.WorkList{}),
		"get another's Work":            one.Get(ctx, client.ObjectKeyFromObject(other), copyOf(other)),
		"write another's Work":          one.Patch(ctx, copyOf(other), touch),
		"write another's Work status":   one.Status().Patch(ctx, copyOf(other), workStatus),
		"create a Work":                 one.Create(ctx, &workv1alpha1.Work{ObjectMeta: named("karmada-es-p1", "mine")}),
		"create another's Work":         one.Create(ctx, &workv1alpha1.Work{ObjectMeta: named("karmada-es-p2", "mine")}),
		"delete its Work":               one.Delete(ctx, copyOf(own)),
		"delete another's Work":         one.Delete(ctx, copyOf(other)),
		"make an Event elsewhere":       one.Create(ctx, event("karmada-es-p2")),
		"make an Event in default":      one.Create(ctx, event("default")),
		"list Clusters":                 one.List(ctx, &clusterv1alpha1.ClusterList{}),
		"read another's Cluster":        one.Get(ctx, client.ObjectKey{Name: "p2"}, cluster("p2")),
		"write its Cluster":             one.Patch(ctx, cluster("p1"), touch),
		"write another's status":        one.Status().Patch(ctx, cluster("p2"), statusPatch),
		"delete its Cluster":            one.Delete(ctx, cluster("p1")),
		"read another's Lease":          one.Get(ctx, client.ObjectKeyFromObject(lease("p2")), lease("p2")),
		"renew another's Lease":         one.Update(ctx, lease("p2")),
		"list Leases":                   one.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace("karmada-cluster")),
		"list Secrets of push members":  one.List(ctx, &corev1.SecretList{}, client.InNamespace("karmada-cluster")),
		"get a Secret of a push member": one.Get(ctx, client.ObjectKey{Namespace: "karmada-cluster", Name: "p2"}, &corev1.Secret{}),
		"get its namespace":             one.Get(ctx, client.ObjectKey{Name: "karmada-es-p1"}, &corev1.Namespace{}),
		"get another's namespace":       one.Get(ctx, client.ObjectKey{Name: "karmada-es-p2"}, &corev1.Namespace{}),
		"list Secrets of its namespace": one.List(ctx, &corev1.SecretList{}, client.InNamespace("karmada-es-p1")),
		"write rules of kinds":          one.Create(ctx, rules),
		"widen its role":                one.Patch(ctx, &rbacv1.Role{ObjectMeta: named("karmada-es-p1", "cluster-p1.execution")}, touch),
		"widen its cluster role":        one.Patch(ctx, &rbacv1.ClusterRole{ObjectMeta: named("", "cluster-p1.execution")}, touch),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want 403", what, err)
		}
	}
}

// The rights of a pull member end with its Cluster, and when it becomes a push member; a right that
// was changed comes back.
func TestRightsEndWithTheMembership(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	ctx := t.Context()
	listed := func(c client.Client, cluster string) func() bool {
		return func() bool {
			err := c.Get(ctx, client.ObjectKey{Name: cluster}, &clusterv1alpha1.Cluster{})
			if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
			return !apierrors.IsForbidden(err)
		}
	}
	not := func(f func() bool) func() bool { return func() bool { return !f() } }

	one := h.agent("p3")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "cluster-p3.execution"}}
	if err := h.Patch(ctx, role, client.RawPatch(types.MergePatchType, []byte(`{"rules":[]}`))); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the right is gone", not(listed(one, "p3")))
	if err := h.Patch(ctx, h.cluster("p3"), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"region":"x"}}`))); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the right is back", listed(one, "p3"))

	push := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"syncMode":"Push"}}`))
	if err := h.Patch(ctx, h.cluster("p3"), push); err != nil {
		t.Fatal(err)
	}
	await.True(t, "a push member has no rights", not(listed(one, "p3")))
	await.True(t, "nor a Lease", func() bool {
		return !h.reads(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-cluster", Name: "p3"}})
	})

	two := h.agent("p4")
	h.Remove(h.cluster("p4"))
	h.awaitRemoved("p4", "gone")
	await.True(t, "the rights end with the Cluster", not(listed(two, "p4")))
}

// A pull member that is being removed keeps its rights until its Works are gone: it is the one who
// removes the objects.
func TestALeavingPullMemberFinishesItsWorks(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	one := h.agent("p5")
	w := h.work("p5", "web")
	h.report("p5", metav1.ConditionTrue, "ClusterReady")
	h.Remove(h.cluster("p5"))
	await.True(t, "the Work is being deleted", func() bool {
		if err := one.Get(t.Context(), client.ObjectKeyFromObject(w), w); err != nil {
			t.Fatalf("the agent cannot read its Work: %v", err)
		}
		return w.DeletionTimestamp != nil
	})
	w.Finalizers = nil
	if err := one.Update(t.Context(), w); err != nil {
		t.Fatalf("the agent cannot end its Work: %v", err)
	}
	h.awaitRemoved("p5", "gone")
}

// Karmada, pull heartbeat and conditions: Unknown ClusterStatusNeverUpdated, Unknown
// ClusterStatusUnknown; push members are exempt.
func TestLeasesAreWatchedOver(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{Grace: 2 * time.Second, StartupGrace: 3 * time.Second})
	ready := func(name string) func() string {
		return func() string {
			if r := h.cluster(name).Ready(); r != nil {
				return string(r.Status) + " " + r.Reason
			}
			return ""
		}
	}
	h.join("pushed", "", clusterv1alpha1.Push)
	h.awaitMember("pushed")
	h.report("pushed", metav1.ConditionTrue, "ClusterReady")

	one := h.agent("p6")
	await.Equal(t, "Unknown ClusterStatusNeverUpdated", ready("p6"))
	await.Equal(t, "cluster.karmada.io/unreachable:NoSchedule ", func() string { return h.taints("p6") })

	renew := func() {
		l := &coordinationv1.Lease{}
		if err := one.Get(t.Context(), client.ObjectKey{Namespace: "karmada-cluster", Name: "p6"}, l); err != nil {
			t.Fatal(err)
		}
		now := metav1.NowMicro()
		l.Spec.RenewTime = &now
		if err := one.Update(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	h.report("p6", metav1.ConditionTrue, "ClusterReady")
	await.Never(t, 4*time.Second, "within twice the grace an agent that renews its Lease is not ready", func() bool {
		renew()
		return ready("p6")() != "True ClusterReady"
	})
	silent := time.Now()
	await.Equal(t, "Unknown ClusterStatusUnknown", ready("p6"))
	if took := time.Since(silent); took < 1500*time.Millisecond {
		t.Errorf("given up after %v, the grace is 2 s", took)
	}
	if got := ready("pushed")(); got != "True ClusterReady" {
		t.Errorf("a push member is judged by a Lease: %s", got)
	}
	// It had not been ready for an hour when its agent became silent.
	long := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	await.True(t, "the condition is written", func() bool {
		c := h.cluster("p6")
		c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "ClusterNotReady", LastTransitionTime: long}}
		return h.Status().Update(t.Context(), c) == nil
	})
	await.Equal(t, "Unknown ClusterStatusUnknown", ready("p6"))
	if since := h.cluster("p6").Ready().LastTransitionTime; !since.Equal(&long) {
		t.Errorf("not ready since %v, want %v", since, long)
	}
}
