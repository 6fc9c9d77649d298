package execute

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/test/await"
)

// exchange is a request of the hub, and what the webhook responds: a body, or the fields of a
// successful response. That a response cannot be written is the hub's failure to read it, which the
// tests see: such errors are dropped.
type exchange struct {
	http.ResponseWriter
	request map[string]any
}

func (e *exchange) respond(fields map[string]any) {
	all := map[string]any{"uid": e.request["uid"], "successful": true}
	for k, v := range fields {
		all[k] = v
	}
	_ = json.NewEncoder(e).Encode(map[string]any{"apiVersion": "config.karmada.io/v1alpha1", "kind": "ResourceInterpreterContext", "response": all})
}

func (e *exchange) patch(patch string) {
	e.respond(map[string]any{"patchType": "JSONPatch", "patch": []byte(patch)})
}

func newServer(t testing.TB, answer func(*exchange)) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Request map[string]any }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		answer(&exchange{w, body.Request})
	}))
	certificate, key, err := cert.GenerateSelfSignedCertKey("hook.shop.svc", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// configuration has one webhook, for all operations on Farms.
func configuration(name string, s *httptest.Server) configv1alpha1.ResourceInterpreterWebhookConfiguration {
	return configv1alpha1.ResourceInterpreterWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Generation: 1},
		Webhooks: []configv1alpha1.ResourceInterpreterWebhook{{
			Name:         "hook.example.com",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: ptr.To(s.URL + "/farms"), CABundle: bundle(s)},
			Rules: []configv1alpha1.RuleWithOperations{{Operations: []configv1alpha1.InterpreterOperation{"*"},
				Rule: configv1alpha1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"*"}, Kinds: []string{"Farm"}}}},
			TimeoutSeconds: ptr.To[int32](30), InterpreterContextVersions: []string{"v9", "v1alpha1"},
		}},
	}
}

func bundle(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: s.TLS.Certificates[0].Certificate[1]})
}

func interpreter(services client.Reader, all ...configv1alpha1.ResourceInterpreterWebhookConfiguration) *kinds.Interpreter {
	custom := kinds.NewCustom()
	hooks := hookSet{services: services}
	hooks.set(custom, all)
	custom.Set(nil)
	return custom.Interpreter()
}

func farmOf(replicas int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Farm", "metadata": map[string]any{"name": "a", "namespace": "shop"},
		"spec": map[string]any{"hens": replicas},
	}}
}

