package migrate

import (
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

func TestKarmada(t *testing.T) {
	config := apiserver.Start(t, apiserver.HubControllers())
	c, err := manifests.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	create := func(objects ...client.Object) {
		t.Helper()
		for _, o := range objects {
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	hook := func(config, name string) *admissionregistrationv1.ValidatingWebhookConfiguration {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: config}, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: name, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://localhost/")}}}}
	}
	service := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1beta1.custom.metrics.k8s.io"},
		"spec": map[string]any{"group": "custom.metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": int64(2000), "versionPriority": int64(10), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "karmada-system", "name": "karmada-metrics-adapter"}}}}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-system", Name: "karmada-scheduler"}, Spec: coordinationv1.LeaseSpec{
		// by its holder's clock
		HolderIdentity: ptr.To("x"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: ptr.To(metav1.NewMicroTime(time.Now().Add(-time.Hour)))}}
	stopped := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-system", Name: "karmada-scheduler"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To[int32](2), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-system"}}, hook("validating-config", "work.karmada.io"), hook("theirs", "theirs.example.org"), service, lease, stopped)

	k := &Karmada{Hub: c, Namespace: "karmada-system", Timeout: time.Second, Progress: func(string, ...any) {}}
	stop := apiserver.Renew(t, c, lease)
	removed := func(want bool) {
		t.Helper()
		found, err := k.registered(t.Context())
		if err != nil || (len(found) == 0) != want {
			t.Errorf("registrations %d, %v; want removed: %t", len(found), err, want)
		}
	}
	if err := k.Back(t.Context()); err == nil || !strings.Contains(err.Error(), "was not migrated") {
		t.Errorf("back without a migration: %v", err)
	}
	if err := k.Forward(t.Context(), false); err == nil || !strings.Contains(err.Error(), "karmada-scheduler of Karmada still renew") {
		t.Errorf("while a controller is alive: %v", err)
	}
	removed(false)

	steps, err := k.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, s := range steps {
		all = append(all, s.Action+" "+s.Object)
	}
	if got, want := strings.Join(all, ", "), "stop karmada-scheduler, remove ValidatingWebhookConfiguration validating-config, "+
		"remove APIService v1beta1.custom.metrics.k8s.io, install hub of Pelago"; got != want {
		t.Errorf("plan %s, want %s", got, want)
	}

	stop()
	if err := c.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again: nothing is lost of what was kept
		if err := k.Forward(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		removed(true)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "theirs"}, &admissionregistrationv1.ValidatingWebhookConfiguration{}); err != nil {
		t.Errorf("a webhook that is not Karmada's: %v", err)
	}

	hub := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.HubName}, Spec: lease.Spec}
	create(hub)
	stop = apiserver.Renew(t, c, hub)
	if err := k.Back(t.Context()); err == nil || !strings.Contains(err.Error(), "pelago-hub runs") {
		t.Errorf("back while pelago-hub runs: %v", err)
	}
	stop()
	if err := c.Delete(t.Context(), hub); err != nil {
		t.Fatal(err)
	}
	search := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1alpha1.search.example.com"},
		"spec": map[string]any{"group": "search.example.com", "version": "v1alpha1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(200), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": manifests.SystemNamespace, "name": manifests.HubName}}}}
	create(search)
	if err := k.Back(t.Context()); err != nil {
		t.Fatal(err)
	}
	removed(false)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(search), search); !apierrors.IsNotFound(err) {
		t.Errorf("the APIService of pelago-hub: %v, want NotFound", err)
	}

	// No controller of Deployments runs here: the wait ends, and what is noted stays for the next
	// attempt.
	k.Host = c
	for range 2 {
		if err := k.scale(t.Context(), controllers, false); err != nil && !strings.Contains(err.Error(), "run the command again") {
			t.Fatal(err)
		}
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(stopped), stopped); err != nil || *stopped.Spec.Replicas != 0 || stopped.Annotations[AnnotationReplicas] != "2" {
		t.Errorf("stopped with %d replicas, annotations %v, %v", *stopped.Spec.Replicas, stopped.Annotations, err)
	}
	if err := k.scale(t.Context(), controllers, true); err == nil || !strings.Contains(err.Error(), "wait for 2 replicas") {
		t.Errorf("start: %v", err)
	}
}
