// Package charts tests the charts of deploy/charts with Helm's library, against real API servers.
package charts

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/cli"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/release"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/test/apiserver"
)

// binary is the command line, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "charts-")
	if err == nil {
		binary = filepath.Join(dir, "pelago")
		build := exec.Command("go", "build", "-C", "../..", "-o", binary, "./cmd/pelago")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build pelago:", err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func chartDir(name string) string { return filepath.Join("..", "..", "deploy", "charts", name) }

// render are the objects of a release without its hooks.
func render(t *testing.T, name string, values map[string]any, crds bool) ([]*unstructured.Unstructured, error) {
	t.Helper()
	r, err := template(t, name, values, crds)
	if err != nil {
		return nil, err
	}
	hooks(t, r) // they are manifests, too
	objs, err := manifests.Decode(strings.NewReader(r.Manifest))
	must(t, err)
	return objs, nil
}

// template is `helm template`.
func template(t *testing.T, name string, values map[string]any, crds bool) (*release.Release, error) {
	t.Helper()
	c, err := loader.LoadDir(chartDir(name))
	must(t, err)
	install := action.NewInstall(&action.Configuration{Log: t.Logf})
	install.ClientOnly, install.DryRun, install.IncludeCRDs, install.ReleaseName, install.Namespace = true, true, crds, "pelago", "default"
	version, err := chartutil.ParseKubeVersion("1.37.0")
	must(t, err)
	install.KubeVersion = version
	return install.Run(c, values)
}

// hooks are the objects of a release that only its hooks create.
func hooks(t *testing.T, r *release.Release) (all []*unstructured.Unstructured) {
	t.Helper()
	for _, h := range r.Hooks {
		objs, err := manifests.Decode(strings.NewReader(h.Manifest))
		must(t, err)
		all = append(all, objs...)
	}
	return all
}

// unjoinPod is the pod of the Job before the deletion of a release.
func unjoinPod(t *testing.T, r *release.Release) corev1.PodSpec {
	t.Helper()
	for _, u := range hooks(t, r) {
		if u.GetKind() == "Job" {
			job := &batchv1.Job{}
			must(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, job, true))
			return job.Spec.Template.Spec
		}
	}
	t.Fatal("no Job runs before the deletion")
	return corev1.PodSpec{}
}

func title(u *unstructured.Unstructured) string {
	return u.GetKind() + "." + u.GroupVersionKind().Group + " " + client.ObjectKeyFromObject(u).String()
}

func byTitle(objs []*unstructured.Unstructured) map[string]any {
	out := map[string]any{}
	for _, u := range objs {
		out[title(u)] = u.Object
	}
	return out
}

// clusterset is a hub that propagates, and a member with one node.
type clusterset struct {
	dir         string
	hub, member *rest.Config
	info        string // content of broker-info.subm
}

func newClusterset(t *testing.T) clusterset {
	t.Helper()
	c := clusterset{dir: t.TempDir(), hub: apiserver.Start(t, apiserver.HubControllers()),
		member: apiserver.Start(t, apiserver.Controllers("namespace-controller", "garbage-collector-controller"))}
	apiserver.Connect(t, c.member).Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy"}, Data: map[string]string{"config.conf": "clusterCIDR: 10.7.0.0/24\n"}})
	c.pelago(t, c.hub, "init", "--output", filepath.Join(c.dir, "hub.kubeconfig"))
	file := filepath.Join(c.dir, "broker-info.subm")
	c.pelago(t, c.hub, "deploy-broker", "--globalnet", "--output", file)
	text, err := os.ReadFile(file)
	must(t, err)
	c.info = strings.TrimSpace(string(text))
	return c
}

