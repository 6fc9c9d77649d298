package main

import (
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	hubaccess "github.com/pelago-net/pelago/control/hub/access"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// changes changes a ConfigMap of the hub, and as alice its namesake in the member.
func (h workloadHub) changes(t *testing.T) {
	t.Helper()
	settings := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "settings"}}
	}
	h.Make(settings())
	h.member.Make(settings())
	where := []string{"-n", "shop", "--context", "hub"}
	member := []string{"-n", "shop", "--context", "alice", "-C", "m1"}
	h.program(t, append([]string{"label", "configmap", "settings", "level=member"}, member...)...)
	h.program(t, append([]string{"annotate", "configmap", "settings", "note=member"}, member...)...)
	h.program(t, append([]string{"patch", "configmap", "settings", "-p", `{"data":{"of":"member"}}`}, member...)...)
	h.program(t, append([]string{"label", "configmap", "settings", "level=hub"}, where...)...)
	got := func(c client.Client) string {
		o := settings()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err.Error()
		}
		return fmt.Sprint(o.Labels["level"], o.Annotations["note"], o.Data["of"])
	}
	if at := got(h.member.Client); at != "membermembermember" {
		t.Errorf("in the member: %s", at)
	}
	if at := got(h.Client); at != "hub" {
		t.Errorf("at the hub: %s", at)
	}
	h.prints([]string{"settings (hub)", "settings m1"}, "get", "configmaps", "settings", "-n", "shop", "-C", "m1", "--operation-scope", "all")
	if out, err := h.pelago(append([]string{"describe", "configmap", "settings"}, member...)...); err != nil || !strings.Contains(out, "level=member") {
		t.Errorf("describe: %v\n%s", err, out)
	}
	h.fails("were all set", "describe", "configmap", "settings", "-n", "shop", "-C", "m1", "-o", "json")
	h.program(t, append([]string{"delete", "configmap", "settings"}, member...)...)
	if at := got(h.member.Client); !strings.Contains(at, "not found") {
		t.Errorf("in the member, deleted: %s", at)
	}
	if at := got(h.Client); at != "hub" {
		t.Errorf("at the hub, after a deletion in the member: %s", at)
	}
}

