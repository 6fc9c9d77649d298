package propagate

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// made is a policy that counts; change makes it another one.
func made(name string, change ...func(*propagationPolicy)) *propagationPolicy {
	o := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
		Labels:     map[string]string{policyv1alpha1.LabelPropagationPolicyID: "id-" + name},
		Finalizers: []string{policyv1alpha1.FinalizerPropagationPolicy}},
		Spec: policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}}}}
	p := policyOf(o)
	for _, c := range change {
		c(p)
	}
	return p
}

func wide(name string, change ...func(*propagationPolicy)) *propagationPolicy {
	o := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels:     map[string]string{policyv1alpha1.LabelClusterPropagationPolicyID: "id-" + name},
		Finalizers: []string{policyv1alpha1.FinalizerClusterPropagationPolicy}},
		Spec: policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}}}}
	p := policyOf(o)
	for _, c := range change {
		c(p)
	}
	return p
}

func priority(n int32) func(*propagationPolicy) {
	return func(p *propagationPolicy) { p.Spec.Priority = n }
}
func always(p *propagationPolicy)    { p.Spec.Preemption = policyv1alpha1.PreemptAlways }
func byName(p *propagationPolicy)    { p.Spec.ResourceSelectors[0].Name = "web" }
func otherName(p *propagationPolicy) { p.Spec.ResourceSelectors[0].Name = "other" }
func byLabel(p *propagationPolicy) {
	p.Spec.ResourceSelectors[0].LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}
func older(p *propagationPolicy) { p.Spec.ResourceSelectors[0].APIVersion = "apps/v1beta2" }
func wrong(p *propagationPolicy) {
	p.Spec.ResourceSelectors = append(p.Spec.ResourceSelectors, policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: "Pod", Namespace: "other"})
}
func leaving(p *propagationPolicy)   { now := metav1.Now(); p.SetDeletionTimestamp(&now) }
func noID(p *propagationPolicy)      { p.SetLabels(nil) }
func noFinal(p *propagationPolicy)   { p.SetFinalizers(nil) }
func elsewhere(p *propagationPolicy) { p.SetNamespace("other") }

func template() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "7", "labels": map[string]any{"app": "web"}},
		"spec":     map[string]any{"replicas": int64(2)}}}
}

// Rules 2.1.1 (scope), 2.1.2 (order), 2.1.3 (stickiness, preemption), 2.1.5 (selector change,
// deletion).
func TestMatch(t *testing.T) {
	for name, c := range map[string]struct {
		held     *propagationPolicy
		all      []*propagationPolicy
		want     string
		preempts string
		inert    bool
	}{
		"nothing selects it":                        {all: []*propagationPolicy{made("a", otherName)}},
		"a namespaced one first, whatever priority": {all: []*propagationPolicy{wide("c", priority(9)), made("p")}, want: "p"},
		"a cluster-wide one if there is no other":   {all: []*propagationPolicy{wide("c"), made("p", otherName)}, want: "c"},
		"the higher priority":                       {all: []*propagationPolicy{made("a", byName), made("b", priority(1))}, want: "b"},
		"then the name in the selector":             {all: []*propagationPolicy{made("a", byLabel), made("b", byName), made("c")}, want: "b"},
		"then the labels":                           {all: []*propagationPolicy{made("a"), made("b", byLabel)}, want: "b"},
		"then the name of the policy":               {all: []*propagationPolicy{made("b"), made("a"), made("c")}, want: "a"},
		"the best selector of a policy counts": {all: []*propagationPolicy{made("a", byLabel), made("b", func(p *propagationPolicy) {
			p.Spec.ResourceSelectors = append(p.Spec.ResourceSelectors, policyv1alpha1.ResourceSelector{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"})
		})}, want: "b"},
		"another version of the kind":                  {all: []*propagationPolicy{made("a", older)}, want: "a"},
		"another namespace":                            {all: []*propagationPolicy{made("a", elsewhere)}},
		"one without id is waited for":                 {all: []*propagationPolicy{made("a", noID), made("b")}, inert: true},
		"one without finalizer is waited for":          {all: []*propagationPolicy{made("a", noFinal), made("b")}, inert: true},
		"one without id that is not the best":          {all: []*propagationPolicy{made("a"), made("b", noID)}, want: "a"},
		"one without id is invalid":                    {all: []*propagationPolicy{made("a", noID, wrong), made("b")}, want: "b"},
		"one without id takes nothing":                 {held: made("z"), all: []*propagationPolicy{made("a", noID, always, priority(9))}, want: "z"},
		"an invalid one":                               {all: []*propagationPolicy{made("a", wrong), made("b")}, want: "b"},
		"one that is being deleted":                    {all: []*propagationPolicy{made("a", leaving), made("b")}, want: "b"},
		"a claim stays":                                {held: made("z"), all: []*propagationPolicy{made("a", priority(9), byName)}, want: "z"},
		"Always with a higher priority takes it":       {held: made("z", priority(1)), all: []*propagationPolicy{made("a", priority(2), always)}, want: "a", preempts: "z"},
		"Always with the same priority does not":       {held: made("z", priority(2)), all: []*propagationPolicy{made("a", priority(2), always, byName)}, want: "z"},
		"the best that preempts":                       {held: made("z"), all: []*propagationPolicy{made("a", priority(2), always), made("b", priority(9)), made("c", priority(3), always)}, want: "c", preempts: "z"},
		"a namespaced one from any cluster-wide one":   {held: wide("z", priority(9)), all: []*propagationPolicy{made("a", priority(-1), always)}, want: "a", preempts: "z"},
		"a cluster-wide one from a lower one":          {held: wide("z", priority(1)), all: []*propagationPolicy{wide("a", priority(2), always)}, want: "a", preempts: "z"},
		"a cluster-wide one never from a namespaced":   {held: made("z"), all: []*propagationPolicy{wide("a", priority(9), always)}, want: "z"},
		"a namespaced one that does not ask for it":    {held: wide("z"), all: []*propagationPolicy{made("a", priority(9))}, want: "z"},
		"the holder no longer selects it":              {held: made("z", otherName), all: []*propagationPolicy{made("a")}, want: "a"},
		"the holder no longer selects it, nor anybody": {held: made("z", otherName)},
		"the holder is being deleted":                  {held: made("z", leaving), all: []*propagationPolicy{made("z", leaving), wide("c")}, want: "c"},
		"the holder was made invalid":                  {held: made("z", wrong), all: []*propagationPolicy{made("a", priority(9), always)}, want: "z", inert: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := match(template(), c.held, c.all)
			if err != nil {
				t.Fatal(err)
			}
			call := func(p *propagationPolicy) string {
				if p == nil {
					return ""
				}
				return p.GetName()
			}
			if call(got.policy) != c.want || call(got.preempts) != c.preempts || got.inert != c.inert {
				t.Errorf("%q, preempts %q, inert %v; want %q, %q, %v", call(got.policy), call(got.preempts), got.inert, c.want, c.preempts, c.inert)
			}
		})
	}
}