// pelago runs the command line with an access and returns what it prints.
func (c clusterset) pelago(t *testing.T, as *rest.Config, args ...string) string {
	t.Helper()
	cmd := exec.Command(binary, append(args, "--kubeconfig", kubeconfig(t, as))...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("pelago %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), errOut.String())
	}
	return out.String()
}

func kubeconfig(t *testing.T, as *rest.Config) string {
	t.Helper()
	text, err := apiserver.Kubeconfig(as)
	must(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(file, text, 0o600))
	return file
}

func (c clusterset) dryRun(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	objs, err := manifests.Decode(strings.NewReader(c.pelago(t, c.member, append(args, "--dry-run", "-o", "yaml")...)))
	must(t, err)
	return objs
}

// job takes the objects of the Job that joins away from those of the chart, and returns the Job's
// arguments.
func (c clusterset) job(t *testing.T, objs []*unstructured.Unstructured) (args []string, rest []*unstructured.Unstructured) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "broker-info.subm")
	for _, u := range objs {
		switch {
		case u.GetName() == "pelago-broker-info":
			text, _, err := unstructured.NestedString(u.Object, "stringData", "broker-info.subm")
			must(t, err)
			must(t, os.WriteFile(file, []byte(text), 0o600))
		case u.GetKind() == "Job":
			containers, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
			must(t, err)
			args, _, err = unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
			must(t, err)
		case u.GetName() != "pelago-join":
			rest = append(rest, u)
		}
	}
	if len(args) < 2 || args[1] != "/etc/pelago/broker-info.subm" {
		t.Fatalf("arguments of the Job: %q", args)
	}
	args[1] = file
	return args, rest
}

// TestMemberIsWhatJoinInstalls compares the chart, and what its Job writes, with what `pelago join`
// with the same options writes.
func TestMemberIsWhatJoinInstalls(t *testing.T) {
	c := newClusterset(t)
	file := filepath.Join(c.dir, "broker-info.subm")
	for name, tt := range map[string]struct {
		values map[string]any
		flags  []string
	}{
		"everything": {},
		"all options": {
			values: map[string]any{"image": "registry.example/pelago:v1", "imagePullPolicy": "Always", "imagePullSecrets": []any{"a", "b"}, "cableDriver": "libreswan",
				"nodeSelector": map[string]any{"pool": "infra"}, "corednsCustomConfigmap": "coredns-custom", "httpsProxy": "http://192.0.2.1:3128", "noProxy": "10.0.0.0/8",
				"tolerations": []any{map[string]any{"key": "infra", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, map[string]any{"key": "spot", "operator": "Exists"}},
				"gateways":    3, "joinArgs": []any{"--globalnet-cidr", "242.7.0.0/16"}},
			flags: []string{"--image", "registry.example/pelago:v1", "--image-pull-policy", "Always", "--image-pull-secret", "a,b", "--cable-driver", "libreswan",
				"--node-selector", "pool=infra", "--coredns-custom-configmap", "coredns-custom", "--https-proxy", "http://192.0.2.1:3128", "--no-proxy", "10.0.0.0/8",
				"--toleration", "infra=yes:NoSchedule,spot", "--globalnet-cidr", "242.7.0.0/16", "--gateways", "3"},
		},
		"network only":   {values: map[string]any{"workloads": false}, flags: []string{"--network-only"}},
		"workloads only": {values: map[string]any{"network": false}, flags: []string{"--workloads-only"}},
	} {
		t.Run(name, func(t *testing.T) {
			values := map[string]any{"clusterID": "c1", "brokerInfo": c.info}
			maps.Copy(values, tt.values)
			rendered, err := render(t, "pelago-member", values, values["network"] != false)
			must(t, err)
			args, components := c.job(t, rendered)
			got := byTitle(components)
			for key, object := range byTitle(c.dryRun(t, args...)) {
				if have, ok := got[key]; ok {
					if diff := cmp.Diff(have, object); diff != "" {
						t.Errorf("%s: -chart +its Job\n%s", key, diff)
					}
				}
				got[key] = object
			}
			want := byTitle(c.dryRun(t, append([]string{"join", file, "--clusterid", "c1"}, tt.flags...)...))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-join +chart\n%s", diff)
			}
		})
	}
}

