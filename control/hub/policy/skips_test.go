package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// A rule whose path the object lacks is skipped as a whole, unless the policy names the object.
func TestMissingPath(t *testing.T) {
	const team = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {app: shop}}"
	kind := func(kind string) policyv1alpha1.ResourceSelector {
		return policyv1alpha1.ResourceSelector{APIVersion: "v1", Kind: kind}
	}
	named, labelled := kind("Namespace"), kind("Namespace")
	named.Name = "shop"
	labelled.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}
	const remove = `{labelsOverrider: [{operator: add, value: {half: done}}], plaintext: [{path: /metadata/labels/team, operator: remove}]}`
	for name, tt := range map[string]struct {
		of, rule  string
		selectors []policyv1alpha1.ResourceSelector
		want      string // in the reason of the skip, or in the error
		fails     bool
	}{
		"removed, by a policy of everything":   {of: team, rule: remove, want: "Namespace shop: overrideRules[0].overriders.plaintext: error in remove for path: '/metadata/labels/team'"},
		"replaced":                             {of: team, rule: `plaintext: [{path: /spec/replicas, operator: replace, value: 1}]`, want: "doc is missing path: /spec/replicas"},
		"added below nothing":                  {of: team, rule: `plaintext: [{path: /spec/template/x, operator: add, value: 1}]`, want: "/spec/template/x"},
		"an element that a list does not have": {of: web, rule: `plaintext: [{path: /spec/template/spec/containers/7, operator: remove}]`, want: "plaintext"},
		"an image by its path":                 {of: team, rule: `imageOverrider: [{predicate: {path: /spec/image}, component: Tag, operator: remove}]`, want: "predicate.path /spec/image"},
		"a field":                              {of: settings, rule: `fieldOverrider: [{fieldPath: /data/none, json: [{subPath: /a, operator: add, value: 1}]}]`, want: "fieldPath /data/none"},
		"a field of another type":              {of: web, rule: `fieldOverrider: [{fieldPath: /spec/replicas, json: [{subPath: /a, operator: add, value: 1}]}]`, want: "is no string", fails: true},
		"of a Namespace by its kind":           {of: team, rule: remove, selectors: []policyv1alpha1.ResourceSelector{kind("Namespace")}, want: "Namespace shop"},
		"of a Namespace by its name":           {of: team, rule: remove, selectors: []policyv1alpha1.ResourceSelector{named}, want: "ClusterOverridePolicy p: overrideRules[0]", fails: true},
		"of a Namespace by its labels":         {of: team, rule: remove, selectors: []policyv1alpha1.ResourceSelector{labelled}, want: "ClusterOverridePolicy p: overrideRules[0]", fails: true},
		"of another kind":                      {of: settings, rule: remove, selectors: []policyv1alpha1.ResourceSelector{kind("ConfigMap")}, want: "overrideRules[0]", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: ownPolicy("p", overriders(t, tt.rule), tt.selectors...).Spec}
			last := policyv1alpha1.RuleWithCluster{Overriders: overriders(t, `labelsOverrider: [{operator: add, value: {last: rule}}]`)}
			p.Spec.OverrideRules = append(p.Spec.OverrideRules, last)
			got, applied, err := ApplyOverrides(object(t, tt.of), member, OverridePolicies{Cluster: []policyv1alpha1.ClusterOverridePolicy{p}})
			if tt.fails {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("error %v, want %q in it", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := applied.Skipped; len(s) != 1 || s[0].Policy != "p" || !strings.Contains(s[0].Reason, tt.want) {
				t.Errorf("skipped %+v, want %q in it", s, tt.want)
			}
			want := object(t, tt.of)
			labels, _, _ := unstructured.NestedStringMap(want.Object, "metadata", "labels")
			if labels == nil {
				labels = map[string]string{}
			}
			labels["last"] = "rule"
			want.SetLabels(labels)
			if diff := cmp.Diff(want, got); diff != "" || len(applied.Cluster) != 1 {
				t.Errorf("applied %+v; the object -want +got:\n%s", applied.Cluster, diff)
			}
		})
	}
}

// The message names so many objects; the end of the last skip ends the condition.
func TestSkips(t *testing.T) {
	var s Skips
	var changed []client.ObjectKey
	s.follow(func(key client.ObjectKey) { changed = append(changed, key) })
	p := client.ObjectKey{Name: "p"}
	rule := func(reason string) SkippedRule { return SkippedRule{Policy: p.Name, Reason: reason} }
	s.Report("a", []SkippedRule{rule("a: no path"), rule("a: no path"), rule("a: no other path"), {Namespace: "shop", Policy: "p", Reason: "x"}})
	if got := s.message(p); got != "a: no path; a: no other path" || len(changed) != 2 {
		t.Errorf("message %q, changed %v", got, changed)
	}
	s.Report("a", []SkippedRule{rule("a: no path"), rule("a: no other path")})
	if len(changed) != 3 || s.message(client.ObjectKey{Namespace: "shop", Name: "p"}) != "" {
		t.Errorf("changed %v: one policy applies by now, the other one is as before", changed)
	}
	for i := range 12 {
		s.Report(fmt.Sprint("b", i), []SkippedRule{rule("b")})
	}
	if got := s.message(p); !strings.HasSuffix(got, "b; and 3 more objects") {
		t.Errorf("message %q", got)
	}
	s.Report("a", nil)
	for i := range 12 {
		s.Report(fmt.Sprint("b", i), nil)
	}
	var status policyv1alpha1.PolicyStatus
	if !skip(&status, 1, "a: no path") || skip(&status, 1, "a: no path") || !skip(&status, 1, s.message(p)) || len(status.Conditions) > 0 {
		t.Errorf("conditions %+v", status.Conditions)
	}
}
