package execute

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

type hub struct{ *apiserver.Cluster }

func newHub(t *testing.T) hub {
	t.Helper()
	h := hub{apiserver.Connect(t, server.Config(t), pelagov1alpha1.AddToScheme, configv1alpha1.AddToScheme)}
	h.Empty(&pelagov1alpha1.KindRules{}, &configv1alpha1.ResourceInterpreterCustomization{},
		&configv1alpha1.ResourceInterpreterWebhookConfiguration{}, &corev1.Event{})
	return h
}

// run starts what the hub runs, and what an agent runs; both have an interpreter.
func (h hub) run() map[string]*kinds.Interpreter {
	h.Helper()
	inHub, inAgent := kinds.NewCustom(), kinds.NewCustom()
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{
		func(mgr ctrl.Manager) error { return SetupRules(mgr, inHub) },
	}}.Run(h, h.Config)
	apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return mgr.Add(&Follower{Cache: mgr.GetCache(), Live: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper(), Rules: inAgent, Log: slog.New(slog.DiscardHandler)})
	}}}.Run(h, h.Config)
	return map[string]*kinds.Interpreter{"hub": inHub.Interpreter(), "agent": inAgent.Interpreter()}
}

// farm has no replicas ready.
func farm() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Farm", "metadata": map[string]any{"name": "a", "namespace": "shop", "generation": int64(1)},
		"spec": map[string]any{"hens": int64(2)},
	}}
}

