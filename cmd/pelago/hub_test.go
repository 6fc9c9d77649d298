package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/test/apiserver"
)

// workloadHub is a hub with a push member m1, reached by a Secret, and a pull member m2. Both are
// the same API server of their own, so that one is enough; in the kubeconfig it is the context c2.
type workloadHub struct {
	*apiserver.Cluster
	member     *apiserver.Cluster
	kubeconfig string
}

func newWorkloadHub(t *testing.T) workloadHub {
	t.Helper()
	hubConfig := apiserver.Start(t, apiserver.CRDs())
	memberConfig := apiserver.Start(t)
	h := workloadHub{
		Cluster: apiserver.Connect(t, hubConfig, clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme),
		member:  apiserver.Connect(t, memberConfig), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
	}
	kc := clientcmdapi.NewConfig()
	for name, c := range map[string]*apiserver.Cluster{"hub": h.Cluster, "c2": h.member} {
		kc.Clusters[name] = &clientcmdapi.Cluster{Server: c.Config.Host, CertificateAuthorityData: c.Config.CAData}
		kc.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: c.Config.CertData, ClientKeyData: c.Config.KeyData}
		kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	kc.CurrentContext = "hub"
	if err := clientcmd.WriteToFile(*kc, h.kubeconfig); err != nil {
		t.Fatal(err)
	}
	// What join does for a push member: an account in the member, its token at the hub.
	h.member.Make(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hub"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "hub"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "hub"}}})
	typed, err := kubernetes.NewForConfig(memberConfig)
	if err != nil {
		t.Fatal(err)
	}
	token, err := typed.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "hub",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"karmada-cluster", "karmada-es-m1", "karmada-es-m2"} {
		h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	}
	m1 := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Push,
		APIEndpoint: memberConfig.Host, SecretRef: &clusterv1alpha1.SecretReference{Namespace: "karmada-cluster", Name: "m1"}}}
	m2 := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m2"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
	h.Make(m1, m2, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-cluster", Name: "m1"},
		Data: map[string][]byte{"token": []byte(token.Status.Token), "caBundle": memberConfig.CAData}})
	for _, c := range []*clusterv1alpha1.Cluster{m1, m2} {
		c.Status.KubernetesVersion = "v1.34.4"
		meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "ClusterReady"})
		if err := h.Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// pelago runs the command line and returns what it prints.
func (h workloadHub) pelago(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := root("pelago")
	cmd.SetArgs(append(args, "--kubeconfig", h.kubeconfig))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(context.Background())
	return out.String(), err
}