// Each operation sends what Karmada sends, and takes what its webhooks respond.
func TestWebhookOperations(t *testing.T) {
	s := newServer(t, func(e *exchange) {
		observed, _ := e.request["observedObject"].(map[string]any)
		switch e.request["operation"] {
		case "InterpretReplica":
			hens := e.request["object"].(map[string]any)["spec"].(map[string]any)["hens"]
			e.respond(map[string]any{"replicas": hens, "replicaRequirements": map[string]any{"resourceRequest": map[string]any{"cpu": "100m"}}})
		case "InterpretComponent":
			e.respond(map[string]any{"components": []any{map[string]any{"name": "coop", "replicas": 2, "replicaRequirements": map[string]any{"resourceRequest": map[string]any{"cpu": "1"}}}}})
		case "ReviseReplica":
			e.patch(fmt.Sprintf(`[{"op":"replace","path":"/spec/hens","value":%v}]`, e.request["replicas"]))
		case "Retain":
			e.patch(fmt.Sprintf(`[{"op":"add","path":"/spec/door","value":%q}]`, observed["spec"].(map[string]any)["door"]))
		case "AggregateStatus":
			e.patch(fmt.Sprintf(`[{"op":"add","path":"/status","value":{"clusters":%d}}]`, len(e.request["aggregatedStatus"].([]any))))
		case "InterpretStatus":
			e.respond(map[string]any{"rawStatus": map[string]any{"eggs": 9007199254740993}})
		case "InterpretHealth":
			e.respond(map[string]any{"healthy": false})
		case "InterpretDependency":
			e.respond(map[string]any{"dependencies": []any{map[string]any{"apiVersion": "v1", "kind": "Secret", "name": "key", "namespace": "shop"}}})
		}
		is := fmt.Sprint(e.request["kind"], e.request["name"], e.request["namespace"])
		if want := "map[group:example.com kind:Farm version:v1]ashop"; is != want {
			t.Errorf("the request is for %s, want %s", is, want)
		}
	})
	in := interpreter(nil, configuration("farms", s))
	n, each, ok, err := in.Replicas(farmOf(5))
	if n != 5 || !ok || err != nil || each.ResourceRequest.Cpu().String() != "100m" || each.Namespace != "shop" {
		t.Errorf("replicas: %d %+v %v %v", n, each, ok, err)
	}
	if all, ok, err := in.Components(farmOf(5)); err != nil || !ok || len(all) != 1 || all[0].Name != "coop" || all[0].Replicas != 2 {
		t.Errorf("components: %+v %v %v", all, ok, err)
	}
	revised := farmOf(5)
	if err := in.Revise(revised, 7); err != nil || cmp.Diff(farmOf(7).Object, revised.Object) != "" {
		t.Errorf("revise: %v %v", revised.Object, err)
	}
	observed := farmOf(5)
	observed.Object["spec"].(map[string]any)["door"] = "open"
	if out, err := in.Retain(farmOf(5), observed); err != nil || cmp.Diff(observed.Object, out.Object) != "" {
		t.Errorf("retain: %v %v", out, err)
	}
	items := []workv1alpha2.AggregatedStatusItem{{ClusterName: "m1", Status: &runtime.RawExtension{Raw: []byte(`{"eggs":1}`)}}, {ClusterName: "m2"}}
	status, err := in.AggregateStatus(farmOf(5), items)
	if diff := cmp.Diff(map[string]any{"clusters": int64(2)}, status); diff != "" || err != nil {
		t.Errorf("aggregate: %v\n%s", err, diff)
	}
	if raw, err := in.ReflectStatus(farmOf(5)); err != nil || string(raw.Raw) != `{"eggs":9007199254740993}` {
		t.Errorf("reflect: %s %v", raw, err)
	}
	if health, err := in.Health(farmOf(5)); health != workv1alpha2.ResourceUnhealthy || err != nil {
		t.Errorf("health: %s %v", health, err)
	}
	refs, err := in.Dependencies(farmOf(5))
	if diff := cmp.Diff([]kinds.DependentReference{{APIVersion: "v1", Kind: "Secret", Name: "key", Namespace: "shop"}}, refs); diff != "" || err != nil {
		t.Errorf("dependencies: %v\n%s", err, diff)
	}
}

