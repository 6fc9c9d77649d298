package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	members "github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// TestPushAndPull makes a hub and joins the member by push and by pull. No controllers run: it checks
// what the command line leaves.
func TestPushAndPull(t *testing.T) {
	t.Parallel()
	c := newClusterset(t)
	hub := apiserver.Connect(t, c.hub, clusterv1alpha1.AddToScheme, workv1alpha1.AddToScheme)
	member := apiserver.Connect(t, c.member)
	file := filepath.Join(c.dir, "pelago-hub.kubeconfig")
	push := func(name string, more ...string) []string {
		return append([]string{"join", name, "--context", "hub", "--cluster-kubeconfig", c.kubeconfig}, more...)
	}
	c.fails(t, "run `pelago init` there", push("m1", "--cluster-context", "g1")...)

	t.Run("init", func(t *testing.T) { c.testInit(t, file) })
	t.Run("push", func(t *testing.T) {
		c.must(t, push("m1", "--cluster-context", "g1", "--cluster-region", "eu", "--cluster-zones", "a,b")...)
		want := clusterv1alpha1.ClusterSpec{
			ID: uid(t, member), SyncMode: clusterv1alpha1.Push, APIEndpoint: c.member.Host, Region: "eu", Zones: []string{"a", "b"},
			SecretRef: &clusterv1alpha1.SecretReference{Namespace: "karmada-cluster", Name: "m1"},
		}
		cluster := &clusterv1alpha1.Cluster{}
		must(t, hub.Get(t.Context(), client.ObjectKey{Name: "m1"}, cluster))
		if diff := cmp.Diff(want, cluster.Spec); diff != "" {
			t.Errorf("Cluster: -want +got\n%s", diff)
		}
		// A field that a user changed at the hub stays when the cluster joins again.
		cluster.Spec.Provider = "example"
		must(t, hub.Update(t.Context(), cluster))
		c.must(t, push("m1", "--cluster-context", "g1")...)
		want.Provider = "example"
		must(t, hub.Get(t.Context(), client.ObjectKey{Name: "m1"}, cluster))
		if diff := cmp.Diff(want, cluster.Spec); diff != "" {
			t.Errorf("Cluster after joining again: -want +got\n%s", diff)
		}
		secret := &corev1.Secret{}
		must(t, hub.Get(t.Context(), client.ObjectKey{Namespace: "karmada-cluster", Name: "m1"}, secret))
		if len(secret.OwnerReferences) > 0 || secret.Labels["app.kubernetes.io/managed-by"] != "pelago" {
			t.Errorf("the Secret has owners %v and labels %v: want none, and the one by which it goes with the Cluster",
				secret.OwnerReferences, secret.Labels)
		}
		checkPushRights(t, c.member.Host, secret)
	})
	t.Run("push refused", func(t *testing.T) {
		c.fails(t, `registered as "m1": use that name`, push("m2", "--cluster-context", "g1")...)
		c.fails(t, "is the hub itself", push("m2", "--cluster-context", "hub")...)
		c.fails(t, "not an RFC 1123 label", push("M_2", "--cluster-context", "g1")...)
		c.fails(t, "reach the cluster by --cluster-kubeconfig", push("m2", "--cluster-context", "nowhere")...)
		c.fails(t, "no such file", "join", "m2", "--context", "hub", "--cluster-kubeconfig", filepath.Join(c.dir, "none"))
		c.fails(t, "give --cluster-kubeconfig as well", "join", "m2", "--context", "hub", "--cluster-context", "g1")
		c.fails(t, "to make a push member of that name give --cluster-kubeconfig", "join", "m2", "--context", "hub")
		c.fails(t, "[--globalnet-cidr]: joining with --cluster-kubeconfig makes a push member", push("m2", "--cluster-context", "g1",
			"--globalnet-cidr", "120.1.0.0/24")...)
		c.fails(t, "is a file here", push(c.kubeconfig, "--cluster-context", "g1")...)
		c.fails(t, "run `pelago init` there, or name the hub", "join", "m2", "--context", "g1", "--cluster-kubeconfig", c.kubeconfig,
			"--cluster-context", "hub")
	})
	t.Run("push without a check of the certificate", func(t *testing.T) { c.testUnverified(t, hub) })
	t.Run("push unjoined", func(t *testing.T) {
		unjoin := []string{"unjoin", "m1", "--context", "hub", "--cluster-kubeconfig", c.kubeconfig, "--cluster-context"}
		c.fails(t, "leads to another cluster", append(unjoin, "hub")...)
		c.fails(t, "say which member", "unjoin", "--cluster-kubeconfig", c.kubeconfig)
		c.fails(t, "see `kubectl get clusters.cluster.karmada.io`", "unjoin", "m2", "--context", "hub")
		c.must(t, append(unjoin, "g1")...)
		await.True(t, "the Secret of the Cluster is gone", func() bool {
			return apierrors.IsNotFound(hub.Get(t.Context(), client.ObjectKey{Namespace: "karmada-cluster", Name: "m1"}, &corev1.Secret{}))
		})
		await.True(t, "the hub's namespace in the member is gone", func() bool {
			return apierrors.IsNotFound(member.Get(t.Context(), client.ObjectKey{Name: "karmada-cluster"}, &corev1.Namespace{}))
		})
		const role = "karmada-controller-manager:karmada-m1"
		for _, obj := range []client.Object{&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}} {
			if err := member.Get(t.Context(), client.ObjectKey{Name: role}, obj); !apierrors.IsNotFound(err) {
				t.Errorf("%T %s stays: %v", obj, role, err)
			}
		}
		c.must(t, append(unjoin, "g1")...) // an interrupted one can be repeated
	})
	t.Run("pull", func(t *testing.T) { c.testPull(t, hub, member) })
	t.Run("evict", func(t *testing.T) { c.testEvict(t, hub) })
}

