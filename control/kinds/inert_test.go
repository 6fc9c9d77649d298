package kinds_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/kinds"
)

const (
	// the shape of cert-manager's
	webhooksYAML = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: checks, annotations: {cert-manager.io/inject-ca-from-secret: certs/ca}}
webhooks:
- name: one.example.com
  clientConfig: {service: {name: checks, namespace: certs, path: /validate}}
  matchConditions: [{name: users, expression: "request.userInfo.username != ''"}]
- name: two.example.com
  clientConfig: {service: {name: checks, namespace: certs}}
- name: url.example.com
  clientConfig: {url: "https://checks.example.com"}
`
	apiServiceYAML = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics-server, namespace: kube-system}
`
	definitionYAML = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  conversion: {strategy: Webhook, webhook: {clientConfig: {service: {name: widgets, namespace: widgets}}, conversionReviewVersions: [v1]}}
  versions:
  - {name: v1, served: true, storage: true}
  - {name: v1beta1, served: true, storage: false}
  - {name: v1alpha1, served: false, storage: false}
`
)

func fromYAML(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return u
}

// members is what members get of an object at the hub.
func members(t *testing.T, hub *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	out := hub.DeepCopy()
	if err := kinds.ForMembers(out); err != nil {
		t.Fatal(err)
	}
	return out
}

func inert(t *testing.T, of *unstructured.Unstructured) (hub *unstructured.Unstructured, what string) {
	t.Helper()
	hub = of.DeepCopy()
	what, err := kinds.Inert(hub)
	if err != nil {
		t.Fatal(err)
	}
	return hub, what
}

// What calls a Service of members does not call it at the hub; members get what the user wrote.
func TestInert(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"webhooks":   {webhooksYAML, "one.example.com, two.example.com"},
		"APIService": {apiServiceYAML, "without its Service"},
		"conversion": {definitionYAML, "the versions v1beta1 are served in members only"},
	} {
		t.Run(name, func(t *testing.T) {
			user := fromYAML(t, tc.text)
			hub, what := inert(t, user)
			if !strings.Contains(what, tc.want) {
				t.Errorf("%q does not contain %q", what, tc.want)
			}
			if diff := cmp.Diff(user.Object, members(t, hub).Object); diff != "" {
				t.Errorf("members get another object, -user +members:\n%s", diff)
			}
			if again, what := inert(t, hub); what != "" || !cmp.Equal(again.Object, hub.Object) {
				t.Errorf("repeated, it changes: %s\n%s", what, cmp.Diff(hub.Object, again.Object))
			}
			applied := user.DeepCopy() // again by the user, which keeps our annotation
			if text, ok := hub.GetAnnotations()[policyv1alpha1.AnnotationMembersOnly]; ok {
				applied.SetAnnotations(map[string]string{policyv1alpha1.AnnotationMembersOnly: text})
			}
			if again, what := inert(t, applied); what == "" || !cmp.Equal(again.Object, hub.Object) {
				t.Errorf("applied again it is another object: %q\n%s", what, cmp.Diff(hub.Object, again.Object))
			}
		})
	}
}

func TestInertFields(t *testing.T) {
	hub, _ := inert(t, fromYAML(t, webhooksYAML)) // TestInert has the words
	var got []string
	for _, w := range hub.Object["webhooks"].([]any) {
		var names []string
		conditions, _, err := unstructured.NestedSlice(w.(map[string]any), "matchConditions")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conditions {
			names = append(names, c.(map[string]any)["name"].(string))
		}
		got = append(got, strings.Join(names, " "))
	}
	if diff := cmp.Diff([]string{"users pelago.io/members-only", "pelago.io/members-only", ""}, got); diff != "" {
		t.Error(diff)
	}
	hub, _ = inert(t, fromYAML(t, apiServiceYAML)) // TestInert has the words
	want := map[string]any{"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100)}
	if diff := cmp.Diff(want, hub.Object["spec"]); diff != "" {
		t.Error(diff)
	}
}

// The user's later edits count, whatever was set aside before.
func TestInertEdited(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		edit func(hub *unstructured.Unstructured)
		want string // of what Inert did
	}{
		"webhook with URL instead": {webhooksYAML, func(hub *unstructured.Unstructured) {
			for _, w := range hub.Object["webhooks"].([]any) {
				w.(map[string]any)["clientConfig"] = map[string]any{"url": "https://checks.example.com"}
			}
		}, "lack the match condition"},
		"condition edited": {webhooksYAML, func(hub *unstructured.Unstructured) {
			w := hub.Object["webhooks"].([]any)[1].(map[string]any)
			w["matchConditions"].([]any)[0].(map[string]any)["expression"] = "true"
		}, "two.example.com"},
		"another Service": {apiServiceYAML, func(hub *unstructured.Unstructured) {
			hub.Object["spec"].(map[string]any)["service"] = map[string]any{"name": "other", "namespace": "kube-system"}
		}, "without its Service"},
		"conversion removed": {definitionYAML, func(hub *unstructured.Unstructured) {
			delete(hub.Object["spec"].(map[string]any), "conversion")
		}, "served again"},
		"conversion removed, versions written": {definitionYAML, func(hub *unstructured.Unstructured) {
			spec := hub.Object["spec"].(map[string]any)
			delete(spec, "conversion")
			spec["versions"] = []any{map[string]any{"name": "v1", "served": true, "storage": true}}
		}, "served as it has them"},
		"one version left": {definitionYAML, func(hub *unstructured.Unstructured) {
			hub.Object["spec"].(map[string]any)["versions"] = []any{map[string]any{"name": "v1", "served": true, "storage": true}}
		}, "served as it has them"},
	} {
		t.Run(name, func(t *testing.T) {
			hub, _ := inert(t, fromYAML(t, tc.text)) // TestInert has the words
			tc.edit(hub)
			before := members(t, hub)
			after, what := inert(t, hub)
			if !strings.Contains(what, tc.want) || what == "" {
				t.Errorf("%q does not contain %q", what, tc.want)
			}
			if diff := cmp.Diff(before.Object, members(t, after).Object); diff != "" {
				t.Errorf("members get another object, -before +after:\n%s", diff)
			}
			if _, what := inert(t, after); what != "" {
				t.Errorf("repeated, it changes: %s", what)
			}
		})
	}
	if got := members(t, fromYAML(t, apiServiceYAML)); got.GetAnnotations() != nil {
		t.Errorf("annotations %v", got.GetAnnotations())
	}
}

func TestInertInvalid(t *testing.T) {
	for _, text := range []string{apiServiceYAML, definitionYAML} {
		u := fromYAML(t, text)
		u.SetAnnotations(map[string]string{policyv1alpha1.AnnotationMembersOnly: "["})
		if err := kinds.ForMembers(u); err == nil || !strings.Contains(err.Error(), "remove it and apply the object again") {
			t.Errorf("%s: %v", u.GetKind(), err)
		}
	}
	for _, u := range []*unstructured.Unstructured{
		{Object: map[string]any{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "webhooks": "none"}},
		{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": "none"}},
		{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "spec": "none"}},
	} {
		if _, err := kinds.Inert(u); err == nil {
			t.Errorf("%s: no error", u.GetKind())
		}
		if err := kinds.ForMembers(u); err != nil {
			t.Errorf("%s: %v", u.GetKind(), err)
		}
	}
	other := fromYAML(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, annotations: {pelago.io/members-only: "["}}}`)
	if what, err := kinds.Inert(other); what != "" || err != nil {
		t.Errorf("ConfigMap: %q, %v", what, err)
	}
}
