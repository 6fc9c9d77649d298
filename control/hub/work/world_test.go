package work_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/control/kinds"
)

const nginx = `
apiVersion: apps/v1
kind: Deployment
metadata: {namespace: default, name: nginx, uid: t1, generation: 4, labels: {app: nginx}}
spec: {replicas: 9, template: {spec: {containers: [{name: web, image: "nginx:1"}]}}}
`

const job = `
apiVersion: batch/v1
kind: Job
metadata: {namespace: default, name: sums, uid: t1}
spec: {parallelism: 3, completions: 9, template: {spec: {containers: [{name: sum, image: sum}]}}}
`

// world is what one test starts from.
type world struct {
	testing.TB
	work.BindingInput
	spec *workv1alpha2.ResourceBindingSpec
	ids  int
}

func newWorld(t testing.TB, template string, targets ...workv1alpha2.TargetCluster) *world {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(template), &u.Object); err != nil {
		t.Fatal(err)
	}
	raw, err := u.MarshalJSON() // numbers as the cache has them
	if err != nil {
		t.Fatal(err)
	}
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	hash, err := workv1alpha2.TemplateHash(u)
	if err != nil {
		t.Fatal(err)
	}
	b := &workv1alpha2.ResourceBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: strings.ToLower(u.GetName() + "-" + u.GetKind()),
			Labels: map[string]string{workv1alpha2.LabelBindingID: "b1", policyv1alpha1.LabelPropagationPolicyID: "p1"},
			Annotations: map[string]string{
				policyv1alpha1.AnnotationPropagationPolicyNamespace: "default", policyv1alpha1.AnnotationPropagationPolicyName: "pp",
				workv1alpha2.AnnotationTemplate: hash,
			},
		},
		Spec: workv1alpha2.ResourceBindingSpec{
			Resource: workv1alpha2.ObjectReference{
				APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(),
			},
			Clusters: targets, Placement: &policyv1alpha1.Placement{},
		},
	}
	w := &world{TB: t, spec: &b.Spec}
	w.BindingInput = work.BindingInput{
		Interpreter: kinds.New(), HubID: "hub", Template: u, Binding: binding.Of(b),
		Clusters: map[string]*clusterv1alpha1.Cluster{}, MemberOwned: ptr.To(""),
		NewID: func() string { w.ids++; return fmt.Sprintf("w%d", w.ids) },
	}
	w.Names.Of, w.Names.Taken = b.Spec.Resource, map[types.NamespacedName]bool{}
	for _, name := range []string{"m1", "m2", "m3"} {
		w.Clusters[name] = &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}}
	}
	return w
}

func on(cluster string, replicas int32) workv1alpha2.TargetCluster {
	return workv1alpha2.TargetCluster{Name: cluster, Replicas: replicas}
}

func (w *world) plan() work.BindingPlan {
	w.Helper()
	plan, err := work.DesiredWorks(&w.BindingInput)
	if err != nil {
		w.Fatal(err)
	}
	return plan
}

// settle carries the plan out, as the controller and the execution would.
func (w *world) settle() {
	w.Helper()
	plan := w.plan()
	have := map[types.NamespacedName]*workv1alpha1.Work{}
	for _, x := range slices.Concat(w.Works, plan.Create, plan.Update) {
		have[types.NamespacedName{Namespace: x.Namespace, Name: x.Name}] = x
	}
	for _, x := range slices.Concat(plan.Purge, plan.Surplus) {
		delete(have, types.NamespacedName{Namespace: x.Namespace, Name: x.Name})
	}
	w.Works = slices.Collect(maps.Values(have))
}

// says is a plan in words, a line for each step.
func says(p work.BindingPlan) string {
	var out []string
	say := func(verb string, all []*workv1alpha1.Work) {
		for _, x := range all {
			cluster, _ := workv1alpha2.ClusterOfNamespace(x.Namespace) // "" shows in the text
			out = append(out, verb+" "+cluster)
		}
	}
	say("purge", p.Purge)
	for _, c := range p.Wait {
		out = append(out, "wait for "+c)
	}
	say("create", p.Create)
	say("update", p.Update)
	for _, f := range p.Failed {
		out = append(out, "failed "+f.Cluster)
	}
	say("delete", p.Surplus)
	return strings.Join(out, ", ")
}

func (w *world) work(cluster string) *workv1alpha1.Work {
	w.Helper()
	for _, x := range w.Works {
		if x.Namespace == workv1alpha2.ExecutionNamespace(cluster) {
			return x
		}
	}
	w.Fatalf("cluster %s has no Work", cluster)
	return nil
}

func (w *world) remove(cluster string) {
	w.Works = slices.DeleteFunc(w.Works, func(x *workv1alpha1.Work) bool { return x.Namespace == workv1alpha2.ExecutionNamespace(cluster) })
}

func (w *world) override(cluster string, p ...policyv1alpha1.PlaintextOverrider) {
	w.Overrides.Namespaced = append(w.Overrides.Namespaced, policyv1alpha1.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "op"},
		Spec: policyv1alpha1.OverrideSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: w.Template.GetAPIVersion(), Kind: w.Template.GetKind()}}, OverrideRules: []policyv1alpha1.RuleWithCluster{{
			TargetCluster: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{cluster}},
			Overriders:    policyv1alpha1.Overriders{Plaintext: p},
		}}},
	})
}

func (w *world) decided() {
	w.Helper()
	w.Binding.GetAnnotations()[workv1alpha2.AnnotationDecision] = w.decision()
}

// decision is the record of a decision.
func (w *world) decision() string {
	w.Helper()
	text, err := workv1alpha2.Decision{Scheduled: metav1.NowMicro()}.Encode()
	if err != nil {
		w.Fatal(err)
	}
	return text
}

// holds is the object in a Work.
func holds(t testing.TB, x *workv1alpha1.Work) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(x.Spec.Workload.Manifests[0].Raw); err != nil {
		t.Fatal(err)
	}
	return u
}

// clusters are targets with one replica each.
func clusters(names ...string) []workv1alpha2.TargetCluster {
	var out []workv1alpha2.TargetCluster
	for _, name := range names {
		out = append(out, on(name, 1))
	}
	return out
}
