package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// dryRun runs a join with --dry-run and returns the objects that it prints, with server-side fields
// left out.
func (c clusterset) dryRun(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := root("pelago")
	cmd.SetArgs(append(args, "--dry-run", "-o", "yaml", "--kubeconfig", c.kubeconfig))
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	cmd.SetIn(strings.NewReader(""))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, errOut.String())
	}
	objs, err := manifests.Decode(&out)
	must(t, err)
	return objs
}

func title(u *unstructured.Unstructured) string {
	return strings.TrimSpace(u.GetAPIVersion() + " " + u.GetKind() + " " + client.ObjectKeyFromObject(u).String())
}

// everything returns the versions of all objects of a cluster, by title.
func everything(t *testing.T, cfg *rest.Config) map[string]string {
	t.Helper()
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	must(t, err)
	lists, err := d.ServerPreferredResources()
	must(t, err)
	c := open(t, cfg)
	out := map[string]string{}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "create"}}, lists) {
		for _, r := range list.APIResources {
			objs := &metav1.PartialObjectMetadataList{}
			objs.APIVersion, objs.Kind = list.GroupVersion, r.Kind+"List"
			must(t, c.List(t.Context(), objs))
			for _, o := range objs.Items {
				u := &unstructured.Unstructured{}
				u.SetAPIVersion(list.GroupVersion)
				u.SetKind(r.Kind)
				u.SetNamespace(o.Namespace)
				u.SetName(o.Name)
				out[title(u)] = o.ResourceVersion
			}
		}
	}
	return out
}

// ofControllers are objects that no join writes: those of controllers and of the API server.
func ofControllers(name string) bool {
	for _, part := range []string{"APIService ", "Lease ", "Event ", "IPAddress ", "kube-root-ca.crt", "ServiceAccount pelago-system/default", "ServiceAccount kube-system/", "Namespace /default", "Endpoints", "FlowSchema", "PriorityLevel",
		"ClusterRole /admin", "ClusterRole /edit", "ClusterRole /view"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// TestDryRun compares what join --dry-run prints with what join writes, and checks that it writes
// nothing.
func TestDryRun(t *testing.T) {
	t.Parallel()
	c := newClusterset(t, propagated(t))
	ctx := t.Context()
	member := open(t, c.member)
	must(t, member.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.0.0/24"}}))
	c.propagates(t)
	c.deployBroker(t)
	pods := []string{"--image-pull-secret", "pull", "--node-selector", "pool=infra", "--toleration", "infra=yes:NoSchedule,spot", "--https-proxy", "http://192.0.2.1:3128",
		"--no-proxy", "10.0.0.0/8"}
	for name, args := range map[string][]string{
		"everything":     append(c.join("--clusterid", "d1", "--cable-driver", "libreswan"), pods...),
		"workloads only": append(c.join("--clusterid", "d1", "--workloads-only"), pods...),
	} {
		t.Run(name, func(t *testing.T) {
			hubBefore, before := everything(t, c.hub), everything(t, c.member)
			printed := c.dryRun(t, args...)
			unchanged := func(where string, before, after map[string]string) {
				for key, version := range after {
					if before[key] != version && !ofControllers(key) {
						t.Errorf("%s: the dry run wrote %s", where, key)
					}
				}
			}
			unchanged("hub", hubBefore, everything(t, c.hub))
			unchanged("member", before, everything(t, c.member))
			c.must(t, args...)
			wrote := map[string]bool{}
			for key, version := range everything(t, c.member) {
				if before[key] != version && !ofControllers(key) {
					wrote[key] = true
				}
			}
			for _, u := range printed {
				u.SetAPIVersion(strings.Replace(u.GetAPIVersion(), "multicluster.x-k8s.io/v1alpha1", "multicluster.x-k8s.io/v1beta1", 1))
				if !wrote[title(u)] {
					t.Errorf("join does not write what the dry run prints: %s", title(u))
				}
				delete(wrote, title(u))
				checkSame(t, member, u)
			}
			if len(wrote) > 0 {
				t.Errorf("the dry run does not print %v", wrote)
			}
			again := c.dryRun(t, c.join("--clusterid", "d1")...) // with the kept flags
			titles := func(objs []*unstructured.Unstructured) (out []string) {
				for _, u := range objs {
					// labelled, and the user's
					if u.GetKind() != "Node" && u.GetKind() != "ClusterGlobalEgressIP" {
						out = append(out, title(u))
						checkSame(t, member, u)
					}
				}
				slices.Sort(out)
				return out
			}
			if diff := cmp.Diff(titles(printed), titles(again)); diff != "" {
				t.Errorf("a dry run after join: -before +after\n%s", diff)
			}
			c.must(t, "unjoin", "--context", "hub", "--clusterid", "d1")
			c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
		})
	}
}

// checkSame compares a printed object with that of the cluster: applied over it, it changes
// nothing.
func checkSame(t *testing.T, c client.Client, printed *unstructured.Unstructured) {
	t.Helper()
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(printed.GroupVersionKind())
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(printed), have))
	applied := printed.DeepCopy()
	must(t, c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("dry-run"), client.ForceOwnership, client.DryRunAll))
	for _, u := range []*unstructured.Unstructured{have, applied} {
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
		u.SetGeneration(0)
	}
	if diff := cmp.Diff(have.Object, applied.Object); diff != "" {
		t.Errorf("%s: -join +dry run\n%s", title(printed), diff)
	}
}

