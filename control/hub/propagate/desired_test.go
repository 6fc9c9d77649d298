package propagate

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kinds"
)

// edited is the template after a change.
func edited(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
	t := template()
	t.SetResourceVersion("8")
	change(t)
	return t
}

// Rule 2.1.7: status and what the API server keeps are no change; neither are our own marks, to the
// hash.
func TestTemplateHash(t *testing.T) {
	before, err := workv1alpha2.TemplateHash(template())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change          func(*unstructured.Unstructured)
		differs, notice bool
	}{
		"resourceVersion":    {func(u *unstructured.Unstructured) { u.SetGeneration(3) }, false, false},
		"managedFields":      {func(u *unstructured.Unstructured) { u.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "m"}}) }, false, false},
		"status":             {func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{"replicas": int64(1)} }, false, false},
		"a claim":            {func(u *unstructured.Unstructured) { mark(u, made("a")) }, false, true},
		"a cluster-wide one": {func(u *unstructured.Unstructured) { mark(u, wide("a")) }, false, true},
		"a deletion":         {func(u *unstructured.Unstructured) { u.SetDeletionTimestamp(ptr.To(metav1.Now())) }, false, true},
		"the spec":           {func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"replicas": int64(3)} }, true, true},
		"a label":            {func(u *unstructured.Unstructured) { setLabel(u, "a", "b") }, true, true},
		"an annotation":      {func(u *unstructured.Unstructured) { setAnnotation(u, "a", "b") }, true, true},
		"data beside a spec": {func(u *unstructured.Unstructured) { u.Object["data"] = map[string]any{"a": "b"} }, true, true},
	} {
		u := edited(c.change)
		after, err := workv1alpha2.TemplateHash(u)
		if err != nil || (after != before) != c.differs || changed(template(), u) != c.notice {
			t.Errorf("%s: hash differs %v, noticed %v, %v", name, after != before, changed(template(), u), err)
		}
	}
}

// ignored kinds and objects (Karmada, 1.5).
func TestIgnored(t *testing.T) {
	object := func(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		u.SetNamespace(namespace)
		u.SetName(name)
		return u
	}
	claimed := object("v1", "Service", "shop", "derived")
	setLabel(claimed, workv1alpha2.LabelClaimedBy, "MultiClusterService")
	for _, c := range []struct {
		of   *unstructured.Unstructured
		want bool
	}{
		{object("apps/v1", "Deployment", "shop", "web"), false}, {object("v1", "Namespace", "", "shop"), false},
		{object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "reader"), false}, {object("example.com/v1", "Event", "shop", "e"), false},
		{object("apps/v1", "Deployment", "kube-system", "web"), true}, {object("v1", "ConfigMap", "karmada-es-member1", "a"), true},
		{object("v1", "Namespace", "", "pelago-system"), true}, {claimed, true},
		{object("v1", "Event", "shop", "e"), true}, {object("events.k8s.io/v1", "Event", "shop", "e"), true},
		{object("coordination.k8s.io/v1", "Lease", "shop", "l"), true}, {object("discovery.k8s.io/v1", "EndpointSlice", "shop", "s"), true},
		{object("work.karmada.io/v1alpha1", "Work", "shop", "w"), true}, {object("policy.karmada.io/v1alpha1", "OverridePolicy", "shop", "o"), true},
		{object("pelago.io/v1alpha1", "Peer", "", "p"), true}, {object("submariner.io/v1", "Endpoint", "shop", "e"), true},
	} {
		if got := ignored(c.of, c.of.GroupVersionKind().GroupKind()); got != c.want {
			t.Errorf("%s %s/%s: ignored %v", c.of.GroupVersionKind(), c.of.GetNamespace(), c.of.GetName(), got)
		}
	}
}

