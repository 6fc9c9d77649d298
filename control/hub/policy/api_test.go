package policy_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

type hub struct {
	*apiserver.Cluster
	refused *atomic.Int64 // patches that conflicted
}

// newHub is a hub that holds nothing; the code under test runs.
func newHub(t *testing.T) hub {
	t.Helper()
	h := hub{apiserver.Connect(t, server.Config(t), clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha2.AddToScheme), new(atomic.Int64)}
	apiserver.Manager{Scheme: h.Scheme(), NewClient: h.counting, Setup: []func(ctrl.Manager) error{
		func(m ctrl.Manager) error { return policy.Setup(m, &policy.Skips{}) }}}.Run(t, h.Config)
	h.Empty(&corev1.ConfigMap{}, &workv1alpha2.ResourceBinding{}, &workv1alpha2.ClusterResourceBinding{},
		&policyv1alpha1.PropagationPolicy{}, &policyv1alpha1.ClusterPropagationPolicy{})
	await.True(t, "the policies of the test before are gone", func() bool {
		var list policyv1alpha1.PropagationPolicyList
		if err := h.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 0
	})
	return h
}

// counting is a client that counts what is refused.
func (h hub) counting(config *rest.Config, o client.Options) (client.Client, error) {
	c, err := client.NewWithWatch(config, o)
	if err != nil {
		return nil, err
	}
	count := func(err error) error {
		if apierrors.IsConflict(err) {
			h.refused.Add(1)
		}
		return err
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return count(c.Patch(ctx, o, p, opts...))
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			opts ...client.SubResourcePatchOption) error {
			return count(c.SubResource(sub).Patch(ctx, o, p, opts...))
		},
	}), nil
}

func (h hub) read(o client.Object) {
	h.Helper()
	if err := h.Get(h.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		h.Fatal(err)
	}
}

func (h hub) gone(o client.Object) bool {
	h.Helper()
	err := h.Get(h.Context(), client.ObjectKeyFromObject(o), o)
	if client.IgnoreNotFound(err) != nil {
		h.Fatal(err)
	}
	return err != nil
}

func selecting(apiVersion, kind string) policyv1alpha1.PropagationSpec {
	return policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: apiVersion, Kind: kind}}}
}

func policyPolicy(spec policyv1alpha1.PropagationSpec) *policyv1alpha1.PropagationPolicy {
	return &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}, Spec: spec}
}

// accepted is what the condition Accepted says.
func (h hub) accepted(o client.Object, status *policyv1alpha1.PolicyStatus) func() string {
	return func() string {
		h.read(o)
		c := meta.FindStatusCondition(status.Conditions, "Accepted")
		if c == nil || c.ObservedGeneration != o.GetGeneration() {
			return ""
		}
		return strings.TrimSpace(string(c.Status) + " " + c.Message)
	}
}

// No one may see the id without the finalizer, or the finalizer without the id.
func TestIDAndFinalizerComeTogether(t *testing.T) {
	h := newHub(t)
	watching, err := client.NewWithWatch(h.Config, client.Options{Scheme: h.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := watching.Watch(t.Context(), &policyv1alpha1.PropagationPolicyList{}, client.InNamespace("default"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	p := policyPolicy(selecting("v1", "ConfigMap"))
	h.Make(p)
	await.Equal(t, "True", h.accepted(p, &p.Status))
	id := p.Labels[policyv1alpha1.LabelPropagationPolicyID]
	if len(id) != 36 || !slices.Equal(p.Finalizers, []string{policyv1alpha1.FinalizerPropagationPolicy}) {
		t.Errorf("id %q, finalizers %q", id, p.Finalizers)
	}
	h.Nudge(p)
	h.read(p)
	nudged := p.ResourceVersion
	await.Never(t, 300*time.Millisecond, "the policy is written again", func() bool { h.read(p); return p.ResourceVersion != nudged })
	var versions []string
	for last := ""; last != p.ResourceVersion; {
		o, ok := (<-w.ResultChan()).Object.(*policyv1alpha1.PropagationPolicy)
		if !ok || o.UID != p.UID {
			continue
		}
		if last = o.ResourceVersion; (len(o.Labels) > 0) != (len(o.Finalizers) > 0) {
			t.Errorf("labels %v and finalizers %v were written apart", o.Labels, o.Finalizers)
		}
		versions = append(versions, last)
	}
	if len(versions) != 4 { // creation, marks, status, the nudge
		t.Errorf("%d versions, want 4", len(versions))
	}
}

// Each policy takes two writes, and neither is made over a version that the other has replaced.
func TestNothingIsRefused(t *testing.T) {
	h := newHub(t)
	var all []*policyv1alpha1.PropagationPolicy
	for i := range 30 {
		p := policyPolicy(selecting("v1", "ConfigMap"))
		p.Name = fmt.Sprintf("p%d", i)
		h.Make(p)
		all = append(all, p)
	}
	for _, p := range all {
		await.Equal(t, "True", h.accepted(p, &p.Status))
	}
	if n := h.refused.Load(); n > 0 {
		t.Errorf("%d writes were refused", n)
	}
}

func TestIDIsKept(t *testing.T) {
	h := newHub(t)
	p := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{
		policyv1alpha1.LabelClusterPropagationPolicyID: "from-the-backup", "mine": "1"}}, Spec: selecting("v1", "ConfigMap")}
	h.Make(p)
	await.Equal(t, "True", h.accepted(p, &p.Status))
	if p.Labels[policyv1alpha1.LabelClusterPropagationPolicyID] != "from-the-backup" || p.Labels["mine"] != "1" || len(p.Finalizers) != 1 {
		t.Errorf("labels %v, finalizers %v", p.Labels, p.Finalizers)
	}
}

func TestAcceptedSaysWhatIsWrong(t *testing.T) {
	h := newHub(t)
	p := policyPolicy(selecting("v1", "ConfigMap"))
	p.Spec.ResourceSelectors[0].Namespace = "other"
	p.Annotations = map[string]string{policyv1alpha1.AnnotationNear: `{"region": "eu"}`}
	o := &policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "o"}, Spec: policyv1alpha1.OverrideSpec{
		OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: policyv1alpha1.Overriders{
			LabelsOverrider: []policyv1alpha1.LabelAnnotationOverrider{{Operator: policyv1alpha1.OverriderOpAdd, Value: map[string]string{"a b": "c"}}}}}}}}
	co := &policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: "o"}, Spec: *o.Spec.DeepCopy()}
	h.Make(p, o, co)
	t.Cleanup(func() {
		// the test's own context has ended
		if err := h.Delete(context.Background(), co); err != nil {
			t.Error(err)
		}
	})
	for field, says := range map[string]func() string{
		"spec.resourceSelectors[0].namespace":                            h.accepted(p, &p.Status),
		"metadata.annotations[pelago.io/near]":                           h.accepted(p, &p.Status),
		"spec.overrideRules[0].overriders.labelsOverrider[0].value":      h.accepted(o, &o.Status),
		"spec.overrideRules[0].overriders.labelsOverrider[0].value: Inv": h.accepted(co, &co.Status),
	} {
		await.True(t, "Accepted names "+field, func() bool { s := says(); return strings.HasPrefix(s, "False") && strings.Contains(s, field) })
	}
	if len(o.Labels)+len(o.Finalizers) > 0 {
		t.Errorf("an override policy got labels %v, finalizers %v", o.Labels, o.Finalizers)
	}
	p.Spec.ResourceSelectors[0].Namespace = ""
	h.read(p)
	p.Spec.ResourceSelectors[0].Namespace, p.Annotations = "", nil
	if err := h.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "True", h.accepted(p, &p.Status))
}