// Members through the hub: by kubectl's commands, by get, by promote. The user of context hub is an
// administrator there; alice has one namespace of the member.
func TestMemberCommands(t *testing.T) {
	t.Parallel()
	h := newWorkloadHub(t)
	ns := func() *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	}
	h.Make(ns(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: manifests.SystemNamespace}})
	h.member.Make(ns())
	h.users(t)
	h.fails("pull members are not reached from the hub: it does not serve proxy.pelago.io", "promote", "deployment", "web", "-n", "shop", "-C", "m2")
	h.proxy(t)

	out := h.program(t, "api-resources", "-C", "m1", "--context", "alice", "--no-headers", "-o", "name")
	if !strings.Contains(out, "deployments.apps\n") || strings.Contains(out, "karmada.io") {
		t.Errorf("api-resources prints other kinds than those of the member:\n%s", out)
	}
	out = h.program(t, "logs", "-C", "m1", "--context", "alice", "-n", "shop", "web-0")
	if !strings.Contains(out, `pods "web-0" not found`) {
		t.Errorf("logs of a pod that does not exist: %s", out)
	}
	out = h.program(t, "exec", "-C", "m1", "--context", "alice", "-n", "default", "web-0", "--", "ls")
	if !strings.Contains(out, `User "alice" cannot get resource "pods" in API group "" in the namespace "default"`) {
		t.Errorf("exec in another namespace: %s", out)
	}

	labels := map[string]string{"app": "web"}
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{"deployment.kubernetes.io/revision": "3"}},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web:1"}}}}}}
	h.member.Make(web)
	h.prints([]string{"web m1"}, "get", "deployments", "-n", "shop", "-C", "m1", "--context", "alice")
	h.fails(`User "alice" cannot list resource "deployments"`, "get", "deployments", "-n", "default", "-C", "m1", "--context", "alice")
	h.fails("cluster m2 has no tunnel", "get", "deployments", "-n", "shop", "-C", "m2", "--context", "alice")
	h.fails("--operation-scope hub reads no cluster", "get", "deployments", "-n", "shop", "-C", "m1", "--operation-scope", "hub")
	h.changes(t)

	text, err := h.pelago("promote", "deploy", "web", "-n", "shop", "-C", "m1", "--dry-run", "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Items []struct {
			Kind     string
			Metadata map[string]any
			Spec     map[string]any
			Status   map[string]any
		}
	}
	if err := yaml.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.Items[0].Kind != "PropagationPolicy" || list.Items[1].Kind != "Deployment" {
		t.Fatalf("promote --dry-run prints\n%s", text)
	}
	for _, field := range []string{"uid", "resourceVersion", "managedFields", "creationTimestamp", "annotations"} {
		if list.Items[1].Metadata[field] != nil || list.Items[1].Status != nil {
			t.Errorf("promote keeps metadata.%s, or the status\n%s", field, text)
		}
	}
	key := client.ObjectKey{Namespace: "shop", Name: "web"}
	if err := h.Get(t.Context(), key, &appsv1.Deployment{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("after a dry run: %v", err)
	}
	h.prints([]string{"PropagationPolicy shop/web-deployment", "Deployment shop/web created"}, "promote", "deploy", "web", "-n", "shop", "-C", "m1")
	policies := &policyv1alpha1.PropagationPolicyList{}
	if err := h.List(t.Context(), policies); err != nil || len(policies.Items) != 1 {
		t.Fatal(policies.Items, err)
	}
	spec := policies.Items[0].Spec
	if names := spec.Placement.ClusterAffinity.ClusterNames; len(names) != 1 || names[0] != "m1" || spec.ConflictResolution != policyv1alpha1.ConflictOverwrite {
		t.Errorf("the policy has %+v", spec)
	}
	again := []string{"promote", "deploy", "web", "-n", "shop", "-C", "m1"}
	h.prints([]string{"PropagationPolicy shop/web-deployment", "unchanged", "Deployment shop/web unchanged"}, again...)
	// pelago-hub labels and finalizes what it has seen.
	policy := &policies.Items[0]
	policy.Labels["propagationpolicy.karmada.io/permanent-id"], policy.Finalizers = "x", []string{"karmada.io/propagation-policy-controller"}
	template := &appsv1.Deployment{}
	template.Namespace, template.Name = "shop", "web"
	must(t, h.Update(t.Context(), policy))
	h.Remove(template)
	h.prints([]string{"PropagationPolicy shop/web-deployment", "unchanged", "Deployment shop/web created"}, again...)
	must(t, h.Get(t.Context(), key, template))
	template.Spec.Replicas = ptr.To[int32](7)
	must(t, h.Update(t.Context(), template))
	policy.Finalizers = nil
	must(t, h.Update(t.Context(), policy))
	h.Remove(policy)
	h.fails("Deployment shop/web is at the hub already and differs", again...)
	if err := h.List(t.Context(), policies); err != nil || len(policies.Items) != 0 {
		t.Errorf("beside another template there is a policy that sends it: %v, %v", policies.Items, err)
	}
	h.fails(`promote Deployment shop/none of cluster m1: get Deployment shop/none`, "promote", "deploy", "none", "-n", "shop", "-C", "m1")
	h.promotesDependencies(t, web)
	h.topOfMembers(t)
}

// promotesDependencies: what a template refers to comes along, its namespace too, but not what each
// cluster makes itself, what another hub sends, or what is not there.
func (h workloadHub) promotesDependencies(t *testing.T, web *appsv1.Deployment) {
	t.Helper()
	object := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "store", Name: name} }
	sent := &corev1.ConfigMap{ObjectMeta: object("sent")}
	sent.Labels = map[string]string{"karmada.io/managed": "true"}
	store := &appsv1.Deployment{ObjectMeta: object("store"), Spec: *web.Spec.DeepCopy()}
	pod := &store.Spec.Template.Spec
	pod.ServiceAccountName = "keeper"
	for _, name := range []string{"settings", "sent", "absent", "kube-root-ca.crt"} {
		pod.Containers[0].EnvFrom = append(pod.Containers[0].EnvFrom, corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}}})
	}
	h.member.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "store", Labels: map[string]string{"team": "a"}}},
		&corev1.ConfigMap{ObjectMeta: object("settings"), Data: map[string]string{"level": "1"}}, sent,
		&corev1.ServiceAccount{ObjectMeta: object("keeper")}, store)
	promote := []string{"promote", "deploy", "store", "-n", "store", "-C", "m1", "--dependencies"}
	out, err := h.pelago(promote...)
	if err != nil {
		t.Fatal(err)
	}
	policies := &policyv1alpha1.PropagationPolicyList{}
	if err := h.List(t.Context(), policies, client.InNamespace("store")); err != nil || len(policies.Items) != 1 || !policies.Items[0].Spec.PropagateDeps {
		t.Fatal(policies.Items, err)
	}
	want := "Namespace store created\nConfigMap store/settings created\nServiceAccount store/keeper created\nPropagationPolicy store/" +
		policies.Items[0].Name + " created\nDeployment store/store created\n"
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var ns corev1.Namespace
	if must(t, h.Get(t.Context(), client.ObjectKey{Name: "store"}, &ns)); ns.Labels["team"] != "a" {
		t.Errorf("the namespace has %v", ns.Labels)
	}
	h.prints([]string{"ConfigMap store/settings unchanged", "Deployment store/store unchanged"}, promote...)

	h.member.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "empty"}})
	h.prints([]string{"Namespace empty created"}, "promote", "namespace", "empty", "-C", "m1")
	h.fails("each cluster makes it itself", "promote", "namespace", "default", "-C", "m1")
	h.fails("ConfigMap store/sent is propagated by a hub already", "promote", "configmap", "sent", "-n", "store", "-C", "m1")
	h.fails("namespace kube-system is the system's", "promote", "namespace", "kube-system", "-C", "m1")
}