func bound(t *testing.T, w inputs) binding.Binding {
	t.Helper()
	if !w.have.Exists() {
		w.name, w.id = "web-deployment", "1"
	}
	b, err := desired(w, kinds.New())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What others write into a binding stays: eviction tasks, the request to rebalance, the hold of the
// first decision, labels. The version of the template follows its content only.
func TestDesiredKeepsWhatOthersWrite(t *testing.T) {
	p := made("a", func(p *propagationPolicy) { p.Spec.Suspension = &policyv1alpha1.Suspension{Dispatching: ptr.To(true)} })
	have := bound(t, inputs{template: template(), policy: p})
	have.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "m1", Reason: "R", Producer: "p"}}
	have.Spec.RescheduleTriggeredAt = ptr.To(metav1.Now())
	have.Spec.Suspension.Scheduling = ptr.To(true)
	have.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "m2", Replicas: 2}}
	setLabel(have, "team", "a")
	have.SetAnnotations(with(have.GetAnnotations(), workv1alpha2.AnnotationDecision, "{}"))
	touched := edited(func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{} })
	if got := bound(t, inputs{template: touched, policy: p, have: have}); !same(have, got) {
		t.Errorf("something changed: %s", cmp.Diff(have.Object, got.Object))
	}
	p.Spec.Suspension = nil
	got := bound(t, inputs{template: edited(func(u *unstructured.Unstructured) { setLabel(u, "x", "y") }), policy: p, have: have})
	if s := got.Spec.Suspension; s == nil || s.Dispatching != nil || !*s.Scheduling {
		t.Errorf("suspension %+v", s)
	}
	if got.Spec.Resource.ResourceVersion != "8" || have.Spec.Resource.ResourceVersion != "7" {
		t.Errorf("version %s after %s", got.Spec.Resource.ResourceVersion, have.Spec.Resource.ResourceVersion)
	}
}

// A template without namespace has a ClusterResourceBinding with the marks of that kind.
func TestDesiredClusterWide(t *testing.T) {
	u := template()
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"})
	u.SetNamespace("")
	b := bound(t, inputs{template: u, policy: wide("a")})
	o, ok := b.Object.(*workv1alpha2.ClusterResourceBinding)
	if !ok || o.Labels[workv1alpha2.LabelClusterBindingID] != "1" || o.Finalizers[0] != workv1alpha2.FinalizerClusterBinding ||
		o.Labels[policyv1alpha1.LabelClusterPropagationPolicyID] != "id-a" || o.Annotations[policyv1alpha1.AnnotationClusterPropagationPolicyName] != "a" {
		t.Errorf("%+v", b.Object)
	}
}

// Which bindings there are: none of what no policy selects and nothing needs; a formerly claimed
// one stays (rule 2.1.5).
func TestDesiredOrNot(t *testing.T) {
	lazyOne := made("l", func(p *propagationPolicy) { p.Spec.ActivationPreference = policyv1alpha1.LazyActivation })
	parent := bound(t, inputs{template: edited(func(u *unstructured.Unstructured) { u.SetName("parent") }), policy: made("a")})
	claimed := bound(t, inputs{template: template(), policy: made("a")})
	attached := bound(t, inputs{template: template(), parents: []binding.Binding{parent}})
	for name, c := range map[string]struct {
		w                     inputs
		exists, placed, named bool
	}{
		"nothing":                                    {inputs{}, false, false, false},
		"a policy":                                   {inputs{policy: made("a")}, true, true, true},
		"needed":                                     {inputs{parents: []binding.Binding{parent}}, true, false, false},
		"needed, with a policy":                      {inputs{parents: []binding.Binding{parent}, policy: made("a")}, true, true, true},
		"no longer claimed":                          {inputs{have: claimed}, true, true, false},
		"no longer needed":                           {inputs{have: attached}, false, false, false},
		"needed, claimed from now on":                {inputs{have: attached, policy: made("a")}, true, true, true},
		"a policy that waits":                        {inputs{policy: lazyOne, waiting: true}, false, false, false},
		"needed, a policy that waits":                {inputs{policy: lazyOne, waiting: true, parents: []binding.Binding{parent}}, true, false, false},
		"claimed, a policy that waits":               {inputs{policy: lazyOne, waiting: true, have: claimed}, true, true, true},
		"a policy that cannot be used, another gone": {inputs{policy: made("p"), kept: true, have: claimed, staleClaim: true}, true, true, false},
		"a policy that waits, another gone":          {inputs{policy: lazyOne, waiting: true, have: claimed, staleClaim: true}, true, true, false},
	} {
		c.w.template = template()
		b := bound(t, c.w)
		if b.Exists() != c.exists || b.Exists() && ((b.Spec.Placement != nil) != c.placed || (claimOf(b).id != "") != c.named) {
			t.Errorf("%s: exists %v, %+v", name, b.Exists(), b.Object)
		}
	}
}