// TestMemberIsInstalledAndRemoved installs the chart, runs its Jobs with their rights (no kubelet
// does), and compares what is there.
func TestMemberIsInstalledAndRemoved(t *testing.T) {
	c := newClusterset(t)
	ctx := t.Context()
	member := apiserver.Connect(t, c.member, apiextensionsv1.AddToScheme)
	settings := cli.New()
	settings.KubeConfig = kubeconfig(t, c.member)
	settings.SetNamespace("default")
	config := new(action.Configuration)
	must(t, config.Init(settings.RESTClientGetter(), "default", "secret", t.Logf))
	loaded, err := loader.LoadDir(chartDir("pelago-member"))
	must(t, err)
	values := map[string]any{"clusterID": "c1", "brokerInfo": c.info}

	install := action.NewInstall(config)
	install.ReleaseName, install.Namespace = "pelago", "default"
	installed, err := install.RunWithContext(ctx, loaded, values)
	must(t, err)
	objs, err := manifests.Decode(strings.NewReader(installed.Manifest))
	must(t, err)
	args, _ := c.job(t, objs)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "pelago-system", Name: "pelago-join"}}
	request := &authenticationv1.TokenRequest{}
	must(t, member.SubResource("token").Create(ctx, account, request))
	own := &rest.Config{Host: c.member.Host, BearerToken: request.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: c.member.CAData}}
	c.pelago(t, own, args...)
	c.pelago(t, own, args...) // a Job that is repeated
	upgrade := action.NewUpgrade(config)
	upgrade.Namespace = "default"
	_, err = upgrade.RunWithContext(ctx, "pelago", loaded, values)
	must(t, err)

	for _, u := range c.dryRun(t, "join", filepath.Join(c.dir, "broker-info.subm"), "--clusterid", "c1") {
		checkSame(t, member, u)
	}

	unjoin := append(unjoinPod(t, installed).Containers[0].Args, "--timeout", "1s", "--force") // no kubelet cleans the node
	c.pelago(t, c.member, unjoin...)
	c.pelago(t, c.member, unjoin...) // as if it had never joined
	uninstall := action.NewUninstall(config)
	uninstall.DisableHooks = true
	_, err = uninstall.Run("pelago")
	must(t, err)
	var roles rbacv1.ClusterRoleList
	var crds apiextensionsv1.CustomResourceDefinitionList
	must(t, member.List(ctx, &roles))
	must(t, member.List(ctx, &crds))
	if i := slices.IndexFunc(roles.Items, func(r rbacv1.ClusterRole) bool { return strings.HasPrefix(r.Name, "pelago") }); i >= 0 {
		t.Errorf("ClusterRole %s stays", roles.Items[i].Name)
	}
	if err := member.Get(ctx, client.ObjectKey{Name: "pelago-system"}, &corev1.Namespace{}); !apierrors.IsNotFound(err) || len(crds.Items) == 0 {
		t.Errorf("namespace: %v, %d definitions; want the definitions alone to stay", err, len(crds.Items))
	}
}

// TestUnjoinJob: it runs before each deletion, however the cluster has joined, in a namespace that
// may enforce the restricted profile.
func TestUnjoinJob(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"joined by hand": nil,
		"joined by the Job": {"clusterID": "c1", "brokerInfo": "x", "image": "registry.example.org/pelago:v1", "imagePullSecrets": []any{"a", "b"},
			"nodeSelector": map[string]any{"pool": "infra"}},
	} {
		r, err := template(t, "pelago-member", values, false)
		must(t, err)
		pod := unjoinPod(t, r)
		c := pod.Containers[0]
		if values != nil {
			if pod.NodeSelector["pool"] != "infra" || c.Image != values["image"] {
				t.Errorf("%s: image %s on nodes %v", name, c.Image, pod.NodeSelector)
			}
			if diff := cmp.Diff([]corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}, pod.ImagePullSecrets); diff != "" {
				t.Errorf("%s: imagePullSecrets -want +got\n%s", name, diff)
			}
		}
		no, yes, user := false, true, int64(65532)
		if diff := cmp.Diff(&corev1.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &user,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}, c.SecurityContext); diff != "" {
			t.Errorf("%s: securityContext -want +got\n%s", name, diff)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("%s: resources %v", name, c.Resources)
		}
	}
}

// checkSame applies an object over that of the cluster, as a dry run: it changes nothing.
func checkSame(t *testing.T, c client.Client, want *unstructured.Unstructured) {
	t.Helper()
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(want.GroupVersionKind())
	must(t, c.Get(context.Background(), client.ObjectKeyFromObject(want), have))
	applied := want.DeepCopy()
	must(t, c.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("test"), client.ForceOwnership, client.DryRunAll))
	for _, u := range []*unstructured.Unstructured{have, applied} {
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
		u.SetGeneration(0)
	}
	if diff := cmp.Diff(have.Object, applied.Object); diff != "" {
		t.Errorf("%s: -chart +join\n%s", title(want), diff)
	}
}