// prints runs the command line and expects the words in its output.
func (h workloadHub) prints(words []string, args ...string) {
	h.Helper()
	out, err := h.pelago(args...)
	if err != nil {
		h.Errorf("pelago %s: %v", strings.Join(args, " "), err)
	}
	for _, w := range words {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
			h.Errorf("pelago %s does not print %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
}

// fails runs the command line and expects an error with the words.
func (h workloadHub) fails(words string, args ...string) {
	h.Helper()
	if out, err := h.pelago(args...); err == nil || !strings.Contains(err.Error(), words) {
		h.Errorf("pelago %s: error %v, want one with %q\n%s", strings.Join(args, " "), err, words, out)
	}
}

const manifest = `
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: nginx, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: nginx}}
  template: {metadata: {labels: {app: nginx}}, spec: {containers: [{name: nginx, image: "nginx:1"}]}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: "shop:reader"}}
`

// The commands about workloads, in sequence at one hub; the test stands in for the hub's
// controllers.
func TestWorkloadCommands(t *testing.T) {
	t.Parallel()
	h := newWorkloadHub(t)
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}

	h.apply(file)
	h.clusterCommands()
	h.propagate()
	h.about()
	h.get()
	h.complete()
}

// policy is the name of the PropagationPolicy that apply makes for the Deployment.
func (h workloadHub) policy() string {
	return policyFor(object(h, "{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: shop, name: nginx}}"), nil).GetName()
}

func (h workloadHub) apply(file string) {
	policyName := h.policy()
	h.fails(`cluster "m9" is not known: the hub has m1, m2`, "apply", "-f", file, "--clusters", "m9")
	h.fails("does not exist", "apply", "-f", file+"x", "--all-clusters")
	dir := filepath.Join(h.TempDir(), "manifests")
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "below"), 0o700), os.WriteFile(filepath.Join(dir, "README.md"), []byte("no manifest"), 0o600),
		os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"), 0o600),
		os.WriteFile(filepath.Join(dir, "below", "b.json"), []byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}}`), 0o600)); err != nil {
		h.Fatal(err)
	}
	if out, err := h.pelago("apply", "-f", dir, "--all-clusters"); err != nil || !strings.Contains(out, "ConfigMap default/a created") || strings.Contains(out, "default/b") {
		h.Errorf("apply of a directory: %v\n%s", err, out)
	}
	h.prints([]string{"ConfigMap default/a unchanged", "ConfigMap default/b created"}, "apply", "-f", dir, "-R", "--all-clusters")
	policies := func() int {
		all := &policyv1alpha1.PropagationPolicyList{}
		if err := h.List(h.Context(), all); err != nil {
			h.Fatal(err)
		}
		return len(all.Items)
	}
	before := policies()
	alone := filepath.Join(h.TempDir(), "alone.yaml")
	if err := os.WriteFile(alone, []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: alone}}"), 0o600); err != nil {
		h.Fatal(err)
	}
	h.prints([]string{"ConfigMap default/alone created, no policy"}, "apply", "-f", alone)
	if after := policies(); after != before {
		h.Errorf("apply without clusters: %d policies, then %d", before, after)
	}
	h.prints([]string{"Namespace shop created Deployment shop/nginx created, PropagationPolicy shop/" + policyName + " created",
		"ClusterRole shop:reader created, ClusterPropagationPolicy shop.reader-clusterrole-"}, "apply", "-f", file, "--all-clusters")
	h.prints([]string{"Namespace shop unchanged Deployment shop/nginx unchanged, PropagationPolicy shop/" + policyName + " unchanged"},
		"apply", "-f", file, "--all-clusters")
	h.prints([]string{"Deployment shop/nginx unchanged, PropagationPolicy shop/" + policyName + " configured"}, "apply", "-f", file, "--clusters", "m1,m2")
	policy := &policyv1alpha1.PropagationPolicy{}
	h.read(policy, "shop", policyName)
	if diff := cmp.Diff([]string{"m1", "m2"}, policy.Spec.Placement.ClusterAffinity.ClusterNames); diff != "" || policy.Labels["app.kubernetes.io/managed-by"] != "pelago" {
		h.Errorf("clusters of the policy: -want +got\n%s\nlabels %v", diff, policy.Labels)
	}
	h.prints([]string{"Policy: none", "not by PropagationPolicy shop/" + policyName, "Problem: a policy selects it, but it is not claimed", "In no cluster."},
		"why", "deploy/nginx", "-n", "shop")
	policy.Labels = nil
	h.write(policy)
	h.fails("was not made by this command", "apply", "-f", file, "--all-clusters")

	// A field of another field manager.
	nginx := object(h, "{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: shop, name: nginx}, spec: {replicas: 5}}")
	if err := h.Patch(h.Context(), nginx, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":5}}`)), client.FieldOwner("another")); err != nil {
		h.Fatal(err)
	}
	h.fails("use --force-conflicts", "apply", "-f", file, "--all-clusters")
	for name, text := range map[string]string{"kube-system is the system's": "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: kube-system}}",
		"does not serve Farm": "{apiVersion: example.com/v1, kind: Farm, metadata: {name: x}}", "Object 'Kind' is missing": "{a: b}", "lacks metadata.name": "{apiVersion: v1, kind: ConfigMap}",
		"there is no object": "---"} {
		bad := filepath.Join(h.TempDir(), "bad.yaml")
		if err := os.WriteFile(bad, []byte(text), 0o600); err != nil {
			h.Fatal(err)
		}
		h.fails(name, "apply", "-f", bad, "--all-clusters")
	}
}