// Claims are one patch each way, for the version that was read (rules 2.1.3, 2.1.5, 2.9).
func TestClaimPatch(t *testing.T) {
	claimed := template()
	mark(claimed, wide("old"))
	old := template()
	old.SetCreationTimestamp(metav1.NewTime(time.Unix(10, 0)))
	lazyOne := made("l", func(p *propagationPolicy) {
		p.Spec.ActivationPreference = policyv1alpha1.LazyActivation
		p.SetCreationTimestamp(metav1.NewTime(time.Unix(11, 0)))
	})
	noted := template()
	setAnnotation(noted, workv1alpha2.AnnotationTemplate, "x")
	hash, err := workv1alpha2.TemplateHash(old)
	if err != nil {
		t.Fatal(err)
	}
	type m = map[string]any
	for name, c := range map[string]struct {
		of                  *unstructured.Unstructured
		by                  *propagationPolicy
		labels, annotations m // nil: no patch
	}{
		"a claim": {template(), made("a"), m{policyv1alpha1.LabelPropagationPolicyID: "id-a"},
			m{policyv1alpha1.AnnotationPropagationPolicyName: "a", policyv1alpha1.AnnotationPropagationPolicyNamespace: "shop"}},
		"the same again": {claimed, wide("old"), nil, nil},
		"no policy":      {template(), nil, nil, nil},
		"taken over": {claimed, made("a"), m{policyv1alpha1.LabelPropagationPolicyID: "id-a", policyv1alpha1.LabelClusterPropagationPolicyID: nil},
			m{policyv1alpha1.AnnotationPropagationPolicyName: "a", policyv1alpha1.AnnotationPropagationPolicyNamespace: "shop",
				policyv1alpha1.AnnotationClusterPropagationPolicyName: nil}},
		"released": {claimed, nil, m{policyv1alpha1.LabelClusterPropagationPolicyID: nil}, m{policyv1alpha1.AnnotationClusterPropagationPolicyName: nil}},
		"by a Lazy policy that came later": {old, lazyOne, m{policyv1alpha1.LabelPropagationPolicyID: "id-l"},
			m{policyv1alpha1.AnnotationPropagationPolicyName: "l", policyv1alpha1.AnnotationPropagationPolicyNamespace: "shop", workv1alpha2.AnnotationTemplate: hash}},
		"released from a Lazy policy": {noted, nil, m{}, m{workv1alpha2.AnnotationTemplate: nil}},
	} {
		raw, err := claimPatch(c.of, c.by)
		if err != nil {
			t.Fatal(err)
		}
		if c.labels == nil {
			if raw != nil {
				t.Errorf("%s: patch %s", name, raw)
			}
			continue
		}
		var got m
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		want := m{"metadata": m{"uid": "u1", "resourceVersion": "7", "labels": c.labels, "annotations": c.annotations}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s -want +got:\n%s", name, diff)
		}
	}
}