func example(t *testing.T) *pelagov1alpha1.KindRules {
	t.Helper()
	text, err := os.ReadFile("../kinds/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := new(pelagov1alpha1.KindRules)
	if err := yaml.UnmarshalStrict(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func (h hub) condition(o client.Object, conditions *[]metav1.Condition) func() string {
	return func() string {
		if err := h.Get(h.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			h.Fatal(err)
		}
		c := meta.FindStatusCondition(*conditions, "Accepted")
		if c == nil || c.ObservedGeneration != o.GetGeneration() {
			return ""
		}
		return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
	}
}

// What users write holds from then on, without a restart, at the hub and in agents; and no more
// once it is deleted.
func TestRulesAreExchangedWhileThingsRun(t *testing.T) {
	h := newHub(t)
	interpreters := h.run()
	health := func(of string) func() string {
		return func() string {
			is, err := interpreters[of].Health(farm())
			if err != nil {
				return err.Error()
			}
			return string(is)
		}
	}
	both := func(want string) {
		t.Helper()
		for of := range interpreters {
			await.Equal(t, want, health(of))
		}
	}
	both("Healthy") // nobody has said anything

	k := example(t)
	if err := h.Create(t.Context(), k, &client.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Fatal(err)
	}
	both("Unhealthy")
	await.Equal(t, "True Accepted all rules compile and are used", h.condition(k, &k.Status.Conditions))

	k.Spec.Rules.Healthy = "observed.spec.hens >= replicas"
	if err := h.Update(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	const wrong = "rule healthy of KindRules farms.example.com (observed.spec.hens >= replicas): "
	both("read the health of Farm shop/a: " + wrong +
		"it does not compile: line 1, column 23: undeclared reference to 'replicas' (in container '')")
	await.Equal(t, "False InvalidExpression "+wrong+"line 1, column 23: undeclared reference to 'replicas' (in container '')",
		h.condition(k, &k.Status.Conditions))
	await.True(t, "there is an Event", func() bool { return h.told(k, "InvalidExpression", wrong) })
	for of, in := range interpreters { // its other rules go on
		if n, _, ok, err := in.Replicas(farm()); err == nil || ok || n != 0 || !strings.Contains(err.Error(), "no such key: template") {
			t.Errorf("%s: %d %v %v", of, n, ok, err)
		}
	}

	k.Spec.Rules.Healthy = "observed.spec.hens == 2"
	if err := h.Update(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	both("Healthy")

	younger := example(t)
	younger.Name = "younger"
	younger.Spec.Rules = pelagov1alpha1.Rules{Healthy: "false"}
	h.Make(younger)
	await.Equal(t, "False Conflict rule healthy for example.com/v1 Farm: that of KindRules farms.example.com, which are older, is used",
		h.condition(younger, &younger.Status.Conditions))
	both("Healthy")
	h.Remove(k)
	both("Unhealthy")
	h.Remove(younger)
	both("Healthy")
}

// told reports whether there is an Event of the reason on the object that reports it.
func (h hub) told(o client.Object, reason, says string) bool {
	var list corev1.EventList
	if err := h.List(h.Context(), &list); err != nil {
		h.Fatal(err)
	}
	for _, e := range list.Items {
		if e.InvolvedObject.UID == o.GetUID() && e.Reason == reason && strings.Contains(e.Message, says) {
			return true
		}
	}
	return false
}

func customization() *configv1alpha1.ResourceInterpreterCustomization {
	c := &configv1alpha1.ResourceInterpreterCustomization{ObjectMeta: metav1.ObjectMeta{Name: "farms"}}
	c.Spec.Target = configv1alpha1.CustomizationTarget{APIVersion: "example.com/v1", Kind: "Farm"}
	return c
}

// A customization in Lua has effect at the hub and in agents, each script by itself, and none once
// it is deleted.
func TestLuaIsRun(t *testing.T) {
	h := newHub(t)
	interpreters := h.run()
	c := customization()
	c.Spec.Customizations.HealthInterpretation = &configv1alpha1.Script{LuaScript: "function InterpretHealth(o) return false end"}
	c.Spec.Customizations.ReplicaResource = &configv1alpha1.Script{LuaScript: "function GetReplicas(o) return o.spec.hens, {} end"}
	c.Spec.Customizations.ComponentResource = &configv1alpha1.Script{LuaScript: "function GetComponents(o) return {{name = 'coop', replicas = 1}} end"}
	h.Make(c)
	await.Equal(t, "True Accepted all scripts compile and are used", h.condition(c, &c.Status.Conditions))
	for of, in := range interpreters {
		await.True(t, of+" runs the scripts", func() bool {
			n, _, ok, err := in.Replicas(farm())
			health, errHealth := in.Health(farm())
			all, _, errComponents := in.Components(farm())
			return n == 2 && ok && errors.Join(err, errHealth, errComponents) == nil && health == workv1alpha2.ResourceUnhealthy && len(all) == 1
		})
	}

	// KindRules precede; the customization names them.
	k := example(t)
	k.Spec.Rules = pelagov1alpha1.Rules{Healthy: "true"}
	h.Make(k)
	await.Equal(t, "False Conflict rule healthy for example.com/v1 Farm: that of KindRules farms.example.com is used",
		h.condition(c, &c.Status.Conditions))
	for of, in := range interpreters {
		await.True(t, of+" evaluates KindRules first", func() bool {
			health, err := in.Health(farm())
			return health == workv1alpha2.ResourceHealthy && err == nil
		})
	}
	h.Remove(k)

	// A script that does not compile is an error for each object, not the default.
	c.Spec.Customizations.HealthInterpretation.LuaScript = "function InterpretHealth(o) return"
	if err := h.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	const wrong = "rule healthInterpretation of ResourceInterpreterCustomization farms (function InterpretHealth): "
	await.True(t, "the condition names script and error", func() bool {
		return strings.HasPrefix(h.condition(c, &c.Status.Conditions)(), "False InvalidScript "+wrong)
	})
	await.True(t, "there is an Event", func() bool { return h.told(c, "InvalidScript", wrong) })
	for of, in := range interpreters {
		await.True(t, of+" reports the error", func() bool {
			health, err := in.Health(farm())
			n, _, _, errReplicas := in.Replicas(farm())
			return health == workv1alpha2.ResourceUnknown && err != nil && n == 2 && errReplicas == nil
		})
	}

	h.Remove(c)
	for of, in := range interpreters {
		await.True(t, of+" has no rules", func() bool {
			_, _, ok, err := in.Replicas(farm())
			return !ok && err == nil
		})
	}
}

// A script without end is stopped, and its customization names it.
func TestLuaWithoutEndIsStopped(t *testing.T) {
	h := newHub(t)
	in := h.run()["hub"]
	c := customization()
	c.Spec.Customizations.StatusReflection = &configv1alpha1.Script{LuaScript: "function ReflectStatus(o) while true do end end"}
	c.Spec.Customizations.ReplicaResource = &configv1alpha1.Script{LuaScript: "function GetReplicas(o) return o.spec.hens end"}
	h.Make(c)
	await.Equal(t, "True Accepted all scripts compile and are used", h.condition(c, &c.Status.Conditions))
	if _, err := in.ReflectStatus(farm()); err == nil || !strings.Contains(err.Error(), "exceeded the limit of work") {
		t.Fatalf("a loop without end: %v", err)
	}
	await.True(t, "the condition names the script", func() bool {
		return strings.HasPrefix(h.condition(c, &c.Status.Conditions)(), "False LimitExceeded rule statusReflection of "+
			"ResourceInterpreterCustomization farms (function ReflectStatus): the script was stopped")
	})
	if n, _, ok, err := in.Replicas(farm()); n != 2 || !ok || err != nil {
		t.Errorf("the other script: %d %v %v", n, ok, err)
	}
}

// A webhook is called from the hub and from agents; one that cannot be called is an error for its
// objects, until it is deleted.
func TestWebhooksAreCalled(t *testing.T) {
	h := newHub(t)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Request struct{ UID, Operation string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Request.Operation != "InterpretHealth" {
			t.Errorf("request %+v, %v", body, err)
		}
		fmt.Fprintf(w, `{"response": {"uid": %q, "successful": true, "healthy": false}}`, body.Request.UID)
	}))
	t.Cleanup(s.Close)
	interpreters := h.run()
	c := &configv1alpha1.ResourceInterpreterWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "farms"}}
	c.Webhooks = []configv1alpha1.ResourceInterpreterWebhook{{
		Name: "hook.example.com", InterpreterContextVersions: []string{"v1alpha1"},
		ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &s.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})},
		Rules: []configv1alpha1.RuleWithOperations{{Operations: []configv1alpha1.InterpreterOperation{"InterpretHealth"},
			Rule: configv1alpha1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Kinds: []string{"Farm"}}}},
	}}
	h.Make(c)
	await.Equal(t, "True Accepted all webhooks are called", h.condition(c, &c.Status.Conditions))
	for of, in := range interpreters {
		await.True(t, of+" calls the webhook", func() bool {
			health, err := in.Health(farm())
			return health == workv1alpha2.ResourceUnhealthy && err == nil
		})
	}

	c.Webhooks[0].ClientConfig.URL = new(string)
	*c.Webhooks[0].ClientConfig.URL = "http://192.0.2.1/"
	if err := h.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	const wrong = `webhook hook.example.com: clientConfig.url is "http://192.0.2.1/": it has to be https://host:port/path`
	await.Equal(t, "False InvalidWebhook "+wrong, h.condition(c, &c.Status.Conditions))
	await.True(t, "there is an Event", func() bool { return h.told(c, "InvalidWebhook", wrong) })
	for of, in := range interpreters {
		await.True(t, of+" reports the error", func() bool {
			health, err := in.Health(farm())
			return health == workv1alpha2.ResourceUnknown && err != nil && strings.Contains(err.Error(), "it has to be https")
		})
	}
	h.Remove(c)
	for of, in := range interpreters {
		await.True(t, of+" has the default", func() bool {
			health, err := in.Health(farm())
			return health == workv1alpha2.ResourceHealthy && err == nil
		})
	}
}