func (h workloadHub) read(o client.Object, namespace, name string) {
	h.Helper()
	if err := h.Get(h.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o); err != nil {
		h.Fatal(err)
	}
}

func (h workloadHub) write(o client.Object) {
	h.Helper()
	if err := h.Update(h.Context(), o); err != nil {
		h.Fatal(err)
	}
}

// taints are those of m1.
func (h workloadHub) taints() string {
	h.Helper()
	c := &clusterv1alpha1.Cluster{}
	h.read(c, "", "m1")
	var out []string
	for _, t := range c.Spec.Taints {
		out = append(out, t.Key+"="+t.Value+":"+string(t.Effect))
	}
	return strings.Join(out, " ")
}

func (h workloadHub) clusterCommands() {
	h.prints([]string{"NAME VERSION MODE ACCEPTED READY AGE m1 v1.34.4 Push True True", "m2 v1.34.4 Pull True"}, "get", "clusters")
	h.prints([]string{"ZONES REGION PROVIDER API-ENDPOINT", h.member.Config.Host}, "get", "cluster", "m1", "-o", "wide")
	h.prints([]string{`"syncMode": "Pull"`}, "get", "clusters", "m2", "-o", "json")
	h.fails("the hub has m1, m2", "get", "clusters", "m9")
	for _, step := range []struct{ command, output, taints string }{
		{"cordon m1", "Cluster m1 is cordoned", "cluster.karmada.io/unschedulable=:NoSchedule"},
		{"cordon m1", "Cluster m1 was cordoned before", "cluster.karmada.io/unschedulable=:NoSchedule"},
		{"taint clusters m1 a=1:NoSchedule b:NoExecute", "Cluster m1 is tainted", "cluster.karmada.io/unschedulable=:NoSchedule a=1:NoSchedule b=:NoExecute"},
		{"taint clusters m1 a=1:NoSchedule b:NoExecute", "Cluster m1 was tainted", "cluster.karmada.io/unschedulable=:NoSchedule a=1:NoSchedule b=:NoExecute"},
		{"uncordon m1", "Cluster m1 is uncordoned", "a=1:NoSchedule b=:NoExecute"},
		{"uncordon m1", "Cluster m1 was uncordoned before", "a=1:NoSchedule b=:NoExecute"},
		{"taint clusters m1 a=2:NoSchedule --overwrite", "Cluster m1 is tainted", "a=2:NoSchedule b=:NoExecute"},
		{"taint clusters m1 a- b:NoExecute-", "Cluster m1 is tainted", ""},
	} {
		h.prints([]string{step.output}, strings.Fields(step.command)...)
		if got := h.taints(); got != step.taints {
			h.Errorf("%s: taints %q, want %q", step.command, got, step.taints)
		}
	}
	h.fails("the hub has m1, m2", "cordon", "m9")
	h.fails("has no kind Cluster of cluster.karmada.io: name the hub with --context, or run `pelago init` there", "clusters", "accept", "c1", "--context", "c2")
	h.fails("does not serve proxy.pelago.io/v1alpha1: name the hub with --context", "logs", "-C", "c1", "pod/x", "--context", "c2")
	h.fails("has no kind Cluster of cluster.karmada.io: name the hub with --context, or run `pelago init` there", "get", "clusters", "--context", "c2")
}