// What a template refers to, by name or by labels, in its namespace.
func TestDependsOn(t *testing.T) {
	for text, want := range map[string]bool{
		`[{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","name":"web"}]`:                                       true,
		`[{"apiVersion":"apps/v2","kind":"Deployment","namespace":"shop","name":"web"}]`:                                       true,
		`[{"apiVersion":"apps/v1","kind":"Deployment","namespace":"other","name":"web"}]`:                                      false,
		`[{"apiVersion":"v1","kind":"Deployment","namespace":"shop","name":"web"}]`:                                            false,
		`[{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","name":"db"}]`:                                        false,
		`[{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","labelSelector":{"matchLabels":{"app":"web"}}}]`:      true,
		`[{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","labelSelector":{"matchLabels":{"app":"db"}}}]`:       false,
		`[{"apiVersion":"apps/v1","kind":"Deployment","namespace":"shop","labelSelector":{"matchExpressions":[{"key":"a"}]}}]`: false,
		`no JSON`: false,
		``:        false,
	} {
		b := binding.New(client.ObjectKey{Namespace: "shop"})
		setAnnotation(b, workv1alpha2.AnnotationDependencies, text)
		if got := dependsOn(b, template()); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// A hub that was restored has templates with other UIDs: the binding changes its owner, and nothing
// else.
func TestDesiredReowns(t *testing.T) {
	have := bound(t, inputs{template: template(), policy: made("a")})
	have.SetOwnerReferences(append(have.GetOwnerReferences(), metav1.OwnerReference{Kind: "Team", Name: "shop", UID: "team"}))
	got := bound(t, inputs{template: edited(func(u *unstructured.Unstructured) { u.SetUID("u2") }), policy: made("a"), have: have})
	want := have.Copy()
	want.Spec.Resource.UID = "u2"
	owners := want.GetOwnerReferences()
	owners[0].UID = "u2"
	want.SetOwnerReferences(owners)
	if diff := cmp.Diff(want.Object, got.Object); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A kind with components has no replicas: what the binding had of the other form goes. Rules of
// users for replicas precede built-in ones for components.
func TestDesiredComponents(t *testing.T) {
	ray := edited(func(u *unstructured.Unstructured) {
		u.SetAPIVersion("ray.io/v1")
		u.SetKind("RayCluster")
		u.Object["spec"] = map[string]any{"headGroupSpec": map[string]any{"template": map[string]any{}}, "workerGroupSpecs": []any{map[string]any{"groupName": "w", "replicas": int64(3)}}}
	})
	w := inputs{template: ray, policy: made("a"), name: "b", id: "1"}
	counted := kinds.New(func(schema.GroupVersionKind) kinds.Kind {
		return kinds.Kind{Replicas: func(*unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) {
			return 4, &workv1alpha2.ReplicaRequirements{PriorityClassName: "high"}, nil
		}}
	})
	before, err := desired(w, counted)
	if err != nil || before.Spec.Replicas != 4 || before.Spec.ReplicaRequirements == nil || before.Spec.Components != nil {
		t.Fatalf("by a user's rule: %+v %v", before.Spec, err)
	}
	w.have = before
	after, err := desired(w, kinds.New())
	want := []workv1alpha2.Component{{Name: "ray-head", Replicas: 1}, {Name: "w", Replicas: 3}}
	if diff := cmp.Diff(want, after.Spec.Components); diff != "" || err != nil || after.Spec.Replicas != 0 || after.Spec.ReplicaRequirements != nil {
		t.Errorf("built in: %+v %v\n%s", after.Spec, err, diff)
	}
	w.have = after
	if again, err := desired(w, counted); err != nil || again.Spec.Components != nil || again.Spec.Replicas != 4 {
		t.Errorf("and back: %+v %v", again.Spec, err)
	}
}

// A workload without replicas that requests nothing is still one: the scheduler divides it, rather
// than send it everywhere.
func TestDesiredWithoutReplicas(t *testing.T) {
	idle := edited(func(u *unstructured.Unstructured) {
		u.SetAPIVersion("apps/v1")
		u.SetKind("Deployment")
		u.Object["spec"] = map[string]any{"replicas": int64(0), "template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c"}}}}}
	})
	w := inputs{template: idle, policy: made("a"), name: "b", id: "1"}
	b, err := desired(w, kinds.New())
	if err != nil || b.Spec.Replicas != 0 || b.Spec.ReplicaRequirements == nil {
		t.Errorf("a Deployment with 0 replicas: %+v %v", b.Spec, err)
	}
	w.template = edited(func(u *unstructured.Unstructured) { u.SetAPIVersion("v1"); u.SetKind("ConfigMap") })
	if b, err := desired(w, kinds.New()); err != nil || b.Spec.ReplicaRequirements != nil {
		t.Errorf("a template of a kind without replicas: %+v %v", b.Spec, err)
	}
}

// A kind that lists no components has replicas.
func TestDesiredNoComponents(t *testing.T) {
	in := kinds.New(func(schema.GroupVersionKind) kinds.Kind {
		return kinds.Kind{
			Components: func(*unstructured.Unstructured) ([]workv1alpha2.Component, error) { return nil, nil },
			Replicas:   func(*unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) { return 4, nil, nil },
		}
	})
	b, err := desired(inputs{template: template(), policy: made("a"), name: "b", id: "1"}, in)
	if err != nil || b.Spec.Replicas != 4 || b.Spec.Components != nil {
		t.Errorf("%+v %v", b.Spec, err)
	}
}

// What the template refers to cannot be read: that has an Event of its own.
func TestDesiredDependenciesFail(t *testing.T) {
	bad := edited(func(u *unstructured.Unstructured) {
		u.Object["spec"] = map[string]any{"replicas": int64(1), "template": map[string]any{"spec": "text"}}
	})
	in := kinds.New(func(schema.GroupVersionKind) kinds.Kind {
		return kinds.Kind{Replicas: func(*unstructured.Unstructured) (int32, *workv1alpha2.ReplicaRequirements, error) { return 1, nil, nil }}
	})
	_, err := desired(inputs{template: bad, policy: made("a", func(p *propagationPolicy) { p.Spec.PropagateDeps = true }), name: "b", id: "1"}, in)
	if !errors.Is(err, errDependencies) {
		t.Errorf("error %v", err)
	}
}