// topOfMembers: a cluster without the metrics API, or without a tunnel, is named.
func (h workloadHub) topOfMembers(t *testing.T) {
	t.Helper()
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"top", "pod", "-n", "shop"}, []string{"cluster m1: Metrics API not available", "cluster m2: "}},
		{[]string{"top", "node", "-C", "m1,m2"}, []string{"cluster m1: Metrics API not available", "cluster m2: "}},
		{[]string{"top", "node", "-C", "m1"}, []string{"Metrics API not available"}},
		{[]string{"top", "pod", "--sum"}, []string{"--sum adds up the pods of one cluster: name it with -C"}},
	} {
		out := h.program(t, tt.args...)
		for _, want := range tt.want {
			if !strings.Contains(out, want) {
				t.Errorf("%q prints no %q:\n%s", tt.args, want, out)
			}
		}
	}
}

// users adds alice to the kubeconfig, and her rights.
func (h workloadHub) users(t *testing.T) {
	t.Helper()
	kc, err := clientcmd.LoadFromFile(h.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	alice := kc.AuthInfos["hub"].DeepCopy()
	alice.Impersonate = "alice"
	kc.AuthInfos["alice"] = alice
	kc.Contexts["alice"] = &clientcmdapi.Context{Cluster: "hub", AuthInfo: "alice"}
	if err := clientcmd.WriteToFile(*kc, h.kubeconfig); err != nil {
		t.Fatal(err)
	}
	subjects := []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"}}
	h.Make(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"proxy.pelago.io"}, Resources: []string{"clusters/proxy"}, Verbs: []string{"*"}},
		{APIGroups: []string{"cluster.karmada.io"}, Resources: []string{"clusters"}, Verbs: []string{"get", "list"}}}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "alice"}})
	h.member.Make(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "alice"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps"}, Resources: []string{"*"}, Verbs: []string{"*"}}}},
		&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "alice"}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "alice"}})
}

// proxy runs the proxy of pelago-hub, for m1 and m2 as members.
func (h workloadHub) proxy(t *testing.T) {
	t.Helper()
	for _, name := range []string{"m1", "m2"} {
		c := &clusterv1alpha1.Cluster{}
		if err := h.Get(t.Context(), client.ObjectKey{Name: name}, c); err != nil {
			t.Fatal(err)
		}
		c.Finalizers = []string{clusterv1alpha1.FinalizerCluster}
		if err := h.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return hubaccess.Setup(mgr, hubaccess.Options{Address: address, Host: "127.0.0.1", Namespace: manifests.SystemNamespace, Name: manifests.HubName,
			BrokerNamespace: "submariner-k8s-broker", Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)})
	}}}.Run(t, h.Config)
	await.True(t, "proxy.pelago.io is served", func() bool {
		_, err := h.pelago("get", "namespaces", "-C", "m1", "--context", "alice")
		return err != nil && strings.Contains(err.Error(), `User "alice" cannot list resource "namespaces"`)
	})
}

// asProgram is set in the environment of the test binary that is to be the command.
const asProgram = "PELAGO_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		// most of their time tests wait for API servers
		if err := parallel.Value.Set("4"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// program runs the command as a program, since kubectl's commands end it, and returns all that it
// prints.
func (h workloadHub) program(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], slices.Insert(args, 1, "--kubeconfig", h.kubeconfig, "--cache-dir", t.TempDir())...)
	cmd.Env = append(os.Environ(), asProgram+"=yes")
	out, _ := cmd.CombinedOutput() // the test asserts what it says
	return string(out)
}