// A response that is none is an error with the names of configuration, webhook and operation, and
// changes nothing.
func TestWebhookThatLies(t *testing.T) {
	revise := func(in *kinds.Interpreter) error {
		obj := farmOf(5)
		err := in.Revise(obj, 7)
		if diff := cmp.Diff(farmOf(5).Object, obj.Object); err != nil && diff != "" {
			t.Errorf("the object was changed:\n%s", diff)
		}
		return err
	}
	replicas := func(in *kinds.Interpreter) error { _, _, _, err := in.Replicas(farmOf(5)); return err }
	for name, tt := range map[string]struct {
		answer func(*exchange)
		do     func(*kinds.Interpreter) error
		want   string
	}{
		"a server error":         {func(e *exchange) { http.Error(e, "out of order", http.StatusServiceUnavailable) }, replicas, "the webhook answers 503 Service Unavailable: out of order"},
		"another page":           {func(e *exchange) { e.Header().Set("Location", "https://192.0.2.1/"); e.WriteHeader(http.StatusFound) }, replicas, "the webhook answers 302 Found"},
		"no JSON":                {func(e *exchange) { _, _ = e.Write([]byte("<html>")) }, replicas, "the response is no JSON"},
		"no response":            {func(e *exchange) { _, _ = e.Write([]byte(`{"request":{}}`)) }, replicas, "the response has no field response"},
		"fields of another type": {func(e *exchange) { e.respond(map[string]any{"replicas": "five"}) }, replicas, "read the response"},
		"without end": {func(e *exchange) {
			for range 4 << 10 {
				_, _ = e.Write([]byte(strings.Repeat(" ", 1024)))
			}
		}, replicas, "the response has more than 3145728 bytes"},
		"another request": {func(e *exchange) { e.respond(map[string]any{"uid": "x", "replicas": 1}) }, replicas, "the response is to another request"},
		"a refusal": {func(e *exchange) {
			e.respond(map[string]any{"successful": false, "status": map[string]any{"code": 400, "message": "no hens"}})
		}, replicas, "read the replicas of Farm shop/a: rule InterpretReplica of ResourceInterpreterWebhookConfiguration farms (webhook hook.example.com): the webhook reports code 400: no hens"},
		"no replicas":       {func(e *exchange) { e.respond(nil) }, replicas, "response.replicas is -1, which is no number of replicas"},
		"negative replicas": {func(e *exchange) { e.respond(map[string]any{"replicas": -3}) }, replicas, "response.replicas is -3"},
		"too many replicas": {func(e *exchange) { e.respond(map[string]any{"replicas": 1 << 40}) }, replicas, "which is no number of replicas"},
		"components without a name": {func(e *exchange) { e.respond(map[string]any{"components": []any{map[string]any{"replicas": 1}}}) }, func(in *kinds.Interpreter) error {
			_, _, err := in.Components(farmOf(5))
			return err
		}, "needs a name of its own"},
		"no health":                {func(e *exchange) { e.respond(nil) }, func(in *kinds.Interpreter) error { _, err := in.Health(farmOf(5)); return err }, "response.healthy is missing"},
		"no status":                {func(e *exchange) { e.respond(nil) }, func(in *kinds.Interpreter) error { _, err := in.ReflectStatus(farmOf(5)); return err }, "response.rawStatus is missing"},
		"a dependency of no kind":  {func(e *exchange) { e.respond(map[string]any{"dependencies": []any{map[string]any{"name": "a"}}}) }, func(in *kinds.Interpreter) error { _, err := in.Dependencies(farmOf(5)); return err }, "needs apiVersion, kind"},
		"a patch of another type":  {func(e *exchange) { e.respond(map[string]any{"patchType": "MergePatch", "patch": []byte(`{}`)}) }, revise, `response.patchType is "MergePatch", want JSONPatch`},
		"a patch that is none":     {func(e *exchange) { e.patch(`{"spec":1}`) }, revise, "response.patch is no JSON patch"},
		"a patch of other objects": {func(e *exchange) { e.patch(`[{"op":"remove","path":"/spec/cows"}]`) }, revise, "response.patch does not apply"},
		"another kind":             {func(e *exchange) { e.patch(`[{"op":"replace","path":"/kind","value":"Secret"}]`) }, revise, "kind cannot be changed"},
		"another namespace":        {func(e *exchange) { e.patch(`[{"op":"remove","path":"/metadata/namespace"}]`) }, revise, "metadata.namespace cannot be changed"},
		"no object":                {func(e *exchange) { e.patch(`[{"op":"replace","path":"","value":[]}]`) }, revise, "response.patch"},
		"a patch that doubles": {func(e *exchange) {
			e.patch(`[{"op":"add","path":"/spec/x","value":{}}` + strings.Repeat(`,{"op":"copy","from":"/spec","path":"/spec/x/y"},{"op":"copy","from":"/spec","path":"/spec/x/z"}`, 40) + `]`)
		}, revise, "response.patch does not apply"},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.do(interpreter(nil, configuration("farms", newServer(t, tt.answer))))
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "ResourceInterpreterWebhookConfiguration farms (webhook hook.example.com)") {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}

// FuzzWebhook: no response panics or changes the identity of the object.
func FuzzWebhook(f *testing.F) {
	for _, seed := range []string{
		`{"patchType":"JSONPatch","patch":"W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL3NwZWMifV0="}`, `{"replicas":1,"replicaRequirements":{"resourceRequest":{"cpu":"x"}}}`,
		`{"components":[{"name":"a","replicas":1.5}]}`, `{"dependencies":[null]}`, `{"rawStatus":[]}`, `{"healthy":"true","status":null}`,
	} {
		f.Add([]byte(seed))
	}
	var answer []byte
	s := newServer(f, func(e *exchange) {
		var fields map[string]any
		if json.Unmarshal(answer, &fields) != nil {
			_, _ = e.Write(answer)
			return
		}
		e.respond(fields)
	})
	in := interpreter(nil, configuration("farms", s))
	f.Fuzz(func(t *testing.T, text []byte) {
		answer = text
		obj := farmOf(5)
		if err := in.Revise(obj, 1); err != nil && cmp.Diff(farmOf(5).Object, obj.Object) != "" {
			t.Errorf("%v, and the object is %v", err, obj.Object)
		}
		if obj.GetName() != "a" || obj.GetNamespace() != "shop" || obj.GetKind() != "Farm" {
			t.Errorf("another object: %v", obj.Object)
		}
		_, _, _, _ = in.Replicas(farmOf(5)) // that these return is the test
		_, _, _ = in.Components(farmOf(5))
		_, _ = in.Health(farmOf(5))
		_, _ = in.ReflectStatus(farmOf(5))
		_, _ = in.Dependencies(farmOf(5))
		_, _ = in.AggregateStatus(farmOf(5), nil)
	})
}

// A response without a patch changes nothing, and is no error.
func TestWebhookWithoutPatch(t *testing.T) {
	in := interpreter(nil, configuration("farms", newServer(t, func(e *exchange) { e.respond(nil) })))
	obj := farmOf(5)
	if err := in.Revise(obj, 7); err != nil || cmp.Diff(farmOf(5).Object, obj.Object) != "" {
		t.Errorf("%v %v", obj.Object, err)
	}
	obj.Object["status"] = map[string]any{"eggs": int64(1)}
	if status, err := in.AggregateStatus(obj, nil); err != nil || cmp.Diff(obj.Object["status"], any(status)) != "" {
		t.Errorf("%v %v", status, err)
	}
}

// A call ends with its timeout. Then calls fail at once for as long, and the webhook is called
// again.
func TestWebhookThatHangs(t *testing.T) {
	var calls, hangs atomic.Int32
	ended := make(chan struct{})
	hangs.Store(1)
	s := newServer(t, func(e *exchange) {
		calls.Add(1)
		if hangs.Load() == 1 {
			<-ended
			return
		}
		e.respond(map[string]any{"healthy": true})
	})
	t.Cleanup(func() { close(ended) })
	c := configuration("farms", s)
	c.Webhooks[0].TimeoutSeconds = ptr.To[int32](2)
	in := interpreter(nil, c)
	health, first := in.Health(farmOf(5))
	if health != workv1alpha2.ResourceUnknown || first == nil || !strings.Contains(first.Error(), "context deadline exceeded") {
		t.Fatalf("%s %v", health, first)
	}
	if _, again := in.Health(farmOf(5)); again == nil || again.Error() != first.Error() || calls.Load() != 1 {
		t.Errorf("after %d calls: %v, want the error of the first: %v", calls.Load(), again, first)
	}
	hangs.Store(0)
	await.True(t, "it is called again", func() bool {
		health, err := in.Health(farmOf(5))
		return health == workv1alpha2.ResourceHealthy && err == nil
	})
}

// The error of a webhook that does not answer is the same each time: conditions show it.
func TestWebhookAway(t *testing.T) {
	away, foreign := newServer(t, nil), newServer(t, nil)
	in := interpreter(nil, configuration("farms", away))
	away.Close()
	_, first := in.Health(farmOf(5))
	_, second := in.Health(farmOf(5))
	if first == nil || !strings.Contains(first.Error(), "connection refused") || second == nil || first.Error() != second.Error() {
		t.Errorf("%v, then %v", first, second)
	}
	for name, authority := range map[string][]byte{"another authority": bundle(away), "the system's authorities": nil} {
		c := configuration("farms", foreign)
		c.Webhooks[0].ClientConfig.CABundle = authority
		if _, err := interpreter(nil, c).Health(farmOf(5)); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if http.DefaultClient.CheckRedirect != nil {
		t.Error("the client of the whole process was changed")
	}
}

// A webhook that cannot be called as it is configured is an error for its objects, not the default.
func TestWebhookThatIsInvalid(t *testing.T) {
	s := newServer(t, nil)
	service := &admissionregistrationv1.ServiceReference{Namespace: "shop", Name: "hook"}
	for want, change := range map[string]func(*configv1alpha1.ResourceInterpreterWebhook){
		`clientConfig.url is "http://a/b": it has to be https`: func(w *configv1alpha1.ResourceInterpreterWebhook) { w.ClientConfig.URL = ptr.To("http://a/b") },
		`clientConfig.url is "https:///b"`:                     func(w *configv1alpha1.ResourceInterpreterWebhook) { w.ClientConfig.URL = ptr.To("https:///b") },
		"clientConfig needs url or service":                    func(w *configv1alpha1.ResourceInterpreterWebhook) { w.ClientConfig.URL = nil },
		"use clientConfig.url":                                 func(w *configv1alpha1.ResourceInterpreterWebhook) { w.ClientConfig.Service = service },
		"interpreterContextVersions are [v2]: add v1alpha1":    func(w *configv1alpha1.ResourceInterpreterWebhook) { w.InterpreterContextVersions = []string{"v2"} },
		"clientConfig: unable to load root certificates":       func(w *configv1alpha1.ResourceInterpreterWebhook) { w.ClientConfig.CABundle = []byte("x") },
	} {
		c := configuration("farms", s)
		change(&c.Webhooks[0])
		verdicts := new(hookSet).set(kinds.NewCustom(), []configv1alpha1.ResourceInterpreterWebhookConfiguration{c})
		if is := fmt.Sprint(verdicts["farms"].Invalid); !strings.Contains(is, "webhook hook.example.com: ") || !strings.Contains(is, want) {
			t.Errorf("%s, want %q", is, want)
		}
		if _, err := interpreter(nil, c).Health(farmOf(5)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// services are those of the hub.
type services struct {
	client.Reader
	all map[string]corev1.ServiceSpec
}

func (s services) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	spec, there := s.all[key.String()]
	if !there {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, key.Name)
	}
	into.(*corev1.Service).Spec = spec
	return nil
}

func TestWebhookOfService(t *testing.T) {
	s := newServer(t, func(e *exchange) { e.respond(map[string]any{"healthy": true}) })
	port := int32(s.Listener.Addr().(*net.TCPAddr).Port)
	for name, tt := range map[string]struct {
		all  map[string]corev1.ServiceSpec
		want string // "": it answers
	}{
		"a cluster IP":     {map[string]corev1.ServiceSpec{"shop/hook": {ClusterIP: "127.0.0.1"}}, ""},
		"an external name": {map[string]corev1.ServiceSpec{"shop/hook": {Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"}}, ""},
		"headless":         {map[string]corev1.ServiceSpec{"shop/hook": {ClusterIP: "None"}}, "the Service shop/hook has no cluster IP"},
		"none":             {nil, "lookup hook.shop.svc"},
	} {
		c := configuration("farms", s)
		c.Webhooks[0].ClientConfig.URL = nil
		c.Webhooks[0].ClientConfig.Service = &admissionregistrationv1.ServiceReference{Namespace: "shop", Name: "hook", Path: ptr.To("/farms"), Port: &port}
		health, err := interpreter(services{all: tt.all}, c).Health(farmOf(5))
		if tt.want == "" && (err != nil || health != workv1alpha2.ResourceHealthy) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %s %v, want %q", name, health, err, tt.want)
		}
	}
}

// KindRules and customizations precede webhooks, of which the first by name is called, and those
// precede what is built in: each operation by itself. A change names the kinds for which it is one.
func TestWhichWebhookIsCalled(t *testing.T) {
	answers := func(n int) *httptest.Server {
		return newServer(t, func(e *exchange) { e.respond(map[string]any{"replicas": n, "healthy": true}) })
	}
	first, second := configuration("a", answers(1)), configuration("b", answers(2))
	second.Webhooks[0].Rules[0].Kinds = []string{"Farm", "RayCluster"}
	second.Webhooks[0].Rules[0].APIGroups = []string{"*"}
	first.Webhooks[0].Rules[0].Operations = []configv1alpha1.InterpreterOperation{"InterpretReplica"}
	second.Webhooks[0].Rules[0].Operations = []configv1alpha1.InterpreterOperation{"InterpretReplica", "InterpretHealth"}
	custom := kinds.NewCustom()
	custom.Set(nil)
	in := custom.Interpreter()
	var changed []string
	in.Follow(t.Context(), func(of func(schema.GroupVersionKind) bool) {
		changed = nil
		for _, kind := range []string{"Farm", "Field", "RayCluster"} {
			if of(schema.GroupVersionKind{Group: "ray.io", Version: "v1", Kind: kind}) {
				changed = append(changed, kind)
			}
		}
	})
	replicas := func(obj *unstructured.Unstructured) int32 {
		n, _, _, err := in.Replicas(obj)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	var hooks hookSet
	hooks.set(custom, []configv1alpha1.ResourceInterpreterWebhookConfiguration{second, first})
	if diff := cmp.Diff([]string{"Farm", "RayCluster"}, changed); diff != "" {
		t.Errorf("changed kinds:\n%s", diff)
	}
	ray := farmOf(5)
	ray.SetAPIVersion("ray.io/v1")
	ray.SetKind("RayCluster")
	if n := replicas(farmOf(5)); n != 1 {
		t.Errorf("%d replicas of a Farm, want the 1 of the first", n)
	}
	if _, ok, err := in.Components(ray); ok || err != nil || replicas(ray) != 2 {
		t.Errorf("a RayCluster with a webhook for its replicas has components: %v %v", ok, err)
	}
	if health, err := in.Health(farmOf(5)); health != workv1alpha2.ResourceHealthy || err != nil {
		t.Errorf("the health of a Farm is that of the second: %s %v", health, err)
	}
	custom.Set([]pelagov1alpha1.KindRules{{ObjectMeta: metav1.ObjectMeta{Name: "farms"}, Spec: pelagov1alpha1.KindRulesSpec{
		Kinds: []pelagov1alpha1.RuledKind{{APIVersion: "example.com/v1", Kind: "Farm"}}, Rules: pelagov1alpha1.Rules{Replicas: "object.spec.hens"}}}})
	if n := replicas(farmOf(5)); n != 5 {
		t.Errorf("%d replicas of a Farm with KindRules, want 5", n)
	}
	custom.Set(nil)
	changed = nil
	hooks.set(custom, []configv1alpha1.ResourceInterpreterWebhookConfiguration{first, second})
	if changed != nil {
		t.Errorf("nothing has changed: %v", changed)
	}
	first.Generation, first.Webhooks = 2, nil
	hooks.set(custom, []configv1alpha1.ResourceInterpreterWebhookConfiguration{first, second})
	if n := replicas(farmOf(5)); n != 2 {
		t.Errorf("%d replicas of a Farm, want the 2 of the second", n)
	}
	hooks.set(custom, nil)
	if _, _, ok, err := in.Replicas(farmOf(5)); ok || err != nil {
		t.Errorf("without webhooks: %v %v", ok, err)
	}
}