// propagate stands in for the hub's controllers: the Deployment is claimed, decided for both
// clusters and applied in m1; m2 refuses it.
func (h workloadHub) propagate() {
	h.Helper()
	policy := &policyv1alpha1.PropagationPolicy{}
	h.read(policy, "shop", h.policy())
	nginx := &appsv1.Deployment{}
	h.read(nginx, "shop", "nginx")
	policy.Labels = map[string]string{policyv1alpha1.LabelPropagationPolicyID: "p1"}
	nginx.Labels = map[string]string{policyv1alpha1.LabelPropagationPolicyID: "p1"}
	h.write(policy)
	h.write(nginx)
	b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "nginx-deployment", Labels: map[string]string{workv1alpha2.LabelBindingID: "b1"}},
		Spec: workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "nginx", UID: nginx.UID},
			Placement: &policyv1alpha1.Placement{}, ConflictResolution: policyv1alpha1.ConflictAbort, Clusters: []workv1alpha2.TargetCluster{{Name: "m1", Replicas: 1}, {Name: "m2", Replicas: 1}}}}
	hash, err := workv1alpha2.SpecHash(&b.Spec)
	if err != nil {
		h.Fatal(err)
	}
	text, err := workv1alpha2.Decision{For: hash, Reason: "Success", Time: metav1.NowMicro(), Rejected: []workv1alpha2.Rejection{{Why: "has a taint", Clusters: []string{"m3"}}}}.Encode()
	if err != nil {
		h.Fatal(err)
	}
	b.Annotations = map[string]string{workv1alpha2.AnnotationDecision: text}
	h.Make(b, &policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mark"}, Spec: policyv1alpha1.OverrideSpec{
		OverrideRules: []policyv1alpha1.RuleWithCluster{{TargetCluster: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m1"}}, Overriders: policyv1alpha1.Overriders{
			LabelsOverrider: []policyv1alpha1.LabelAnnotationOverrider{{Operator: policyv1alpha1.OverriderOpAdd, Value: map[string]string{"a": "b"}}}}}}}},
		&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e1"}, Reason: "SyncWorkFailed", Type: "Warning", Message: "cluster m2 refuses it",
			LastTimestamp: metav1.Now(), InvolvedObject: corev1.ObjectReference{Kind: "ResourceBinding", Namespace: "shop", Name: "nginx-deployment"}})
	for cluster, status := range map[string]metav1.ConditionStatus{"m1": metav1.ConditionTrue, "m2": metav1.ConditionFalse} {
		w := &workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-" + cluster, Name: "nginx-1", Labels: b.Labels,
			Annotations: map[string]string{workv1alpha2.AnnotationBindingNamespace: "shop", workv1alpha2.AnnotationBindingName: b.Name}}}
		w.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"shop","name":"nginx"}}`)}}}
		h.Make(w)
		meta.SetStatusCondition(&w.Status.Conditions, metav1.Condition{Type: "Applied", Status: status, Reason: "Because", Message: "no matches for kind", ObservedGeneration: w.Generation})
		if err := h.Status().Update(h.Context(), w); err != nil {
			h.Fatal(err)
		}
	}
	labels := map[string]string{"app": "nginx"}
	deployment := func(name string, objectLabels map[string]string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: objectLabels}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "nginx"}}}}}}
	}
	h.member.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, deployment("nginx", map[string]string{"karmada.io/managed": "true"}), deployment("own", nil))
}

func (h workloadHub) about() {
	h.prints([]string{"Policy: PropagationPolicy shop/" + h.policy(), "Decision: Success", "m1 1 applied - OverridePolicy mark chosen",
		"m2 1 failed", "! m2: no matches for kind. Install the CustomResourceDefinition in cluster m2", "m3: has a taint"}, "why", "deployment", "nginx", "-n", "shop")
	h.prints([]string{"karmada-es", "Conditions of the binding:", "Warning SyncWorkFailed cluster m2 refuses it"}[1:], "describe", "deploy/nginx", "-n", "shop")
	out, err := h.pelago("why", "deployments.apps", "nginx", "-n", "shop", "-o", "json")
	var e view.Explanation
	if err != nil || json.Unmarshal([]byte(out), &e) != nil || len(e.Clusters) != 2 || e.Decision == nil || !e.Decision.Current || e.Policy == nil {
		h.Errorf("explain -o json: %v\n%s", err, out)
	}
	h.prints([]string{"ClusterRole shop:reader", "selects by name"}, "why", "clusterrole", "shop:reader")
	h.fails("the hub has no Deployment shop/x: name one of `pelago get deployments`, or another namespace with -n", "describe", "deployment", "x", "-n", "shop")
	h.prints([]string{"FIELD: placement"}, "explain", "propagationpolicies.spec.placement")
	h.prints([]string{"In no cluster."}, "explain", "clusterrole", "shop:reader") // the former name of why
	h.fails("--output is of `pelago why`", "explain", "deployments", "-o", "json")
	h.fails("need a kind alone", "explain", "deployment", "nginx", "-C", "m1")
	h.fails(`kind "farms" is not served`, "why", "farms", "x")
	h.fails("name a kind and an object", "why", "deployment")
	h.fails("use table, wide, json or yaml", "why", "deployment", "x", "-o", "xml")
}

func (h workloadHub) get() {
	h.prints([]string{"NAME CLUSTER READY UP-TO-DATE AVAILABLE AGE ADOPTION nginx (hub) 0/5"}, "get", "deployments", "-n", "shop")
	h.prints([]string{"nginx m1 0/1", "Y own m1 0/1"}, "get", "deploy", "-n", "shop", "--clusters", "m1")
	h.prints([]string{"nginx (hub) 0/5", "nginx m1 0/1", "as their Works say", "nginx m2 False - - Y"}, "get", "deployment", "nginx", "-n", "shop", "--operation-scope", "all")
	h.prints([]string{"shop own m1", "shop own m2", " N"}, "get", "deployments", "-A", "--operation-scope", "members", "--member-context", "m2=c2")
	h.prints([]string{"NAME CLUSTER APPLIED HEALTH STATUS ADOPTION nginx m2 False"}, "get", "deploy/nginx", "-n", "shop", "-C", "m2")
	for line, want := range map[string]string{
		"get deployments nginx own none -n shop -C m1 -o name":              "deployment.apps/nginx\ndeployment.apps/own\n",
		"get deploy/own nginx -n shop -C m1 -o name":                        "deployment.apps/own\ndeployment.apps/nginx\n",
		"get deployments -n shop -C m1 -l karmada.io/managed=true -o name":  "deployment.apps/nginx\n",
		"get deployments -n shop -C m1 -l karmada.io/managed!=true -o name": "deployment.apps/own\n",
		"get deploy nginx -n shop -C m2 -o name":                            "deployment.apps/nginx\n",
		"get deploy -n shop -C m2 -l app=none -o name":                      "",
		"get namespaces shop default -o name":                               "namespace/shop\nnamespace/default\n",
		"get clusters m2 m1 -o name":                                        "cluster.cluster.karmada.io/m2\ncluster.cluster.karmada.io/m1\n",
	} {
		if out, err := h.pelago(strings.Fields(line)...); err != nil || out != want {
			h.Errorf("pelago %s: %v, prints %q, want %q", line, err, out, want)
		}
	}
	h.fails("give either names or --selector", "get", "deployments", "nginx", "-n", "shop", "-l", "a=b")
	h.fails("--selector a=b=c", "get", "deployments", "-n", "shop", "-l", "a=b=c")
	h.fails("the hub has no Deployment shop/own", "get", "deployments", "nginx", "own", "-n", "shop")
	out, err := h.pelago("get", "deployments", "-n", "shop", "--operation-scope", "all", "-o", "json")
	var objects []struct{ Cluster, Adoption, Work string }
	if err != nil || json.Unmarshal([]byte(out), &objects) != nil {
		h.Errorf("get -o json: %v\n%s", err, out)
	}
	want := []struct{ Cluster, Adoption, Work string }{{}, {"m1", "Y", ""}, {"m1", "N", ""}, {"m2", "", "nginx-1"}}
	if diff := cmp.Diff(want, objects); diff != "" {
		h.Errorf("get -o json: -want +got\n%s", diff)
	}
	h.prints([]string{"No objects found."}, "get", "deployment", "x", "-n", "shop", "--clusters", "m1")
	h.fails("the hub has no Deployment shop/x", "get", "deployment", "x", "-n", "shop")
	h.prints([]string{"FIELD: placement"}, "explain", "propagationpolicies.spec.placement")
	h.prints([]string{"In no cluster."}, "explain", "clusterrole", "shop:reader") // the former name of why
	h.fails("--output is of `pelago why`", "explain", "deployments", "-o", "json")
	h.fails("need a kind alone", "explain", "deployment", "nginx", "-C", "m1")
	h.fails(`kind "farms" is not served`, "get", "farms")
	h.fails("use hub, members or all", "get", "pods", "--operation-scope", "x")
	h.fails("--operation-scope hub reads no cluster", "get", "pods", "--operation-scope", "hub", "--clusters", "m1")
	h.fails("a name needs a namespace", "get", "deployment", "nginx", "-A")
	h.fails("cluster m2: ", "get", "pods", "--clusters", "m1,m2", "--member-context", "m2=nowhere")

	// A member that cannot be reached is a warning unless it was named.
	secret := &corev1.Secret{}
	h.read(secret, "karmada-cluster", "m1")
	h.Remove(secret)
	h.prints([]string{"warning: cluster m1: get Secret karmada-cluster/m1", "nginx m2 False"}, "get", "deployments", "-n", "shop", "--operation-scope", "members")
	h.fails("--member-context m1=CONTEXT", "get", "deployments", "-n", "shop", "--clusters", "m1")
}

func (h workloadHub) complete() {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"cordon", "--kubeconfig", h.kubeconfig, ""}, "m1 m2"},
		{[]string{"unjoin", "--kubeconfig", h.kubeconfig, ""}, "m1 m2"},
		{[]string{"export", "service", "--kubeconfig", h.kubeconfig, "-n", "default", ""}, "kubernetes"},
		{[]string{"get", "pods", "--kubeconfig", h.kubeconfig, "--context", ""}, "c2 hub"},
		{[]string{"show", "all", "--kubeconfig", h.kubeconfig, "--contexts", "c2,"}, "c2,hub"},
		{[]string{"logs", "--kubeconfig", h.kubeconfig, "-C", "m1", "--context", "h"}, "hub"},
		{[]string{"unjoin", "m1", "--cluster-kubeconfig", h.kubeconfig, "--cluster-context", "c"}, "c2"},
		{[]string{"taint", "clusters", "--kubeconfig", h.kubeconfig, ""}, "m1 m2"},
		{[]string{"promote", "deployment", "web", "--kubeconfig", h.kubeconfig, "-C", ""}, "m1 m2"},
		{[]string{"get", "pods", "--kubeconfig", h.kubeconfig, "--clusters", "m1,"}, "m1,m2"},
		{[]string{"why", "--kubeconfig", h.kubeconfig, "-n", "shop", "deployments", ""}, "nginx"},
		{[]string{"why", "--kubeconfig", h.kubeconfig, "deploym"}, "deployments"},
		{[]string{"describe", "--kubeconfig", h.kubeconfig, "propagationpol"}, "propagationpolicies.policy.karmada.io"},
	} {
		if diff := cmp.Diff(c.want, completed(h, c.args...)); diff != "" {
			h.Errorf("complete %q: -want +got\n%s", c.args, diff)
		}
	}
}

// completed are the completions of the last argument, as a shell filters them.
func completed(t testing.TB, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := root("pelago")
	cmd.SetArgs(append([]string{"__complete"}, args...))
	cmd.SetOut(&out)
	cmd.SetErr(new(bytes.Buffer))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Error(err)
	}
	words, _, _ := strings.Cut(out.String(), "\n:")
	got := slices.DeleteFunc(strings.Fields(words), func(s string) bool { return !strings.HasPrefix(s, args[len(args)-1]) })
	return strings.Join(got, " ")
}

// object reads YAML as a client does: whole numbers are integers.
func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return out
}