// A claim is that of a policy by id: one of the same name that was made again is another one.
func TestClaimOf(t *testing.T) {
	u := template()
	if got := claimOf(u); got != (claim{}) || got.of(nil) {
		t.Errorf("no claim: %+v", got)
	}
	mark(u, made("a"))
	again := made("a", func(p *propagationPolicy) { setLabel(p, policyv1alpha1.LabelPropagationPolicyID, "other") })
	sameID := wide("a", func(p *propagationPolicy) { setLabel(p, policyv1alpha1.LabelClusterPropagationPolicyID, "id-a") })
	if got := claimOf(u); !got.of(made("a")) || got.of(again) || got.of(sameID) || got.namespace != "shop" || got.name != "a" {
		t.Errorf("claim %+v", got)
	}
	mark(u, wide("b"))
	if got := claimOf(u); got != (claim{id: "id-b", name: "b", clusterWide: true}) {
		t.Errorf("claim %+v", got)
	}
	mark(u, nil)
	if got := claimOf(u); got != (claim{}) || len(u.GetLabels()) != 1 || len(u.GetAnnotations()) != 0 {
		t.Errorf("released: %+v, %v", got, u.GetAnnotations())
	}
}

// What those that need an object disagree about (Karmada's words, which clients compare), and what
// it gets.
func TestAttach(t *testing.T) {
	needs := func(c policyv1alpha1.ConflictResolution, preserve *bool) binding.Binding {
		b := bound(t, inputs{template: template(), policy: made("a")})
		b.Spec.ConflictResolution, b.Spec.PreserveResourcesOnDeletion = c, preserve
		return b
	}
	const conflicts = "ConflictResolution conflicted (Overwrite vs Abort)"
	const preserves = "PreserveResourcesOnDeletion conflicted (true vs false)"
	abort, overwrite := policyv1alpha1.ConflictAbort, policyv1alpha1.ConflictOverwrite
	for name, c := range map[string]struct {
		parents []binding.Binding
		want    policyv1alpha1.ConflictResolution
		keeps   *bool
		says    []string
	}{
		"nothing is set":    {[]binding.Binding{needs(abort, nil), needs("", nil)}, abort, nil, nil},
		"both say no":       {[]binding.Binding{needs(abort, ptr.To(false)), needs(overwrite, ptr.To(false))}, overwrite, ptr.To(false), []string{conflicts}},
		"one of them keeps": {[]binding.Binding{needs(abort, ptr.To(true)), needs(abort, ptr.To(false))}, abort, ptr.To(true), []string{preserves}},
		"both fields":       {[]binding.Binding{needs(overwrite, nil), needs(abort, ptr.To(true))}, overwrite, ptr.To(true), []string{conflicts, preserves}},
	} {
		var s workv1alpha2.ResourceBindingSpec
		attach(&s, c.parents)
		if s.ConflictResolution != c.want || !ptr.Equal(s.PreserveResourcesOnDeletion, c.keeps) {
			t.Errorf("%s: %s, preserve %v", name, s.ConflictResolution, s.PreserveResourcesOnDeletion)
		}
		says := conflict(c.parents)
		for _, part := range []string{conflicts, preserves} {
			if strings.Contains(says, part) != slices.Contains(c.says, part) {
				t.Errorf("%s: it says %q", name, says)
			}
		}
	}
}

// A conflict is an event when it is another one than before, also if the binding stays the same.
func TestConflictEvents(t *testing.T) {
	events := record.NewFakeRecorder(20)
	r := &reconciler{events: events, conflicts: map[Key]string{}}
	parent := func(c policyv1alpha1.ConflictResolution, preserve bool) binding.Binding {
		b := bound(t, inputs{template: template(), policy: made("a")})
		b.Spec.ConflictResolution, b.Spec.PreserveResourcesOnDeletion = c, &preserve
		return b
	}
	abort, overwrite := policyv1alpha1.ConflictAbort, policyv1alpha1.ConflictOverwrite
	both := []binding.Binding{parent(overwrite, true), parent(abort, false)}
	one := []binding.Binding{parent(overwrite, true), parent(overwrite, false)}
	for i, step := range []struct {
		parents []binding.Binding
		events  int // on template and binding each
	}{{both, 2}, {both, 0}, {one, 2}, {one[:1], 0}, {one, 2}} {
		b := bound(t, inputs{template: template(), parents: step.parents})
		r.recordConflict(inputs{key: Key{}, template: template(), parents: step.parents}, b)
		if got := len(events.Events); got != step.events {
			t.Errorf("step %d: %d events, want %d", i, got, step.events)
		}
		for len(events.Events) > 0 {
			<-events.Events
		}
	}
	if len(r.conflicts) != 1 {
		t.Errorf("it remembers %v", r.conflicts)
	}
}
