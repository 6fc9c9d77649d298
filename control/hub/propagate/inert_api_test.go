package propagate_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// operatorYAML is the shape of an operator's manifests: a CRD in two versions with a conversion
// webhook, admission webhooks and an aggregated API, each with a Service of the members.
const operatorYAML = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  conversion: {strategy: Webhook, webhook: {clientConfig: {service: {name: widgets, namespace: widget-system}}, conversionReviewVersions: [v1]}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v2alpha1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: widgets}
webhooks:
- name: validate.widgets.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 3
  clientConfig: {service: {name: widgets, namespace: widget-system}}
  rules: [{apiGroups: [example.com], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [widgets]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: widgets}
webhooks:
- name: mutate.widgets.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 3
  clientConfig: {service: {name: widgets, namespace: widget-system}}
  rules: [{apiGroups: [example.com], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [widgets]}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1.widgets.metrics.example.com
  annotations: {pelago.io/members-only: '{"spec":{"service":{"name":"widgets","namespace":"widget-system"},"insecureSkipTLSVerify":true}}'}
spec: {group: widgets.metrics.example.com, version: v1, groupPriorityMinimum: 100, versionPriority: 100}
`

// The hub's API server calls no Service of an operator that is propagated, however often and in
// whichever way its manifests are applied: objects of its kinds are created, kinds are discovered,
// namespaces are deleted.
func TestServicesOfMembersAreNotCalled(t *testing.T) {
	for name, flags := range map[string][]string{"client-side apply": nil, "server-side apply": {"--server-side"}} {
		t.Run(name, func(t *testing.T) {
			h := hubAt(t, apiserver.Start(t, apiserver.CRDs(), apiserver.HubControllers()), "member1")
			kubectl := apiserver.Kubectl(t, h.Config)
			file := filepath.Join(t.TempDir(), "operator.yaml")
			if err := os.WriteFile(file, []byte(operatorYAML), 0o600); err != nil {
				t.Fatal(err)
			}
			apply := func() {
				t.Helper()
				if said, err := kubectl(append([]string{"apply", "-f", file}, flags...)...); err != nil {
					t.Fatal(err, said)
				}
			}
			var all []*unstructured.Unstructured
			for _, of := range []string{"apiextensions.k8s.io/v1 CustomResourceDefinition widgets.example.com",
				"admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration widgets", "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration widgets",
				"apiregistration.k8s.io/v1 APIService v1.widgets.metrics.example.com"} {
				var version, kind, object string
				if _, err := fmt.Sscan(of, &version, &kind, &object); err != nil {
					t.Fatal(err)
				}
				all = append(all, &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": object}}})
			}
			quiet := func() (why string) {
				for _, u := range all {
					if err := h.Get(h.Context(), keyFor(u), u); err != nil {
						return err.Error()
					}
					if what, err := kinds.Inert(u.DeepCopy()); err != nil || what != "" {
						return fmt.Sprintf("%s is yet to change: %s %v", u.GetKind(), what, err)
					}
				}
				return ""
			}
			widget := func(name, version string) *unstructured.Unstructured {
				return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/" + version, "kind": "Widget",
					"metadata": map[string]any{"namespace": h.ns, "name": name}}}
			}
			apply()
			h.run(nil)
			h.widePolicy("operator", `{resourceSelectors: [{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, name: widgets.example.com},
  {apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration}, {apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration},
  {apiVersion: apiregistration.k8s.io/v1, kind: APIService}], placement: {clusterAffinity: {clusterNames: [member1]}}}`)
			for i, stage := range []string{"at first", "applied again"} {
				if i > 0 {
					apply()
				}
				await.Equal(t, "", quiet)
				await.Equal(t, "", func() string {
					if err := h.Create(h.Context(), widget(fmt.Sprint("w", i), "v1")); err != nil && !apierrors.IsAlreadyExists(err) {
						return fmt.Sprintf("%s: %v", stage, err)
					}
					return ""
				})
				await.Equal(t, "", func() string {
					if said, err := kubectl("api-resources"); err != nil {
						return said
					}
					return ""
				})
			}
			if err := h.Create(h.Context(), widget("old", "v2alpha1")); err == nil {
				t.Error("a version without its conversion webhook is served")
			}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "temporary-"}}
			h.Make(ns)
			if err := h.Create(h.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
				"metadata": map[string]any{"namespace": ns.Name, "name": "w"}}}); err != nil {
				t.Fatal(err)
			}
			h.Remove(ns)
			await.Equal(t, "gone", func() string {
				err := h.Get(h.Context(), keyFor(ns), ns)
				if apierrors.IsNotFound(err) {
					return "gone"
				}
				return fmt.Sprint(err, ns.Status.Conditions)
			})
			// The ownership ends with a write of its own.
			await.Equal(t, "", func() string {
				for _, u := range all {
					if err := h.Get(h.Context(), keyFor(u), u); err != nil {
						return err.Error()
					}
					for _, e := range u.GetManagedFields() {
						if e.Manager == "pelago.io/members-only" {
							return fmt.Sprintf("%s: fields are owned by %s", u.GetKind(), e.Manager)
						}
					}
				}
				return ""
			})
		})
	}
}

// Where the hub's cluster runs workloads, the Services are there: nothing changes.
func TestServicesOfTheHubAreCalled(t *testing.T) {
	h := hubAt(t, apiserver.Start(t, apiserver.CRDs()), "member1")
	kubectl := apiserver.Kubectl(t, h.Config)
	file := filepath.Join(t.TempDir(), "operator.yaml")
	if err := os.WriteFile(file, []byte(operatorYAML), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := kubectl("apply", "-f", file); err != nil {
		t.Fatal(err, said)
	}
	h.run(nil, func(o *propagate.Options) { o.RunsWorkloads = true })
	h.widePolicy("operator", `{resourceSelectors: [{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration}], placement: {clusterAffinity: {clusterNames: [member1]}}}`)
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
		"metadata": map[string]any{"name": "widgets"}}}
	h.follows(u, "operator")
	if what, err := kinds.Inert(u.DeepCopy()); err != nil || what == "" {
		t.Errorf("the webhook has the match condition: %v", err)
	}
}
