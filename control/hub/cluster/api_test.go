package cluster_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	remedyv1alpha1 "github.com/pelago-net/pelago/api/remedy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.HubControllers(), apiserver.CRDs("clusters.cluster.karmada.io", "remedies.remedy.karmada.io", "kindrules.pelago.io",
	"works.work.karmada.io", "resourcebindings.work.karmada.io", "clusterresourcebindings.work.karmada.io", "clustertaintpolicies.policy.karmada.io",
	"servicecontributions.pelago.io", "endpoints.submariner.io"))

func TestMain(m *testing.M) { os.Exit(apiserver.Run(m, server, cluster.PushServer)) }

// hub is an API server with the controllers of membership; each test has clusters of its own names.
type hub struct{ *apiserver.Cluster }

func newHub(t *testing.T, o cluster.MembershipOptions) hub {
	t.Helper()
	h := hub{apiserver.Connect(t, server.Config(t), clusterv1alpha1.AddToScheme, pelagov1alpha1.AddToScheme,
		policyv1alpha1.AddToScheme, remedyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme)}
	if o.Every == 0 {
		o.Every = 50 * time.Millisecond
	}
	if o.HubUID == "" {
		o.HubUID = "hub"
	}
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return cluster.SetupMembership(mgr, o)
	}}}.Run(t, h.Config)
	return h
}

func (h hub) join(name, id string, mode clusterv1alpha1.SyncMode) *clusterv1alpha1.Cluster {
	h.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{ID: id, SyncMode: mode}}
	h.Make(c)
	return c
}

// reads gets an object; false if it is not there.
func (h hub) reads(o client.Object) bool {
	h.Helper()
	err := h.Get(context.Background(), client.ObjectKeyFromObject(o), o)
	if client.IgnoreNotFound(err) != nil {
		h.Fatal(err)
	}
	return err == nil
}

func (h hub) cluster(name string) *clusterv1alpha1.Cluster {
	h.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if !h.reads(c) {
		h.Fatalf("Cluster %s is gone", name)
	}
	return c
}

// space is the execution namespace: "" if none exists, its label and phase if there is.
func (h hub) space(cluster string) string {
	h.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-es-" + cluster}}
	if !h.reads(ns) {
		return ""
	}
	return ns.Labels["karmada.io/system"] + " " + string(ns.Status.Phase)
}

func (h hub) awaitMember(name string) {
	h.Helper()
	await.Equal(h, "true Active", func() string { return h.space(name) })
}

// report is what a collector would write.
func (h hub) report(name string, status metav1.ConditionStatus, reason string) {
	h.Helper()
	await.True(h, "the status is written", func() bool {
		c := h.cluster(name)
		meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: "Ready", Status: status, Reason: reason})
		err := h.Status().Update(context.Background(), c)
		if err != nil && !apierrors.IsConflict(err) {
			h.Fatal(err)
		}
		return err == nil
	})
}