// What the API server refuses.
func TestRefusedRules(t *testing.T) {
	h := newHub(t)
	for want, change := range map[string]func(*pelagov1alpha1.KindRulesSpec){
		"spec.rules":                         func(s *pelagov1alpha1.KindRulesSpec) { s.Rules = pelagov1alpha1.Rules{} },
		"requirements are those of replicas": func(s *pelagov1alpha1.KindRulesSpec) { s.Rules.Replicas = "" },
		"spec.kinds":                         func(s *pelagov1alpha1.KindRulesSpec) { s.Kinds = nil },
		"spec.kinds[0].apiVersion":           func(s *pelagov1alpha1.KindRulesSpec) { s.Kinds[0].APIVersion = "example.com" },
		"spec.kinds[0].kind":                 func(s *pelagov1alpha1.KindRulesSpec) { s.Kinds[0].Kind = "a b" },
		"Duplicate value":                    func(s *pelagov1alpha1.KindRulesSpec) { s.Kinds = append(s.Kinds, s.Kinds[0]) },
		"spec.rules.healthy: Too long": func(s *pelagov1alpha1.KindRulesSpec) {
			s.Rules.Healthy = pelagov1alpha1.Expression(strings.Repeat("x", 16385))
		},
	} {
		k := example(t)
		change(&k.Spec)
		if err := h.Create(t.Context(), k); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a refusal with %q", err, want)
		}
	}
}

// A failing rule is one of RuleError's: what others branch on.
func TestFailureNamesTheRule(t *testing.T) {
	h := newHub(t)
	in := h.run()["hub"]
	k := example(t)
	k.Spec.Rules = pelagov1alpha1.Rules{Aggregate: "{'hens': items[5].status.hens}"}
	h.Make(k)
	await.True(t, "the rule fails, and says which it is", func() bool {
		_, err := in.AggregateStatus(farm(), []workv1alpha2.AggregatedStatusItem{{ClusterName: "m1"}})
		var rule *kinds.RuleError
		return errors.As(err, &rule) && rule.Origin == "KindRules farms.example.com" && rule.Rule == "aggregate" &&
			strings.Contains(err.Error(), "index out of bounds")
	})
	await.Never(t, 50*time.Millisecond, "it is not accepted", func() bool {
		return strings.HasPrefix(h.condition(k, &k.Status.Conditions)(), "False")
	})
}