// testEvict: a member that would not leave loses its rights at once, and what the hub holds of it is
// removed without it.
func (c clusterset) testEvict(t *testing.T, hub *apiserver.Cluster) {
	ctx := t.Context()
	admin := open(t, c.hub)
	c.must(t, c.join("--clusterid", "g1", "--network-only=false")...)
	c.must(t, "clusters", "accept", "g1", "--context", "hub")
	access, err := config.ParseBroker((&reader{t, open(t, c.member)}).secret(config.BrokerSecretName))
	must(t, err)
	own := open(t, &rest.Config{Host: access.Server, BearerToken: access.Token, TLSClientConfig: rest.TLSClientConfig{CAData: access.CA}})
	must(t, own.List(ctx, &submarinerv1.ClusterList{}, client.InNamespace(access.Namespace)))
	cluster := &clusterv1alpha1.Cluster{}
	must(t, hub.Get(ctx, client.ObjectKey{Name: "g1"}, cluster))
	cluster.Finalizers = []string{clusterv1alpha1.FinalizerCluster}
	cluster.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "ClusterReady", LastTransitionTime: metav1.Now()}}
	must(t, hub.Update(ctx, cluster))
	work := &workv1alpha1.Work{
		ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-g1", Name: "kept", Finalizers: []string{workv1alpha1.FinalizerExecution}},
		Spec: workv1alpha1.WorkSpec{Workload: workv1alpha1.WorkloadTemplate{Manifests: []workv1alpha1.Manifest{
			{RawExtension: runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"kept"}}`)}}}}}}
	hub.Make(work)

	c.fails(t, "cluster g9 is not registered", "clusters", "evict", "g9", "--context", "hub", "--yes")
	c.must(t, "clusters", "evict", "g9", "--context", "hub", "--yes", "--ignore-not-found")
	out, err := c.pelago("clusters", "evict", "g1", "--context", "hub", "--yes", "--timeout", "1s")
	if err == nil || !strings.Contains(err.Error(), "is still being removed") || !strings.Contains(out, "ConfigMap default/kept (v1) stays in the cluster") {
		t.Errorf("evict, while no pelago-hub runs: %v\n%s", err, out)
	}
	begin := time.Now()
	await.True(t, "its token is refused", func() bool {
		return apierrors.IsUnauthorized(own.List(ctx, &submarinerv1.ClusterList{}, client.InNamespace(access.Namespace)))
	})
	t.Logf("its token was refused %s after evict had returned", time.Since(begin).Round(time.Second))
	for _, obj := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: access.Namespace, Name: "cluster-g1"}},
		&submarinerv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: access.Namespace, Name: "g1"}},
	} {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(obj), obj); !apierrors.IsNotFound(err) {
			t.Errorf("%T of the evicted cluster: %v, want none", obj, err)
		}
	}
	must(t, hub.Get(ctx, client.ObjectKey{Name: "g1"}, cluster))
	if cluster.Accepted() || cluster.DeletionTimestamp == nil {
		t.Errorf("its Cluster: taints %v, deleted at %v; want it rejected and deleted", cluster.Spec.Taints, cluster.DeletionTimestamp)
	}
	cluster.Finalizers = nil // as pelago-hub does
	must(t, hub.Update(ctx, cluster))
	c.must(t, "clusters", "evict", "g1", "--context", "hub", "--yes", "--ignore-not-found")
}

// testInit runs init twice and checks the credential of pelago-hub.
func (c clusterset) testInit(t *testing.T, file string) {
	init := []string{"init", "--context", "hub", "--output", file}
	out := c.must(t, init...)
	if !strings.Contains(out, "pelago-hub --kubeconfig "+file) || !strings.Contains(out,
		"pelago join NAME --cluster-kubeconfig FILE") {
		t.Errorf("init does not say what to do next:\n%s", out)
	}
	first := readFile(t, file)
	if stat, err := os.Stat(file); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v; want mode 0600", file, stat.Mode(), err)
	}
	c.must(t, init...)
	if readFile(t, file) != first {
		t.Error("running init again changed the credential")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	must(t, err)
	own := apiserver.Connect(t, cfg, policyv1alpha1.AddToScheme)
	must(t, own.List(t.Context(), &policyv1alpha1.PropagationPolicyList{}))
	if err := own.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x",
		Namespace: "default"}}); !apierrors.IsForbidden(err) {
		t.Errorf("pelago-hub creates a template: %v, want a refusal", err)
	}
	left := &appsv1.DeploymentList{}
	must(t, apiserver.Connect(t, c.hub).List(t.Context(), left))
	if len(left.Items) > 0 {
		t.Errorf("init left %d Deployments", len(left.Items))
	}
}

// checkPushRights uses the credential that the hub has of a push member.
func checkPushRights(t *testing.T, host string, secret *corev1.Secret) {
	t.Helper()
	cfg := &rest.Config{Host: host, BearerToken: string(secret.Data["token"]),
		TLSClientConfig: rest.TLSClientConfig{CAData: secret.Data["caBundle"]}}
	own := apiserver.Connect(t, cfg)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default"}}
	own.Make(cm)
	own.Remove(cm)
	// A Role may have rights that the credential has not.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"},
		Resources: []string{"*"}, Verbs: []string{"*"}}}}
	own.Make(role)
	own.Remove(role)
	if err := own.DeleteAllOf(t.Context(), cm, client.InNamespace("default")); !apierrors.IsForbidden(err) {
		t.Errorf("deletion of a collection: %v, want a refusal", err)
	}
	cfg.Impersonate.UserName = "another"
	if err := apiserver.Connect(t, cfg).List(t.Context(), &corev1.ConfigMapList{}); !apierrors.IsForbidden(err) {
		t.Errorf("impersonating another user: %v, want a refusal", err)
	}
}

// testPull joins the member by broker-info.subm to a hub that propagates.
func (c clusterset) testPull(t *testing.T, hub, member *apiserver.Cluster) {
	member.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}})
	c.deployBroker(t)
	execution := func() error {
		return member.Get(t.Context(), client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.ExecutionDeployment},
			&appsv1.Deployment{})
	}
	role := func() error {
		return member.Get(t.Context(), client.ObjectKey{Name: manifests.ExecutionDeployment}, &rbacv1.ClusterRole{})
	}
	cluster := &clusterv1alpha1.Cluster{}

	c.must(t, c.join("--clusterid", "g1", "--network-only")...)
	if err := hub.Get(t.Context(), client.ObjectKey{Name: "g1"}, cluster); !apierrors.IsNotFound(err) {
		t.Errorf("with --network-only: Cluster at the hub: %v, want none", err)
	}
	if !apierrors.IsNotFound(execution()) || !apierrors.IsNotFound(role()) {
		t.Errorf("with --network-only: Deployment: %v, ClusterRole: %v; want none", execution(), role())
	}
	c.fails(t, "pelago clusters accept g1 --provider", c.join("--clusterid", "g1", "--network-only=false", "--cluster-provider", "example")...)
	c.fails(t, "was joined with --network-only: to give it workloads, unjoin it", c.join("--clusterid", "g1", "--network-only=false")...)
	c.must(t, "unjoin", "--clusterid", "g1", "--context", "hub")
	if out := c.must(t, c.join("--clusterid", "g1", "--network-only=false")...); !strings.Contains(out, "pelago clusters accept g1") {
		t.Errorf("join does not name the command that accepts the cluster:\n%s", out)
	}
	must(t, hub.Get(t.Context(), client.ObjectKey{Name: "g1"}, cluster))
	want := clusterv1alpha1.ClusterSpec{ID: uid(t, member), SyncMode: clusterv1alpha1.Pull, Taints: []clusterv1alpha1.Taint{members.UnapprovedTaint}}
	if diff := cmp.Diff(want, cluster.Spec); diff != "" {
		t.Errorf("Cluster: -want +got\n%s", diff)
	}
	c.testAccept(t, hub)
	must(t, execution())
	must(t, role())
	if out := c.must(t, c.join("--clusterid", "g1")...); !strings.Contains(out, "pelago-hub has not given it its rights yet") {
		t.Errorf("joining again, before pelago-hub runs:\n%s", out)
	}

	push := []string{"join", "--context", "hub", "--cluster-kubeconfig", c.kubeconfig, "--cluster-context", "g1"}
	c.fails(t, `registered as "g1"`, append(push, "m1")...)
	c.fails(t, "is a pull member", append(push, "g1")...)
	c.fails(t, "give either the name", "unjoin", "g1", "--clusterid", "g1", "--context", "hub")

	// Workloads only, then a name that the network knows for another cluster.
	c.must(t, "unjoin", "g1", "--context", "hub")
	c.fails(t, "do not belong together", append(push, "m1")...)
	c.must(t, c.join("--clusterid", "g1", "--network-only")...)
	if !apierrors.IsNotFound(execution()) || !apierrors.IsNotFound(role()) {
		t.Errorf("with --network-only after a membership: Deployment: %v, ClusterRole: %v; want none", execution(), role())
	}
	c.must(t, c.join("--clusterid", "g1")...)
	if !apierrors.IsNotFound(execution()) {
		t.Errorf("another join without --network-only=false: Deployment: %v, want none", execution())
	}
	c.must(t, c.join("--clusterid", "g1", "--network-only=false")...)

	// A Cluster with a finalizer does not count as removed, and keeps the cluster's rights at the
	// hub.
	must(t, hub.Get(t.Context(), client.ObjectKey{Name: "g1"}, cluster))
	cluster.Finalizers = []string{clusterv1alpha1.FinalizerCluster}
	must(t, hub.Update(t.Context(), cluster))
	c.fails(t, "is still being removed", "unjoin", "--context", "hub", "--clusterid", "g1", "--timeout", "1s")
	must(t, hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "cluster-g1"}, &corev1.ServiceAccount{}))
	must(t, hub.Get(t.Context(), client.ObjectKey{Name: "g1"}, cluster))
	c.fails(t, "is being removed: wait", append(push, "g1")...)
	work := &workv1alpha1.Work{
		ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-g1", Name: "web", Finalizers: []string{workv1alpha1.FinalizerExecution}},
		Spec: workv1alpha1.WorkSpec{Workload: workv1alpha1.WorkloadTemplate{Manifests: []workv1alpha1.Manifest{
			{RawExtension: runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap",` +
				`"metadata":{"namespace":"default","name":"web"}}`)}}}}}}
	hub.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-es-g1"}}, work)
	out, err := c.pelago("unjoin", "--context", "hub", "--clusterid", "g1", "--timeout", "1s", "--force")
	if err == nil || !strings.Contains(out, "ConfigMap default/web (v1) stays in the cluster") {
		t.Errorf("--force before pelago-hub has seen it: %v\n%s", err, out)
	}
	must(t, hub.Get(t.Context(), client.ObjectKeyFromObject(work), work))
	if len(work.Finalizers) > 0 {
		t.Errorf("the Work keeps its finalizers %v", work.Finalizers)
	}
	cluster.Finalizers = nil
	must(t, hub.Update(t.Context(), cluster))
	c.must(t, "unjoin", "--context", "hub", "--clusterid", "g1")
	if err := hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "cluster-g1"},
		&corev1.ServiceAccount{}); !apierrors.IsNotFound(err) {
		t.Errorf("ServiceAccount of the removed member: %v, want none", err)
	}
	c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
	if !apierrors.IsNotFound(execution()) || !apierrors.IsNotFound(role()) {
		t.Errorf("after unjoin: Deployment: %v, ClusterRole: %v; want none", execution(), role())
	}
}