// The policy stays while a template, or a binding, carries its id.
func TestDeletionWaitsForClaims(t *testing.T) {
	h := newHub(t)
	p := policyPolicy(selecting("v1", "ConfigMap"))
	h.Make(p)
	await.Equal(t, "True", h.accepted(p, &p.Status))
	claim := map[string]string{policyv1alpha1.LabelPropagationPolicyID: p.Labels[policyv1alpha1.LabelPropagationPolicyID]}
	template := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x", Labels: claim}}
	binding := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x-configmap", Labels: claim},
		Spec: workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x"}}}
	h.Make(template, binding)
	h.Remove(p)
	for _, o := range []client.Object{template, binding} {
		await.Never(t, 1500*time.Millisecond, fmt.Sprintf("the policy goes while %T carries its id", o), func() bool { return h.gone(p) })
		o.SetLabels(nil)
		if err := h.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	await.True(t, "the policy is gone", func() bool { return h.gone(p) })
}

// What is being deleted holds no policy: a binding waits for the Works of unreachable clusters, a
// template for its binding.
func TestDeletionWaitsForNothingThatEnds(t *testing.T) {
	h := newHub(t)
	p := policyPolicy(selecting("v1", "ConfigMap"))
	h.Make(p)
	await.Equal(t, "True", h.accepted(p, &p.Status))
	meta := metav1.ObjectMeta{Namespace: "default", Name: "ends", Finalizers: []string{"example.com/hold"},
		Labels: map[string]string{policyv1alpha1.LabelPropagationPolicyID: p.Labels[policyv1alpha1.LabelPropagationPolicyID]}}
	template := &corev1.ConfigMap{ObjectMeta: meta}
	binding := &workv1alpha2.ResourceBinding{ObjectMeta: meta,
		Spec: workv1alpha2.ResourceBindingSpec{Resource: workv1alpha2.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Name: "ends"}}}
	h.Make(template, binding)
	h.Remove(template, binding, p)
	await.True(t, "the policy is gone", func() bool { return h.gone(p) })
	for _, o := range []client.Object{template, binding} {
		h.read(o)
		o.SetFinalizers(nil)
		if err := h.Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

// Karmada #6913, #7021: a policy for a kind that nobody serves could not be deleted.
func TestDeletionWithKindsThatAreNotServed(t *testing.T) {
	h := newHub(t)
	spec := selecting("example.com/v1", "Nothing")
	spec.ResourceSelectors = append(spec.ResourceSelectors,
		policyv1alpha1.ResourceSelector{APIVersion: "apps/v7", Kind: "Deployment"},
		// cannot be listed
		policyv1alpha1.ResourceSelector{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		policyv1alpha1.ResourceSelector{APIVersion: "a/b/c", Kind: "Strange"})
	p := policyPolicy(spec)
	wide := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: spec}
	h.Make(p, wide)
	await.Equal(t, "True", h.accepted(p, &p.Status))
	await.Equal(t, "True", h.accepted(wide, &wide.Status))
	h.Remove(p, wide)
	await.True(t, "the policies are gone", func() bool { return h.gone(p) && h.gone(wide) })
}

// Other people's finalizers are theirs.
func TestForeignFinalizerStays(t *testing.T) {
	h := newHub(t)
	p := policyPolicy(selecting("v1", "ConfigMap"))
	controllerutil.AddFinalizer(p, "example.com/hold")
	h.Make(p)
	await.Equal(t, "True", h.accepted(p, &p.Status))
	h.Remove(p)
	await.Equal(t, []string{"example.com/hold"}, func() []string { h.read(p); return p.Finalizers })
	p.Finalizers = nil
	if err := h.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the policy is gone", func() bool { return h.gone(p) })
}
