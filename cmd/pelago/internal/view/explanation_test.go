package view

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// noon is when the tests' commands run.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// golden compares what is printed with a file of testdata/hub.
func golden(t *testing.T, name string, print func(io.Writer) error) {
	t.Helper()
	var out bytes.Buffer
	if err := print(&out); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "hub", name)
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("%s: -want +got (go test -update writes it anew)\n%s", file, diff)
	}
}

// parse reads YAML as an object of the API.
func parse[T any](t *testing.T, text string) T {
	t.Helper()
	var out T
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
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

// nginx is a Deployment in four clusters: m1 has it, m2's API server refuses it, m3 is away, m4 is
// being left. m5, which another template requires, is not known.
func nginx(t *testing.T) *Subject {
	t.Helper()
	policy := parse[policyv1alpha1.PropagationPolicy]
	wide := parse[policyv1alpha1.ClusterPropagationPolicy]
	cluster := parse[clusterv1alpha1.Cluster]
	work := parse[workv1alpha1.Work]
	s := &Subject{
		template: object(t, `
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: shop, name: nginx, generation: 3, labels: {app: nginx, propagationpolicy.karmada.io/permanent-id: p1}}
spec: {template: {spec: {containers: [{name: nginx, image: "nginx:1"}]}}}
status: {observedGeneration: 2, replicas: 2}`),
		policies: []policyv1alpha1.PropagationPolicy{
			policy(t, `{metadata: {namespace: shop, name: nginx, labels: {propagationpolicy.karmada.io/permanent-id: p1}}, spec: {priority: 1, resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {app: nginx}}}]}}`),
			policy(t, `{metadata: {namespace: shop, name: all}, spec: {priority: 1, resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]}}`),
			policy(t, `{metadata: {namespace: shop, name: low}, spec: {resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: nginx}]}}`),
			policy(t, `{metadata: {namespace: shop, name: late}, spec: {priority: 9, resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: nginx}]}}`),
			policy(t, `{metadata: {namespace: shop, name: other}, spec: {resourceSelectors: [{apiVersion: v1, kind: Service}]}}`),
			policy(t, `{metadata: {namespace: shop, name: zz}, spec: {priority: 1, resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {app: nginx}}}]}}`),
		},
		clusterPolicies: []policyv1alpha1.ClusterPropagationPolicy{
			wide(t, `{metadata: {name: everything}, spec: {priority: 100, resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]}}`),
			wide(t, `{metadata: {name: broken}, spec: {resourceSelectors: [{apiVersion: apps/v1, kind: Deployment}]}, status: {conditions: [{type: Accepted, status: "False", reason: Invalid, message: "spec.placement: no"}]}}`),
		},
		clusters: []clusterv1alpha1.Cluster{
			cluster(t, `{metadata: {name: m1, labels: {zone: a}}, status: {conditions: [{type: Ready, status: "True"}]}}`),
			cluster(t, `{metadata: {name: m2}, status: {conditions: [{type: Ready, status: "True"}]}}`),
			cluster(t, `{metadata: {name: m3}, status: {conditions: [{type: Ready, status: Unknown, reason: ClusterStatusUnknown, message: "the Lease has run out"}]}}`),
			cluster(t, `{metadata: {name: m4}, status: {conditions: [{type: Ready, status: "True"}]}}`),
		},
		works: []workv1alpha1.Work{
			work(t, `{metadata: {namespace: karmada-es-m1, name: nginx-1, generation: 2}, status: {conditions: [{type: Applied, status: "True", observedGeneration: 2}], manifestStatuses: [{identifier: {version: v1, kind: Deployment, resource: deployments, name: nginx, ordinal: 0}, health: Healthy}]}}`),
			work(t, `{metadata: {namespace: karmada-es-m2, name: nginx-1, generation: 2}, status: {conditions: [{type: Applied, status: "False", observedGeneration: 2, message: 'pods "nginx" is forbidden: exceeded quota: small'}]}}`),
			work(t, `{metadata: {namespace: karmada-es-m3, name: nginx-1, generation: 2}, status: {conditions: [{type: Applied, status: "True", observedGeneration: 1}]}}`),
			work(t, `{metadata: {namespace: karmada-es-m4, name: nginx-1, deletionTimestamp: "2026-01-02T11:00:00Z"}}`),
		},
		binding: binding.New(client.ObjectKey{Namespace: "shop", Name: "nginx-deployment"}),
		events: []corev1.Event{
			parse[corev1.Event](t, `{reason: ApplyPolicySucceed, type: Normal, message: "claimed by nginx", lastTimestamp: "2026-01-02T11:50:00Z", involvedObject: {kind: Deployment}}`),
			parse[corev1.Event](t, `{reason: SyncWorkFailed, type: Warning, message: "m2: quota", eventTime: "2026-01-02T11:59:00.000000Z", involvedObject: {kind: ResourceBinding}}`),
		},
	}
	s.overrides.Namespaced = []policyv1alpha1.OverridePolicy{
		parse[policyv1alpha1.OverridePolicy](t, `{metadata: {namespace: shop, name: image}, spec: {overrideRules: [{targetCluster: {clusterNames: [m1]}, overriders: {imageOverrider: [{component: Tag, operator: replace, value: "2"}]}}, {targetCluster: {clusterNames: [m1]}, overriders: {labelsOverrider: [{operator: add, value: {a: b}}]}}]}}`),
		parse[policyv1alpha1.OverridePolicy](t, `{metadata: {namespace: shop, name: wrong}, spec: {overrideRules: [{targetCluster: {clusterNames: [m3]}, overriders: {plaintext: [{path: /spec/nowhere/x, operator: replace, value: 1}]}}]}}`),
		parse[policyv1alpha1.OverridePolicy](t, `{metadata: {namespace: shop, name: invalid}, spec: {overrideRules: [{overriders: {labelsOverrider: [{operator: add, value: {c: d}}]}}]}, status: {conditions: [{type: Accepted, status: "False"}]}}`),
	}
	*s.binding.Spec = parse[workv1alpha2.ResourceBindingSpec](t, `{resource: {apiVersion: apps/v1, kind: Deployment, name: nginx}, placement: {}, clusters: [{name: m1, replicas: 2}, {name: m2, replicas: 1}, {name: m3, replicas: 1}], gracefulEvictionTasks: [{fromCluster: m1, reason: Failback, message: "replicas return to cluster m2"}, {fromCluster: m4, reason: TaintUntolerated, message: "taint x is not tolerated"}], requiredBy: [{name: shop, clusters: [{name: m1}, {name: m5}]}]}`)
	*s.binding.Status = parse[workv1alpha2.ResourceBindingStatus](t, `{conditions: [{type: FullyApplied, status: "False", reason: FullyAppliedFailed, message: "m2: quota", lastTransitionTime: "2026-01-02T11:00:00Z"}], aggregatedStatus: [{clusterName: m1, applied: true, health: Healthy, status: {replicas: 2}}, {clusterName: m2, health: Unknown, appliedMessage: quota}]}`)
	hash, err := workv1alpha2.SpecHash(s.binding.Spec)
	if err != nil {
		t.Fatal(err)
	}
	text, err := workv1alpha2.Decision{For: hash, Reason: "Success", Message: "3 clusters", Term: "near", Time: metav1.NewMicroTime(noon.Add(-2 * time.Minute)), Held: "cluster m2 is tainted: it stays there",
		Failback: &workv1alpha2.Failback{Message: "it returns to cluster m9 at 2026-01-02T13:00:00Z if that stays ready until then"},
		Rejected: []workv1alpha2.Rejection{{Why: "did not match the affinity", Clusters: []string{"m6", "m7"}, More: 3}, {Why: "has a taint", Clusters: []string{"m4"}}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	s.binding.SetAnnotations(map[string]string{workv1alpha2.AnnotationDecision: text})
	return s
}

func TestExplanation(t *testing.T) {
	s := nginx(t)
	golden(t, "explain.txt", func(w io.Writer) error { return PrintExplanation(w, s.Explain(), false, noon) })
	golden(t, "explain.json", func(w io.Writer) error { return Encode(w, "json", s.Explain()) })
	golden(t, "describe.txt", func(w io.Writer) error { return PrintDescription(w, s.Describe(), false, noon) })
	golden(t, "describe.yaml", func(w io.Writer) error { return Encode(w, "yaml", s.Describe()) })
}

// The reason why there is no decision comes with its remedy.
func TestProblem(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Subject)
		want   string
	}{
		"nothing": {func(*Subject) {}, ""},
		"reserved namespace": {func(s *Subject) { s.template.SetNamespace("kube-system") },
			"namespace kube-system is the system's: nothing in it is sent to clusters. Put the object into another one."},
		"no policy": {func(s *Subject) { s.binding, s.policies, s.clusterPolicies = binding.Binding{}, nil, nil },
			"no policy selects it: make a PropagationPolicy, or send it with `pelago apply -f FILE --all-clusters`"},
		"not claimed": {func(s *Subject) { s.binding = binding.Binding{}; s.template.SetLabels(nil) },
			"a policy selects it, but it is not claimed: does pelago-hub run?"},
		"no binding": {func(s *Subject) { s.binding = binding.Binding{} },
			"it is claimed, but there is no binding: does pelago-hub run? Events of the object may say more."},
		"no decision": {func(s *Subject) { s.binding.SetAnnotations(nil) }, "nothing is decided yet: does pelago-hub run?"},
		"suspended": {func(s *Subject) {
			s.binding.SetAnnotations(nil)
			s.binding.Spec.Suspension = &workv1alpha2.Suspension{Scheduling: new(bool)}
			*s.binding.Spec.Suspension.Scheduling = true
		}, "scheduling is suspended: remove spec.suspension.scheduling of the binding"},
		"another scheduler": {func(s *Subject) { s.binding.SetAnnotations(nil); s.binding.Spec.SchedulerName = "mine" },
			`nothing is recorded of a decision: that is up to the scheduler "mine"`},
		"a dependent": {func(s *Subject) { s.binding.SetAnnotations(nil); s.binding.Spec.Placement = nil }, ""},
	} {
		s := nginx(t)
		tt.change(s)
		if got := s.Explain().Problem; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func TestClusterListing(t *testing.T) {
	clusters := []clusterv1alpha1.Cluster{
		parse[clusterv1alpha1.Cluster](t, `{metadata: {name: m1, creationTimestamp: "2026-01-01T12:00:00Z"}, spec: {syncMode: Push, zone: a, region: west, provider: own, apiEndpoint: "https://192.0.2.1:6443", taints: [{key: k, value: v, effect: NoSchedule}, {key: l, effect: NoExecute}]}, status: {kubernetesVersion: v1.34.4, conditions: [{type: Ready, status: "True"}]}}`),
		parse[clusterv1alpha1.Cluster](t, `{metadata: {name: m2, creationTimestamp: "2026-01-02T11:59:00Z"}, spec: {syncMode: Pull}}`),
	}
	golden(t, "clusters.txt", func(w io.Writer) error { return PrintTables(w, "table", ClusterListing(clusters, noon)) })
	golden(t, "clusters-wide.txt", func(w io.Writer) error { return PrintTables(w, "wide", ClusterListing(clusters, noon)) })
	golden(t, "clusters-none.txt", func(w io.Writer) error { return PrintTables(w, "table", ClusterListing(nil, noon)) })
}

func TestListings(t *testing.T) {
	columns := []metav1.TableColumnDefinition{{Name: "Name"}, {Name: "Ready"}, {Name: "Node", Priority: 1}}
	rowOf := func(meta string, cells ...any) metav1.TableRow {
		raw, err := json.Marshal(map[string]any{"metadata": parse[map[string]any](t, meta)})
		if err != nil {
			t.Fatal(err)
		}
		r := metav1.TableRow{Cells: cells}
		r.Object.Raw = raw
		return r
	}
	all := []Listing{
		{Table: metav1.Table{ColumnDefinitions: columns}},
		{Cluster: "m1", Table: metav1.Table{ColumnDefinitions: columns, Rows: []metav1.TableRow{
			rowOf(`{name: a, namespace: x, labels: {karmada.io/managed: "true"}}`, "a", "1/1", "n1"), rowOf(`{name: b, namespace: x}`, "b", int64(2), nil)}}},
		// A server of another version has its columns in another order, and one that is unknown
		// here.
		{Cluster: "m2", Table: metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name"}, {Name: "New"}, {Name: "Ready"}}, Rows: []metav1.TableRow{
			rowOf(`{name: a, namespace: x}`, "a", "?", "0/1")}}},
	}
	for file, form := range map[string]struct {
		output string
		ns     bool
	}{"listing.txt": {"table", false}, "listing-wide.txt": {"wide", true}, "listing.yaml": {"yaml", false}} {
		tab, err := Listings(all, "No objects found.", form.ns)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, file, func(w io.Writer) error { return PrintTables(w, form.output, tab) })
	}

	works := []Listing{{Cluster: "m3", Works: &workv1alpha1.WorkList{Items: []workv1alpha1.Work{
		parse[workv1alpha1.Work](t, `{metadata: {name: a-1, generation: 1}, spec: {workload: {manifests: [{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: x, name: a}}]}}, status: {conditions: [{type: Applied, status: "True", observedGeneration: 1}], manifestStatuses: [{identifier: {ordinal: 0, version: v1, kind: Deployment, resource: deployments, name: a}, health: Healthy, status: {replicas: 1}}]}}`),
		parse[workv1alpha1.Work](t, `{metadata: {name: b-1, generation: 2}, spec: {workload: {manifests: [{apiVersion: apps/v1, kind: Deployment, metadata: {namespace: z, name: b}}]}}, status: {conditions: [{type: Applied, status: "True", observedGeneration: 1}]}}`),
		parse[workv1alpha1.Work](t, `{metadata: {name: c-1}, spec: {workload: {manifests: [{apiVersion: v1, kind: Service, metadata: {namespace: x, name: a}}]}}}`),
	}}}}
	golden(t, "works.txt", func(w io.Writer) error {
		return PrintTables(w, "table", WorkListing(works, Selection{Group: "apps", ObjectKind: "Deployment", AllNamespaces: true}))
	})
	golden(t, "works.json", func(w io.Writer) error {
		return PrintTables(w, "json", WorkListing(works, Selection{Group: "apps", ObjectKind: "Deployment", Namespace: "x"}))
	})
}
