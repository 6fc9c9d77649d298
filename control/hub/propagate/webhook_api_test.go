package propagate_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	"github.com/pelago-net/pelago/control/execute"
	"github.com/pelago-net/pelago/control/hub/propagate"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// While a webhook fails its objects wait: the binding keeps replicas and clusters, an Event names
// configuration and webhook. Once it answers, what was edited meanwhile continues.
func TestWebhookOfTheKindFails(t *testing.T) {
	h := newHub(t, "member1")
	if err := configv1alpha1.AddToScheme(h.Scheme()); err != nil {
		t.Fatal(err)
	}
	var responds atomic.Pointer[string]
	responds.Store(ptr.To(`"successful": true, "replicas": %d`))
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Request struct {
				UID    string
				Object appsv1.Deployment
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		fields := *responds.Load()
		if strings.Contains(fields, "%d") {
			fields = fmt.Sprintf(fields, *body.Request.Object.Spec.Replicas*2)
		}
		fmt.Fprintf(w, `{"response": {"uid": %q, %s}}`, body.Request.UID, fields)
	}))
	t.Cleanup(s.Close)
	c := &configv1alpha1.ResourceInterpreterWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "double"}}
	c.Webhooks = []configv1alpha1.ResourceInterpreterWebhook{{
		Name: "double.example.com", InterpreterContextVersions: []string{"v1alpha1"}, TimeoutSeconds: ptr.To[int32](30),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &s.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})},
		Rules: []configv1alpha1.RuleWithOperations{{Operations: []configv1alpha1.InterpreterOperation{"InterpretReplica"},
			Rule: configv1alpha1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"*"}, Kinds: []string{"Deployment"}}}},
	}}
	h.Make(c)
	t.Cleanup(func() {
		if err := h.Delete(context.Background(), c); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	custom := kinds.NewCustom()
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error { return execute.SetupRules(m, custom) }}}.Run(h, h.Config)
	h.policy("all", selecting("", "member1", ""))
	h.run(nil, func(o *propagate.Options) { o.Interpreter = custom.Interpreter() })
	web := h.deployment("web", 2)
	h.Make(web)
	h.runs("web-deployment", "member1:4")

	for i, fails := range []struct{ responds, want string }{
		{`"successful": false, "status": {"code": 500, "message": "out of order"}`, "the webhook reports code 500: out of order"},
		{`"successful": true, "replicas": -1`, "response.replicas is -1"},
	} {
		responds.Store(&fails.responds)
		edit(h, web, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(int32(i + 3)) })
		await.True(t, "an Event names the webhook and "+fails.want, func() bool {
			var list corev1.EventList
			if err := h.List(t.Context(), &list); err != nil {
				t.Fatal(err)
			}
			for _, e := range list.Items {
				if e.InvolvedObject.UID == web.UID && e.Reason == "GetReplicasFailed" && strings.Contains(e.Message, fails.want) &&
					strings.Contains(e.Message, "ResourceInterpreterWebhookConfiguration double (webhook double.example.com)") {
					return true
				}
			}
			return false
		})
		await.Never(t, 200*time.Millisecond, "another decision", func() bool { return where(h.binding("web-deployment")) != "member1:4" })
	}
	responds.Store(ptr.To(`"successful": true, "replicas": %d`))
	h.runs("web-deployment", "member1:8")
	h.Remove(c)
	h.runs("web-deployment", "member1:4")
}
