package execute

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

const hpa = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: h, namespace: NS}
spec: {minReplicas: 1, maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: nginx}}`

// TestOwned: who has which field: the hub, the member's controllers, or users of the member.
func TestOwned(t *testing.T) {
	server := apiserver.Start(t)

	t.Run("adoption needs Overwrite, and a field that the former owner set goes with the template's", func(t *testing.T) {
		l := newLab(t, server)
		before := l.foreign(strings.Replace(configMap, `a: "1", b: "2"`, `a: "0", old: x`, 1), "kubectl-create")
		l.run()
		l.work("w", configMap)
		l.failed("w", "ConfigMap "+l.ns+"/c", "not managed", "conflictResolution: Overwrite", l.cluster)
		l.heard("SyncFailed", "conflictResolution: Overwrite")
		if got := value(l.there(configMap), "data"); got != "map[a:0 old:x]" {
			t.Errorf("an object that is not ours was changed: %s", got)
		}
		l.manifest("w", overwriting(l, configMap))
		l.applied("w")
		u := l.there(configMap)
		if got := value(u, "data"); got != "map[a:1 b:2]" || u.GetUID() != before.GetUID() {
			t.Errorf("adopted as %s %s", got, u.GetUID())
		}
		for _, f := range u.GetManagedFields() {
			if f.Manager != "pelago" {
				t.Errorf("%s %s still owns %s", f.Manager, f.Operation, f.FieldsV1)
			}
		}
	})

	t.Run("adoption of what was made by server-side apply", func(t *testing.T) {
		l := newLab(t, server)
		u := l.object(`{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS}, data: {old: x}}`)
		err := l.member.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("argocd-controller"))
		if err != nil {
			t.Fatal(err)
		}
		l.run()
		l.work("w", overwriting(l, configMap))
		l.applied("w")
		if got := value(l.there(configMap), "data"); got != "map[a:1 b:2]" {
			t.Errorf("data is %s", got)
		}
	})

	t.Run("Karmada's copy of the template is adopted, what others set in it stays", func(t *testing.T) {
		l := newLab(t, server)
		karmadas := func(uid string) string {
			return strings.Replace(configMap, "name: c,", `name: c, labels: {karmada.io/managed: "true"}, annotations: {resourcetemplate.karmada.io/uid: `+uid+"},", 1)
		}
		before := l.foreign(strings.Replace(karmadas("u1"), `a: "1", b: "2"`, `a: "0", old: x`, 1), "karmada-controller-manager")
		l.patch(configMap, "kubectl-edit", `{"data":{"theirs":"y"},"metadata":{"annotations":{"theirs":"y"}}}`)
		l.run()
		l.work("w", strings.Replace(configMap, "name: c,", "name: c, annotations: {resourcetemplate.karmada.io/uid: u2},", 1))
		l.failed("w", "not managed") // of another template, which may be another hub's
		l.manifest("w", karmadas("u1"))
		l.applied("w")
		u := l.there(configMap)
		if got := value(u, "data"); got != "map[a:1 b:2 theirs:y]" || u.GetUID() != before.GetUID() || u.GetAnnotations()["theirs"] != "y" {
			t.Errorf("adopted as %s %s %v", got, u.GetUID(), u.GetAnnotations())
		}
	})

	t.Run("another hub's object is never touched", func(t *testing.T) {
		l := newLab(t, server)
		l.marked(`{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: NS}, data: {theirs: x}}`, "another-hub", "w")
		l.run()
		w := l.work("w", overwriting(l, configMap))
		l.failed("w", "belongs to another hub, another-hub,", "annotate its namespace kube-system with pelago.io/hub-id=another-hub")
		l.hub.Remove(w)
		await.True(t, "the Work is gone", func() bool { return l.gone("w") })
		if got := value(l.there(configMap), "data"); got != "map[theirs:x]" {
			t.Errorf("data is %s", got)
		}
	})

	t.Run("an object of two Works: the second is told", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("first", configMap)
		l.applied("first")
		l.work("second", configMap)
		l.failed("second", "belongs to Work first")
	})

	t.Run("restored hub: Works with new UIDs take their objects over as they are", func(t *testing.T) {
		l := newLab(t, server)
		stop := l.run()
		w := l.work("w", deployment)
		l.applied("w")
		before := l.there(deployment)
		stop()
		// The hub comes back from a backup: the same Work under another UID, no event reports the
		// former one.
		l.edit("w", func(w *workv1alpha1.Work) { w.Finalizers = nil })
		l.hub.Remove(w)
		l.work("w", deployment)
		l.run()
		l.applied("w")
		if u := l.there(deployment); u.GetUID() != before.GetUID() || u.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("it was %s version %s, is %s version %s",
				before.GetUID(), before.GetResourceVersion(), u.GetUID(), u.GetResourceVersion())
		}
	})

	t.Run("#386: replicas are the autoscaler's where the member has one", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		l.work("w", deployment)
		l.applied("w")
		l.member.Make(l.object(hpa))
		l.scale(t, 6)
		l.manifest("w", strings.ReplaceAll(deployment, "nginx:1", "nginx:2"))
		l.applied("w")
		if got := value(l.there(deployment), "spec", "replicas"); got != "6" {
			t.Errorf("replicas %s", got)
		}
		if got := fmt.Sprint(must(containers(l.there(deployment)))); !strings.Contains(got, "nginx:2") {
			t.Errorf("the image did not follow: %s", got)
		}
		l.scale(t, 3)
		// drift is still undone
		l.patch(deployment, "kubectl", `{"metadata":{"labels":{"app":"other"}}}`)
		await.Equal(t, "nginx", func() string { return l.there(deployment).GetLabels()["app"] })
		if got := value(l.there(deployment), "spec", "replicas"); got != "3" {
			t.Errorf("replicas %s", got)
		}
		l.member.Remove(l.object(hpa))
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
	})

	t.Run("#386: replicas are the autoscaler's that the cache does not show yet, too", func(t *testing.T) {
		l := newLab(t, server)
		l.wire.set(func(r *http.Request) (*http.Response, error) {
			if !strings.HasSuffix(r.URL.Path, "/horizontalpodautoscalers") || r.URL.Query().Get("watch") == "" {
				return nil, nil
			}
			silent, end := io.Pipe()
			context.AfterFunc(r.Context(), func() { end.Close() })
			header := http.Header{"Content-Type": {"application/json"}}
			return &http.Response{StatusCode: http.StatusOK, Header: header, Body: silent, Request: r}, nil
		})
		l.run()
		l.work("w", deployment)
		l.applied("w")
		l.scale(t, 1)
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
		l.member.Make(l.object(hpa))
		l.scale(t, 6)
		await.Never(t, time.Second, "the autoscaler's replicas are written over", func() bool {
			return value(l.there(deployment), "spec", "replicas") != "6"
		})
	})

	t.Run("replicas are the member's with the label retain-replicas", func(t *testing.T) {
		l := newLab(t, server)
		l.run()
		retaining := strings.Replace(deployment, "labels: {", `labels: {resourcetemplate.karmada.io/retain-replicas: "true", `, 1)
		l.work("w", retaining)
		l.applied("w")
		l.scale(t, 6)
		l.manifest("w", strings.ReplaceAll(retaining, "nginx:1", "nginx:2"))
		l.applied("w")
		if got := value(l.there(deployment), "spec", "replicas"); got != "6" {
			t.Errorf("replicas %s", got)
		}
	})

	t.Run("#3410: a webhook of the member changes what it owns, and other drift is undone", func(t *testing.T) {
		l := newLab(t, server)
		hook := l.webhook(t, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"mirror.local/nginx:1"}]`)
		l.run()
		l.work("w", owning(l, deployment, "/spec/template/spec/containers/0/image"))
		l.applied("w")
		l.patch(deployment, "kubectl", `{"spec":{"replicas":8}}`)
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
		l.wire.forget()
		l.status(deployment, 2)
		await.Equal(t, "2", func() string { return l.reflected("w", "readyReplicas") })
		if got := l.wire.writes("deployments/nginx"); len(got) > 0 {
			t.Errorf("a fight: %v", got)
		}
		// Without the webhook the field stays as the member has it; without the annotation the
		// template decides.
		l.member.Remove(hook)
		await.True(t, "the webhook is gone", func() bool {
			u := l.object(strings.ReplaceAll(deployment, "name: nginx, namespace", "name: probe, namespace"))
			err := l.member.Create(t.Context(), u, client.DryRunAll)
			return err == nil && !strings.Contains(fmt.Sprint(must(containers(u))), "mirror")
		})
		l.patch(deployment, "kubectl", `{"spec":{"replicas":8}}`)
		await.Equal(t, "2", func() string { return value(l.there(deployment), "spec", "replicas") })
		if got := fmt.Sprint(must(containers(l.there(deployment)))); !strings.Contains(got, "mirror.local/nginx:1") {
			t.Errorf("the member's image is gone: %s", got)
		}
		l.manifest("w", deployment)
		l.applied("w")
		if got := fmt.Sprint(must(containers(l.there(deployment)))); strings.Contains(got, "mirror") {
			t.Errorf("the template does not decide: %s", got)
		}
	})

	t.Run("#3410: a webhook without the annotation: no fight, what it makes of our apply is accepted", func(t *testing.T) {
		l := newLab(t, server)
		l.webhook(t, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"mirror.local/nginx:1"}]`)
		l.run()
		l.work("w", deployment)
		l.applied("w")
		l.wire.forget()
		l.status(deployment, 2)
		await.Equal(t, "2", func() string { return l.reflected("w", "readyReplicas") })
		if got := l.wire.writes("deployments/nginx"); len(got) > 0 {
			t.Errorf("a fight: %v", got)
		}
	})
}

// scale does what an autoscaler does.
func (l *lab) scale(t *testing.T, n int) {
	t.Helper()
	u := l.object(deployment)
	err := l.member.SubResource("scale").Patch(t.Context(), u, client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)), client.FieldOwner("kube-controller-manager"))
	if err != nil {
		t.Fatal(err)
	}
}

func containers(u *unstructured.Unstructured) ([]any, error) {
	list, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	return list, err
}

// gone reports whether the hub has a Work no more.
func (l *lab) gone(name string) bool {
	l.Helper()
	list := &workv1alpha1.WorkList{}
	if err := l.hub.List(l.Context(), list, client.InNamespace(l.es())); err != nil {
		l.Fatal(err)
	}
	for _, w := range list.Items {
		if w.Name == name {
			return false
		}
	}
	return true
}

// webhook changes the Deployments of the lab's namespace by a JSON patch.
func (l *lab) webhook(t *testing.T, patch string) *admissionregistrationv1.MutatingWebhookConfiguration {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		review := &admissionv1.AdmissionReview{}
		if err == nil {
			err = json.Unmarshal(body, review)
		}
		if err != nil {
			t.Error(err)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}
		review.Request = nil
		if err := json.NewEncoder(w).Encode(review); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	hook := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mirror-" + l.ns},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "mirror.test.pelago.io", AdmissionReviewVersions: []string{"v1"},
			SideEffects:       ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:     ptr.To(admissionregistrationv1.Fail),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": l.ns}},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: ptr.To(server.URL), CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"},
				},
			}},
		}},
	}
	l.member.Make(hook)
	await.True(t, "the webhook is at work", func() bool {
		u := l.object(strings.ReplaceAll(deployment, "name: nginx, namespace", "name: probe, namespace"))
		err := l.member.Create(t.Context(), u, client.DryRunAll)
		return err == nil && strings.Contains(fmt.Sprint(must(containers(u))), "mirror")
	})
	return hook
}