// TestPodFlags checks where the flags about pods arrive; TestDryRun, that another join keeps them.
func TestPodFlags(t *testing.T) {
	o := manifests.MemberOptions{PullSecrets: []string{"pull"}, NodeSelector: map[string]string{"pool": "infra"},
		Tolerations: []corev1.Toleration{{Key: "spot", Operator: corev1.TolerationOpExists}}, HTTPSProxy: "http://192.0.2.1:3128", NoProxy: "10.0.0.0/8"}
	network, err := manifests.MemberObjects(o)
	must(t, err)
	execution, err := manifests.ExecutionObjects(o)
	must(t, err)
	for _, u := range append(network, execution...) {
		pod, ok, err := unstructured.NestedMap(u.Object, "spec", "template", "spec")
		must(t, err)
		if !ok {
			continue
		}
		text, err := json.Marshal(pod)
		must(t, err)
		want := map[string]bool{`"imagePullSecrets":[{"name":"pull"}]`: true, `"pool":"infra"`: u.GetKind() == "Deployment", `"key":"spot"`: u.GetKind() == "Deployment",
			`"value":"http://192.0.2.1:3128"`:                                        strings.HasPrefix(u.GetName(), "pelago-agent"),
			`"name":"NO_PROXY","value":"$(KUBERNETES_SERVICE_HOST),.svc,10.0.0.0/8"`: strings.HasPrefix(u.GetName(), "pelago-agent")}
		for part, want := range want {
			if got := strings.Contains(string(text), part); got != want {
				t.Errorf("%s %s has %s: %t, want %t", u.GetKind(), u.GetName(), part, got, want)
			}
		}
	}
}

// TestDryRunPrompts: a prompt is no part of the objects that --dry-run prints.
func TestDryRunPrompts(t *testing.T) {
	j := new(join)
	must(t, j.command().ParseFlags([]string{"--dry-run"}))
	var out, errOut bytes.Buffer
	err := j.join(t.Context(), broker.Info{}, view.NewAnswers(strings.NewReader("A B\n")), &out, &errOut)
	if err == nil || out.Len() > 0 || !strings.HasPrefix(errOut.String(), "Id of this cluster") {
		t.Errorf("with an id that is none: %v, standard output %q, standard error %q", err, &out, &errOut)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j.member.ClusterID = ""
	silent, end := io.Pipe()
	defer end.Close()
	if err := j.join(ctx, broker.Info{}, view.NewAnswers(silent), &out, &errOut); !errors.Is(err, context.Canceled) {
		t.Errorf("Ctrl-C at the prompt: %v", err)
	}
}