// TestHub compares the hub's chart with the manifests of init and deploy-broker.
func TestHub(t *testing.T) {
	decode := func(values map[string]any) map[string]any {
		objs, err := render(t, "pelago-hub", values, false)
		must(t, err)
		return byTitle(objs)
	}
	want, err := manifests.HubObjects()
	must(t, err)
	if diff := cmp.Diff(byTitle(want), decode(nil)); diff != "" {
		t.Errorf("broker: -deploy-broker +chart\n%s", diff)
	}
	for _, pods := range []bool{false, true} {
		want, err := manifests.PropagationObjects(manifests.MemberOptions{Image: "example/pelago:v1", PullSecrets: []string{"a"},
			NodeSelector: map[string]string{"pool": "infra"}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}}, pods)
		must(t, err)
		got := decode(map[string]any{"broker": false, "propagation": true, "deployHub": pods, "image": "example/pelago:v1", "imagePullSecrets": []any{"a"},
			"nodeSelector": map[string]any{"pool": "infra"}, "tolerations": []any{map[string]any{"key": "spot", "operator": "Exists"}}})
		if diff := cmp.Diff(byTitle(want), got); diff != "" {
			t.Errorf("propagation, Deployment %t: -init +chart\n%s", pods, diff)
		}
	}
	// On a real API server; deploy-broker and init complete it.
	hub := apiserver.Start(t, apiserver.HubControllers())
	settings := cli.New()
	settings.KubeConfig = kubeconfig(t, hub)
	settings.SetNamespace("default")
	config := new(action.Configuration)
	must(t, config.Init(settings.RESTClientGetter(), "default", "secret", t.Logf))
	loaded, err := loader.LoadDir(chartDir("pelago-hub"))
	must(t, err)
	install := action.NewInstall(config)
	install.ReleaseName, install.Namespace = "pelago", "default"
	values := map[string]any{"propagation": true}
	_, err = install.RunWithContext(t.Context(), loaded, values)
	must(t, err)
	c := clusterset{dir: t.TempDir()}
	c.pelago(t, hub, "init", "--output", filepath.Join(c.dir, "hub.kubeconfig"))
	c.pelago(t, hub, "deploy-broker", "--output", filepath.Join(c.dir, "broker-info.subm"))
	upgrade := action.NewUpgrade(config)
	upgrade.Namespace = "default"
	_, err = upgrade.RunWithContext(t.Context(), "pelago", loaded, values)
	must(t, err)
	book := &corev1.ConfigMap{}
	must(t, apiserver.Connect(t, hub).Get(t.Context(), client.ObjectKey{Namespace: manifests.BrokerNamespace, Name: "submariner-globalnet-info"}, book))
}

// TestHubAndMemberInOneCluster: a hub that runs workloads may be a member. Helm refuses an object
// that another release has made.
func TestHubAndMemberInOneCluster(t *testing.T) {
	hub := map[string]any{"propagation": true, "deployHub": true}
	member := map[string]any{"clusterID": "c1", "brokerInfo": "x"}
	shared := func() (out []string) {
		ofHub, err := render(t, "pelago-hub", hub, false)
		must(t, err)
		ofMember, err := render(t, "pelago-member", member, false)
		must(t, err)
		objects := byTitle(ofHub)
		for _, u := range ofMember {
			if _, ok := objects[title(u)]; ok {
				out = append(out, title(u))
			}
		}
		return out
	}
	want := []string{"Namespace. /pelago-system", "ResourceQuota. pelago-system/pelago-critical-pods"}
	if diff := cmp.Diff(want, shared()); diff != "" {
		t.Errorf("objects of both charts: -want +got\n%s", diff)
	}
	for _, later := range []map[string]any{hub, member} {
		later["createNamespace"] = false
		if got := shared(); len(got) > 0 {
			t.Errorf("both charts have %q", got)
		}
		delete(later, "createNamespace")
	}
	// as `helm upgrade --reuse-values` from a version that did not have the value
	hub["createNamespace"], member["createNamespace"] = nil, nil
	if diff := cmp.Diff(want, shared()); diff != "" {
		t.Errorf("without the value: -want +got\n%s", diff)
	}
}