// taint gives a cluster taints with these keys, and no others.
func (h hub) taint(name string, keys ...string) {
	h.Helper()
	await.True(h, "the taints are written", func() bool {
		c := h.cluster(name)
		c.Spec.Taints = nil
		for _, key := range keys {
			c.Spec.Taints = append(c.Spec.Taints, clusterv1alpha1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
		err := h.Update(context.Background(), c)
		if err != nil && !apierrors.IsConflict(err) {
			h.Fatal(err)
		}
		return err == nil
	})
}

func (h hub) taints(name string) string {
	h.Helper()
	text := ""
	for _, t := range h.cluster(name).Spec.Taints {
		text += t.Key + ":" + string(t.Effect) + " "
	}
	return text
}

func (h hub) work(cluster, name string) *workv1alpha1.Work {
	h.Helper()
	manifest := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"default","name":"` + name + `"}}`
	w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{
		Namespace: "karmada-es-" + cluster, Name: name, Finalizers: []string{workv1alpha1.FinalizerExecution},
	}}
	w.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: []byte(manifest)}}}
	h.Make(w)
	return w
}

// removed is reason and message of the condition Removed; "gone" if the Cluster is.
func (h hub) removed(name string) (reason, message string) {
	h.Helper()
	c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if !h.reads(c) {
		return "gone", ""
	}
	if r := meta.FindStatusCondition(c.Status.Conditions, "Removed"); r != nil {
		return r.Reason, r.Message
	}
	return "", ""
}

func (h hub) awaitRemoved(name, reason string) {
	h.Helper()
	await.Equal(h, reason, func() string { got, _ := h.removed(name); return got })
}

// saw reports whether there was an Event of the reason on the Cluster.
func (h hub) saw(cluster, reason string) bool {
	h.Helper()
	var all corev1.EventList
	if err := h.List(context.Background(), &all, client.InNamespace("default")); err != nil {
		h.Fatal(err)
	}
	return slices.ContainsFunc(all.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == cluster && e.Reason == reason })
}

// Karmada, lifecycle: finalizer, execution namespace; on deletion the Works, then the
// namespace, then no binding names the cluster.
func TestJoinAndLeave(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	c := h.join("come", "", clusterv1alpha1.Push)
	h.awaitMember("come")
	if !slices.Contains(h.cluster("come").Finalizers, "karmada.io/cluster-controller") {
		t.Error("no finalizer on the Cluster")
	}
	await.True(t, "the Event", func() bool { return h.saw("come", "CreateExecutionSpaceSucceed") })
	h.report("come", metav1.ConditionTrue, "ClusterReady")
	w := h.work("come", "nginx")
	binding := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nginx-deployment"}}
	binding.Spec.Resource = workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "nginx"}
	binding.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "come", Replicas: 1}}
	h.Make(binding)

	h.Remove(c)
	h.awaitRemoved("come", "WaitingForWorks")
	if !h.reads(w) || w.DeletionTimestamp == nil {
		t.Error("the Work is not being deleted")
	}
	// A pull member would lose its rights with the namespace, before it has removed its objects.
	if got := h.space("come"); got != "true Active" {
		t.Errorf("while Works are there the namespace is %q", got)
	}
	w.Finalizers = nil // execution has removed the objects
	if err := h.Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	h.awaitRemoved("come", "WaitingForBindings")
	if got := h.space("come"); got != "" {
		t.Errorf("the namespace is %q", got)
	}
	if _, message := h.removed("come"); message != "cluster come is still named by ResourceBinding default/nginx-deployment" {
		t.Errorf("it says %q", message)
	}
	binding.Spec.Clusters = nil
	if err := h.Update(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	h.awaitRemoved("come", "gone")
	await.True(t, "the Event", func() bool { return h.saw("come", "RemoveExecutionSpaceSucceed") })
	h.Remove(binding)
}

// A cluster that does not answer is not removed for that reason; an administrator removes it, and
// gets a report of what stays behind.
func TestLeaveUnreachable(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	c := h.join("lost", "", clusterv1alpha1.Push)
	h.awaitMember("lost")
	h.report("lost", metav1.ConditionFalse, "ClusterNotReachable")
	w := h.work("lost", "web")
	h.work("lost", "api")
	left, err := cluster.Abandon(t.Context(), h.Client, "lost")
	if err == nil || left != nil || !strings.Contains(err.Error(), "delete it first") {
		t.Errorf("a member was abandoned: %v, %v", left, err)
	}

	h.Remove(c)
	h.awaitRemoved("lost", "WaitingForCluster")
	_, message := h.removed("lost")
	for _, want := range []string{"2 Works wait for cluster lost", "is not ready (ClusterNotReachable)", "`pelago unjoin --force`"} {
		if !strings.Contains(message, want) {
			t.Errorf("%q does not say %q", message, want)
		}
	}
	await.True(t, "the Event", func() bool { return h.saw("lost", "RemovalWaits") })
	version := h.cluster("lost").ResourceVersion
	await.Never(t, 300*time.Millisecond, "the Cluster is written or a Work goes while it waits, in six looks", func() bool {
		return h.cluster("lost").ResourceVersion != version || !h.reads(w)
	})

	left, err = cluster.Abandon(t.Context(), h.Client, "lost")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Deployment default/api (apps/v1)", "Deployment default/web (apps/v1)"}, left); diff != "" {
		t.Errorf("left behind -want +got\n%s", diff)
	}
	h.awaitRemoved("lost", "gone")
	if left, err := cluster.Abandon(t.Context(), h.Client, "lost"); err != nil || len(left) > 0 {
		t.Errorf("once more: %v, %v", left, err)
	}
}

// The credential that `pelago join` has made goes with the Cluster, that of another component
// stays.
func TestSecretGoesWithTheCluster(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	if err := h.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-cluster"}}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for name, labels := range map[string]map[string]string{"ours": {"app.kubernetes.io/managed-by": "pelago"}, "users": nil} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-cluster", Name: name, Labels: labels}}
		h.Make(secret)
		c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{ID: "u-" + name,
			SyncMode:  clusterv1alpha1.Push,
			SecretRef: &clusterv1alpha1.SecretReference{Namespace: secret.Namespace, Name: secret.Name}}}
		h.Make(c)
		h.awaitMember(name)
		if !h.reads(secret) {
			t.Fatalf("%s: the Secret of a member is gone", name)
		}
		h.Remove(c)
		h.awaitRemoved(name, "gone")
		if there := h.reads(secret); there != (labels == nil) {
			t.Errorf("%s: after the Cluster the Secret is there: %t", name, there)
		}
	}
}

// A cluster that joins again under its name gets its namespace once the former one is gone.
func TestJoinAgainAtOnce(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	for range 3 {
		c := h.join("again", "u-again", clusterv1alpha1.Push)
		h.awaitMember("again")
		h.Remove(c)
		h.awaitRemoved("again", "gone")
	}
}

// Karmada, taints by condition.
func TestTaintsFollowReady(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	h.join("taint", "", clusterv1alpha1.Push)
	h.awaitMember("taint")
	for _, step := range []struct {
		status metav1.ConditionStatus
		want   string
	}{
		{"", "cluster.karmada.io/not-ready:NoSchedule "},
		{metav1.ConditionTrue, ""},
		{metav1.ConditionUnknown, "cluster.karmada.io/unreachable:NoSchedule "},
		{metav1.ConditionFalse, "cluster.karmada.io/not-ready:NoSchedule "},
		{metav1.ConditionTrue, ""},
	} {
		if step.status != "" {
			h.report("taint", step.status, "Test")
		}
		await.Equal(t, step.want, func() string { return h.taints("taint") })
	}
	await.True(t, "the Event", func() bool { return h.saw("taint", "TaintClusterSucceed") })
}

// Karmada, ClusterTaintPolicy: taints follow the conditions, and stay when the policy is
// deleted.
func TestTaintPolicy(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	for _, name := range []string{"policed", "other"} {
		h.join(name, "", clusterv1alpha1.Push)
		h.awaitMember(name)
		h.report(name, metav1.ConditionTrue, "Test")
		await.Equal(t, "", func() string { return h.taints(name) })
	}
	match := func(operator policyv1alpha1.MatchConditionOperator) []policyv1alpha1.MatchCondition {
		return []policyv1alpha1.MatchCondition{{ConditionType: "Ready", Operator: operator, StatusValues: []metav1.ConditionStatus{metav1.ConditionTrue}}}
	}
	p := &policyv1alpha1.ClusterTaintPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policed"}, Spec: policyv1alpha1.ClusterTaintPolicySpec{
		TargetClusters:  &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"policed"}},
		AddOnConditions: match("NotIn"), RemoveOnConditions: match("In"),
		Taints: []policyv1alpha1.PolicyTaint{{Key: "down", Effect: corev1.TaintEffectNoExecute, Value: "yes"}},
	}}
	h.Make(p)
	for range 2 {
		for _, name := range []string{"policed", "other"} {
			h.report(name, metav1.ConditionFalse, "Test")
		}
		await.Equal(t, "cluster.karmada.io/not-ready:NoSchedule down:NoExecute ", func() string { return h.taints("policed") })
		await.Equal(t, "cluster.karmada.io/not-ready:NoSchedule ", func() string { return h.taints("other") })
		if is := h.cluster("policed").Spec.Taints[1]; is.Value != "yes" || is.TimeAdded.IsZero() {
			t.Errorf("taint %+v", is)
		}
		for _, name := range []string{"policed", "other"} {
			h.report(name, metav1.ConditionTrue, "Test")
			await.Equal(t, "", func() string { return h.taints(name) })
		}
	}
	h.report("policed", metav1.ConditionUnknown, "Test")
	await.Equal(t, "cluster.karmada.io/unreachable:NoSchedule down:NoExecute ", func() string { return h.taints("policed") })
	h.Remove(p)
	h.report("policed", metav1.ConditionTrue, "Test")
	await.Equal(t, "down:NoExecute ", func() string { return h.taints("policed") })
}

// Actions of a Remedy follow the conditions of the clusters that it names, and end with it.
func TestRemedy(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	for _, name := range []string{"remedied", "unnamed"} {
		h.join(name, "", clusterv1alpha1.Push)
		h.awaitMember(name)
		h.report(name, metav1.ConditionTrue, "Test")
	}
	resolves := func(name string, status metav1.ConditionStatus) {
		t.Helper()
		await.True(t, "the condition is written", func() bool {
			c := h.cluster(name)
			meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: "ServiceDomainNameResolutionReady", Status: status})
			return h.Status().Update(t.Context(), c) == nil
		})
	}
	actions := func(name string) func() string {
		return func() string { return strings.Join(h.cluster(name).Status.RemedyActions, " ") }
	}
	r := &remedyv1alpha1.Remedy{ObjectMeta: metav1.ObjectMeta{Name: "dns"}, Spec: remedyv1alpha1.RemedySpec{
		ClusterAffinity: &remedyv1alpha1.ClusterAffinity{ClusterNames: []string{"remedied"}},
		DecisionMatches: []remedyv1alpha1.DecisionMatch{{ClusterConditionMatch: &remedyv1alpha1.ClusterConditionRequirement{
			ConditionType: "ServiceDomainNameResolutionReady", Operator: remedyv1alpha1.ClusterConditionEqual, ConditionStatus: "False"}}},
		Actions: []remedyv1alpha1.RemedyAction{remedyv1alpha1.TrafficControl}}}
	h.Make(r)
	for range 2 {
		for _, name := range []string{"remedied", "unnamed"} {
			resolves(name, metav1.ConditionFalse)
		}
		await.Equal(t, "TrafficControl", actions("remedied"))
		resolves("remedied", metav1.ConditionTrue)
		await.Equal(t, "", actions("remedied"))
	}
	if got := actions("unnamed")(); got != "" {
		t.Errorf("a cluster that is not named has actions %s", got)
	}
	await.True(t, "it is accepted", func() bool {
		if err := h.Get(t.Context(), client.ObjectKeyFromObject(r), r); err != nil {
			t.Fatal(err)
		}
		return meta.IsStatusConditionTrue(r.Status.Conditions, policyv1alpha1.ConditionAccepted)
	})
	resolves("remedied", metav1.ConditionFalse)
	await.Equal(t, "TrafficControl", actions("remedied"))
	h.Remove(r)
	await.Equal(t, "", actions("remedied"))
}

// The other members' reports make the condition DataPlaneReachable; those of members that are not
// ready do not count.
func TestDataPlaneReachable(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	for _, name := range []string{"seen", "witness-1", "witness-2"} {
		h.join(name, "", clusterv1alpha1.Push)
		h.awaitMember(name)
		h.report(name, metav1.ConditionTrue, "Test")
	}
	reports := func(name string, network ...clusterv1alpha1.NetworkPath) {
		await.True(t, "the report is written", func() bool {
			c := h.cluster(name)
			c.Status.Network = network
			err := h.Status().Update(t.Context(), c)
			if err != nil && !apierrors.IsConflict(err) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	is := func() string {
		c := meta.FindStatusCondition(h.cluster("seen").Status.Conditions, clusterv1alpha1.ConditionDataPlaneReachable)
		if c == nil {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}
	yes, no := clusterv1alpha1.NetworkPath{Cluster: "seen", Reachable: true}, clusterv1alpha1.NetworkPath{Cluster: "seen"}
	reports("seen", clusterv1alpha1.NetworkPath{Cluster: "witness-1", Reachable: true}, yes)
	reports("witness-1", no)
	await.Equal(t, "False NoPeerReaches: no gateway of it answers the probes of witness-1", is)
	reports("witness-2", yes)
	const both = "True PeersReach: its gateways answer the probes of 1 of 2 clusters: of witness-2, but not of witness-1"
	await.Equal(t, both, is)
	h.join("witness-3", "", clusterv1alpha1.Push)
	h.awaitMember("witness-3")
	h.report("witness-3", metav1.ConditionTrue, "Test")
	reports("witness-3", no)
	await.Equal(t, "False FewPeersReach: its gateways answer the probes of 1 of 3 clusters: of witness-2, but not of witness-1, witness-3", is)
	reports("witness-3")
	await.Equal(t, both, is)
	h.taint("witness-2", clusterv1alpha1.TaintUnapproved)
	await.Equal(t, "False NoPeerReaches: no gateway of it answers the probes of witness-1", is)
	h.taint("witness-2")
	await.Equal(t, both, is)
	h.report("seen", metav1.ConditionUnknown, "Test")
	h.report("witness-2", metav1.ConditionUnknown, "Test")
	await.Equal(t, "False NoPeerReaches: no gateway of it answers the probes of witness-1", is)
	reports("witness-1")
	await.Equal(t, "", is)
	h.report("witness-2", metav1.ConditionTrue, "Test")
	await.Equal(t, "True PeersReach: its gateways answer the probes of witness-2", is)
	h.Remove(h.cluster("witness-2"))
	await.Equal(t, "", is)
}

// As in Karmada, spec.id detects a double registration; the hub is no member of itself.
func TestOneClusterIsNotTwoMembers(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	first := h.join("first", "u-one", clusterv1alpha1.Push)
	h.awaitMember("first")
	h.join("second", "u-one", clusterv1alpha1.Pull)
	h.join("self", "hub", clusterv1alpha1.Push)
	reason := func(name string) func() string {
		return func() string {
			if r := h.cluster(name).Ready(); r != nil {
				return string(r.Status) + " " + r.Reason
			}
			return ""
		}
	}
	await.Equal(t, "False ClusterIDTaken", reason("second"))
	await.Equal(t, "False ClusterIsHub", reason("self"))
	if message := h.cluster("second").Ready().Message; !strings.Contains(message, "is a member already, as first") {
		t.Errorf("it says %q", message)
	}
	for _, name := range []string{"second", "self"} {
		await.True(t, "the Event", func() bool { return h.saw(name, "ClusterRefused") })
		if c := h.cluster(name); h.space(name) != "" || c.Member() || len(c.Finalizers) > 0 {
			t.Errorf("%s is a member: %v %q", name, c.Finalizers, h.space(name))
		}
	}
	if !h.cluster("first").Member() {
		t.Error("the first is no member any more")
	}
	h.Remove(first)
	h.awaitMember("second")
	await.Equal(t, "", reason("second")) // until its status has been collected
}

// docs/validation.md, Cluster: models that contradict each other.
func TestInvalidModelsAreTold(t *testing.T) {
	h := newHub(t, cluster.MembershipOptions{})
	cpu := clusterv1alpha1.ResourceModelRange{Name: "cpu", Min: resource.MustParse("1"), Max: resource.MustParse("2")}
	h.Make(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "models"}, Spec: clusterv1alpha1.ClusterSpec{
		SyncMode:       clusterv1alpha1.Push,
		ResourceModels: []clusterv1alpha1.ResourceModel{{Ranges: []clusterv1alpha1.ResourceModelRange{cpu}}},
	}})
	await.True(t, "the Event", func() bool { return h.saw("models", "InvalidResourceModels") })
	h.awaitMember("models")
}

// Karmada, metrics of clusters.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	h := newHub(t, cluster.MembershipOptions{Registry: registry})
	h.join("metered", "", clusterv1alpha1.Push)
	h.awaitMember("metered")
	h.report("metered", metav1.ConditionTrue, "ClusterReady")
	await.True(t, "the summary is written", func() bool {
		c := h.cluster("metered")
		c.Status.NodeSummary = &clusterv1alpha1.NodeSummary{TotalNum: 3, ReadyNum: 2}
		c.Status.ResourceSummary = &clusterv1alpha1.ResourceSummary{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2500m")}}
		return h.Status().Update(t.Context(), c) == nil
	})
	value := func(name string) float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.Metric {
				if f.GetName() == name && m.Label[0].GetName() == "member_cluster" && m.Label[0].GetValue() == "metered" {
					return m.Gauge.GetValue()
				}
			}
		}
		return -1
	}
	for name, want := range map[string]float64{
		"cluster_ready_state": 1, "cluster_node_number": 3, "cluster_ready_node_number": 2,
		"cluster_cpu_allocatable_number": 2.5, "cluster_pod_allocated_number": 0,
	} {
		await.Equal(t, want, func() float64 { return value(name) })
	}
}