// testAccept accepts the cluster g1, rejects it and accepts it again; joining changes none of that.
func (c clusterset) testAccept(t *testing.T, hub *apiserver.Cluster) {
	t.Helper()
	state := func() clusterv1alpha1.Cluster {
		cluster := &clusterv1alpha1.Cluster{}
		must(t, hub.Get(t.Context(), client.ObjectKey{Name: "g1"}, cluster))
		return *cluster
	}
	listed := func(want string) {
		t.Helper()
		out := c.must(t, "get", "clusters", "--context", "hub")
		if fields := strings.Fields(strings.Split(out, "\n")[1]); fields[3] != want {
			t.Errorf("ACCEPTED is %s, want %s:\n%s", fields[3], want, out)
		}
	}
	listed("False")
	c.fails(t, "--label env=a b", "clusters", "accept", "g1", "--context", "hub", "--label", "env=a b")
	c.fails(t, `cluster "g9" is not known: the hub has g1`, "clusters", "accept", "g9", "--context", "hub")
	c.must(t, "clusters", "accept", "g1", "--context", "hub", "--label", "env=prod", "--region", "eu", "--zone", "a", "--zone", "b", "--provider", "example")
	listed("True")
	got := state()
	want := clusterv1alpha1.ClusterSpec{ID: got.Spec.ID, SyncMode: clusterv1alpha1.Pull, Region: "eu", Zones: []string{"a", "b"}, Provider: "example"}
	if diff := cmp.Diff(want, got.Spec); diff != "" || got.Labels["env"] != "prod" {
		t.Errorf("labels %v, spec -want +got\n%s", got.Labels, diff)
	}
	network := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: submarinerv1.GroupVersion.String(), Kind: "Cluster"}}
	must(t, hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "g1"}, network))
	if network.Labels["env"] != "prod" || network.Labels[submarinerv1.LabelClusterID] != "g1" {
		t.Errorf("labels by which services are exported: %v", network.Labels)
	}
	c.must(t, c.join("--clusterid", "g1")...)
	if again := state(); !again.Accepted() || again.Labels["env"] != "prod" {
		t.Errorf("joining again changed the Cluster: %v %v", again.Labels, again.Spec)
	}
	c.must(t, "clusters", "reject", "g1", "--context", "hub")
	c.must(t, "clusters", "reject", "g1", "--context", "hub")
	listed("False")
	if got := state(); len(got.Spec.Taints) != 1 || got.Spec.Region != "eu" {
		t.Errorf("after reject: %+v", got.Spec)
	}
	c.must(t, "clusters", "accept", "g1", "--context", "hub")
	listed("True")

	// --auto-accept is kept until it is given again.
	stored := func() string {
		cm := &corev1.ConfigMap{}
		must(t, hub.Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "pelago-clusterset"}, cm))
		return cm.Data["auto-accept"]
	}
	for _, step := range []struct{ flag, want string }{{"", "false"}, {"--auto-accept", "true"}, {"", "true"}, {"--auto-accept=false", "false"}} {
		c.deployBroker(t, strings.Fields(step.flag)...)
		if got := stored(); got != step.want {
			t.Errorf("deploy-broker %s: auto-accept is %q, want %q", step.flag, got, step.want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