// TestJoinJob: the Job that joins has another name for whatever changes its pod, which the API
// server refuses to change, and no other.
func TestJoinJob(t *testing.T) {
	job := func(more map[string]any) (name string, pod any) {
		values := map[string]any{"clusterID": "c1", "brokerInfo": "x"}
		maps.Copy(values, more)
		objs, err := render(t, "pelago-member", values, false)
		must(t, err)
		for _, u := range objs {
			if u.GetKind() == "Job" {
				return u.GetName(), u.Object["spec"]
			}
		}
		t.Fatal("no Job")
		return "", nil
	}
	name, pod := job(nil)
	for _, more := range []map[string]any{
		{"httpsProxy": "http://proxy.example.org:3128"}, {"imagePullPolicy": "Always"}, {"imagePullSecrets": []any{"a"}}, {"image": "example/pelago:v2"},
		{"nodeSelector": map[string]any{"pool": "infra"}}, {"tolerations": []any{map[string]any{"key": "spot", "operator": "Exists"}}},
		{"cableDriver": "vxlan"}, {"existingSecret": "info", "brokerInfo": ""},
	} {
		if other, changed := job(more); other == name || cmp.Equal(pod, changed) {
			t.Errorf("%v: name %s, changed: %t", more, other, !cmp.Equal(pod, changed))
		}
	}
	if other, same := job(nil); other != name || !cmp.Equal(pod, same) {
		t.Errorf("the same values: name %s, was %s", other, name)
	}
}

// TestPushMember compares that chart with what join makes in a push member.
func TestPushMember(t *testing.T) {
	got, err := render(t, "pelago-push-member", map[string]any{"cluster": "m1", "hubID": "0000-1"}, false)
	must(t, err)
	want, err := member.PushAccount{Cluster: "m1", HubID: "0000-1"}.Manifests()
	must(t, err)
	if diff := cmp.Diff(byTitle(want), byTitle(got)); diff != "" {
		t.Errorf("-join +chart\n%s", diff)
	}
}

// TestOperator compares that chart with the operator's manifests.
func TestOperator(t *testing.T) {
	for name, tt := range map[string]struct {
		values  map[string]any
		options manifests.MemberOptions
	}{
		"defaults": {nil, manifests.MemberOptions{}},
		"all": {map[string]any{"image": "registry.example/pelago:v1", "imagePullPolicy": "Always", "imagePullSecrets": []any{"a"}, "httpsProxy": "http://192.0.2.1:3128",
			"noProxy": "10.0.0.0/8", "nodeSelector": map[string]any{"pool": "infra"}, "tolerations": []any{map[string]any{"key": "spot", "operator": "Exists"}}},
			manifests.MemberOptions{Image: "registry.example/pelago:v1", PullPolicy: "Always", PullSecrets: []string{"a"}, HTTPSProxy: "http://192.0.2.1:3128",
				NoProxy: "10.0.0.0/8", NodeSelector: map[string]string{"pool": "infra"}, Tolerations: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}}},
	} {
		got, err := render(t, "pelago-operator", tt.values, false)
		must(t, err)
		want, err := manifests.OperatorObjects(tt.options)
		must(t, err)
		if diff := cmp.Diff(byTitle(want), byTitle(got)); diff != "" {
			t.Errorf("%s: -manifests +chart\n%s", name, diff)
		}
	}
}

func TestBadValues(t *testing.T) {
	for words, tt := range map[string]struct {
		chart  string
		values map[string]any
	}{
		"clusterID: the id of the cluster": {"pelago-member", map[string]any{"brokerInfo": "x"}},
		"'/clusterID'":                     {"pelago-member", map[string]any{"clusterID": "A B"}},
		"'netwrok'":                        {"pelago-member", map[string]any{"netwrok": false}},
		"anyOf":                            {"pelago-member", map[string]any{"network": false, "workloads": false}},
		"'/cableDriver'":                   {"pelago-member", map[string]any{"cableDriver": "tin"}},
		"cluster: the name of the cluster": {"pelago-push-member", map[string]any{"hubID": "1"}},
		"hubID: the UID":                   {"pelago-push-member", map[string]any{"cluster": "m1"}},
		"'versoin'":                        {"pelago-operator", map[string]any{"versoin": "v1"}},
		"'/propagation'":                   {"pelago-hub", map[string]any{"propagation": "yes"}},
	} {
		if _, err := render(t, tt.chart, tt.values, false); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s %v: %v, want an error with %q", tt.chart, tt.values, err, words)
		}
	}
}

func TestLint(t *testing.T) {
	for name, values := range map[string]map[string]any{
		"pelago-member":      {"clusterID": "c1", "brokerInfo": "x"},
		"pelago-hub":         {"propagation": true, "deployHub": true},
		"pelago-operator":    {},
		"pelago-push-member": {"cluster": "m1", "hubID": "1"},
	} {
		for _, m := range lint.All(chartDir(name), values, "default", false).Messages {
			if m.Severity >= support.WarningSev {
				t.Errorf("%s: %s", name, m)
			}
		}
	}
}
