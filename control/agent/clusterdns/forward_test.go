package clusterdns

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var shared = apiserver.NewShared(apiserver.CRDs("serviceimports.multicluster.x-k8s.io"))

func TestMain(m *testing.M) { os.Exit(shared.Run(m)) }

// TestController walks through the life of an installation: everything that
// happens to the Corefile between install and uninstall.
func TestController(t *testing.T) {
	configMap, key := TargetOf("").ConfigMap, TargetOf("").Key
	api := shared.Config(t)
	c, err := client.New(api, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: configMap.Namespace}}); !apierrors.IsAlreadyExists(err) {
		must(err)
	}
	must(c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: service.Namespace}}))
	newService := func() *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}}},
		}
	}
	current := func() string {
		t.Helper()
		var cm corev1.ConfigMap
		must(c.Get(ctx, configMap, &cm))
		return cm.Data[key]
	}
	write := func(corefile string) {
		t.Helper()
		must(c.Update(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: configMap.Namespace, Name: configMap.Name},
			Data:       map[string]string{key: corefile, "other": "kept"},
		}))
	}
	// forwarded is the Corefile around the block for a Service.
	forwarded := func(s *corev1.Service, rest string) string {
		return strings.ReplaceAll(block, "10.77.0.20", s.Spec.ClusterIP) + rest
	}
	warned := func(about string) bool {
		var events corev1.EventList
		must(c.List(ctx, &events))
		for _, e := range events.Items {
			if e.Type == corev1.EventTypeWarning && e.Reason == reasonFailed && strings.Contains(e.Message, about) {
				return true
			}
		}
		return false
	}

	stop := runController(t, "")
	svc := newService()
	must(c.Create(ctx, svc))
	await.True(t, "warning that there is no ConfigMap", func() bool { return warned("configured elsewhere") })

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: configMap.Namespace, Name: configMap.Name}, Data: map[string]string{"other": "kept"}}
	must(c.Create(ctx, cm))
	await.True(t, "warning that the ConfigMap has no Corefile", func() bool { return warned("has no key Corefile") })

	write(kubeadm)
	await.True(t, "patched", func() bool { return current() == forwarded(svc, kubeadm) })
	must(c.Get(ctx, configMap, cm))
	if cm.Data["other"] != "kept" {
		t.Errorf("other keys of the ConfigMap changed: %v", cm.Data)
	}

	write("# mine\n" + kubeadm)
	await.True(t, "patched again after somebody replaced the Corefile", func() bool { return current() == forwarded(svc, "# mine\n"+kubeadm) })

	write(endMarker + "\n" + kubeadm)
	await.True(t, "warning about damaged markers", func() bool { return warned("markers are damaged") })
	if got := current(); got != endMarker+"\n"+kubeadm {
		t.Errorf("a damaged Corefile was changed to:\n%s", got)
	}
	write("#lighthouse-start\n#lighthouse-end\n" + kubeadm)
	await.True(t, "warning about Submariner's block", func() bool { return warned("Submariner's block") })

	write(kubeadm)
	await.True(t, "patched after the damage is mended", func() bool { return current() == forwarded(svc, kubeadm) })
	must(c.Delete(ctx, svc))
	await.True(t, "block gone with the Service", func() bool { return current() == kubeadm })

	headless := newService()
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	must(c.Create(ctx, headless))
	await.True(t, "warning about a headless Service", func() bool { return warned("must not be headless") })
	must(c.Delete(ctx, headless))
	svc = newService()
	must(c.Create(ctx, svc))
	await.True(t, "patched with the new Service's address", func() bool { return current() == forwarded(svc, kubeadm) })
	stop()

	custom := TargetOf(CustomName)
	runController(t, CustomName)
	await.True(t, "warning with the lines to add", func() bool { return warned(strings.TrimSpace(forwarded(svc, ""))) })
	cm = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: custom.ConfigMap.Namespace, Name: custom.ConfigMap.Name}}
	must(c.Create(ctx, cm))
	servers := func() map[string]string {
		must(c.Get(ctx, custom.ConfigMap, cm))
		return cm.Data
	}
	await.Equal(t, forwarded(svc, ""), func() string { return servers()["pelago.server"] })
	must(c.Delete(ctx, svc))
	await.True(t, "key gone with the Service", func() bool { _, ok := servers()["pelago.server"]; return !ok })
	if current() == kubeadm {
		t.Error("the Corefile was changed as well")
	}
}

// TestElsewhere: the DNS of clusters that have no ConfigMap kube-system/coredns is configured as
// well, and not reported as missing.
func TestElsewhere(t *testing.T) {
	api := apiserver.Start(t)
	scheme := runtime.NewScheme()
	c := apiserver.Connect(t, api, clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme)
	ctx := t.Context()
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: service.Namespace}})
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cms := map[string]string{}
	for _, target := range Targets("")[1:] {
		if target.stubDomains {
			continue // see TestKubeDNS
		}
		corefile := ".:53 {\n    bind 169.254.20.10\n}\n"
		c.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: target.ConfigMap.Name}, Data: map[string]string{"Corefile": corefile}})
		cms[target.ConfigMap.Name] = corefile
	}
	c.Make(&apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "dnses.operator.openshift.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: operatorKind.Group, Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: operatorKind.Kind, ListKind: "DNSList", Plural: "dnses", Singular: "dns"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: operatorKind.Version, Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}}}},
		},
	})
	operator := NewOperator()
	operator.SetName(OperatorName)
	await.True(t, "kind DNS served", func() bool { return c.Create(ctx, operator.DeepCopy()) == nil })
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}}}}
	c.Make(svc)

	apiserver.Manager{Scheme: scheme, Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
		return SetupForward(m, ForwardOptions{Zones: []string{"clusterset.local"}, Cache: time.Second})
	}}}.Run(t, api)
	corefiles := func() map[string]string {
		got := map[string]string{}
		for name := range cms {
			var cm corev1.ConfigMap
			if err := c.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, &cm); err != nil {
				t.Fatal(err)
			}
			got[name] = cm.Data["Corefile"]
		}
		return got
	}
	zones := func() string {
		if err := c.Get(ctx, client.ObjectKey{Name: OperatorName}, operator); err != nil {
			t.Fatal(err)
		}
		servers, _, err := unstructured.NestedSlice(operator.Object, "spec", "servers")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(servers)
	}
	patched := map[string]string{}
	for name, text := range cms {
		patched[name] = strings.ReplaceAll(strings.ReplaceAll(block, "10.77.0.20", svc.Spec.ClusterIP), "    forward", "    bind 169.254.20.10\n    cache 1\n    forward") + text
	}
	await.Equal(t, fmt.Sprint(patched), func() string { return fmt.Sprint(corefiles()) })
	await.Equal(t, "[map[forwardPlugin:map[upstreams:["+svc.Spec.ClusterIP+"]] name:pelago zones:[clusterset.local]]]", zones)
	var events corev1.EventList
	if err := c.List(ctx, &events); err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Reason == reasonFailed {
			t.Errorf("event on %s: %s", e.InvolvedObject.Name, e.Message)
		}
	}
	if err := c.Delete(ctx, svc); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, fmt.Sprint(cms), func() string { return fmt.Sprint(corefiles()) })
	await.Equal(t, "[]", zones)
}

// runController runs the controllers in a manager until the test ends.
func runController(t *testing.T, custom string) (stop func()) {
	t.Helper()
	return apiserver.Manager{
		Scheme: clientgoscheme.Scheme,
		Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
			return SetupForward(m, ForwardOptions{Zones: []string{"clusterset.local"}, Custom: custom})
		}},
	}.Run(t, shared.Config(t))
}

// TestKubeDNS: where there is no CoreDNS, kube-dns forwards, until there is one or the Service goes.
func TestKubeDNS(t *testing.T) {
	api := apiserver.Start(t)
	scheme := runtime.NewScheme()
	c := apiserver.Connect(t, api, clientgoscheme.AddToScheme)
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: service.Namespace}})
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "kube-dns"}, Data: map[string]string{"stubDomains": `{"acme.local":["1.2.3.4"]}`}}
	c.Make(cm)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}}}}
	c.Make(svc)
	run := func() (stop func()) {
		return apiserver.Manager{Scheme: scheme, Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
			return SetupForward(m, ForwardOptions{Zones: []string{"clusterset.local"}, Cache: time.Second})
		}}}.Run(t, api)
	}
	domains := func() string {
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); err != nil {
			t.Fatal(err)
		}
		return cm.Data["stubDomains"]
	}
	stop := run()
	forwarding := fmt.Sprintf(`{"acme.local":["1.2.3.4"],"clusterset.local":["%s"]}`, svc.Spec.ClusterIP)
	await.Equal(t, forwarding, domains)
	var events corev1.EventList
	if err := c.List(t.Context(), &events); err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Reason == reasonFailed {
			t.Errorf("Event %s: %s", e.Reason, e.Message)
		}
	}
	c.Remove(svc)
	await.Equal(t, `{"acme.local":["1.2.3.4"]}`, domains)
	stop()

	c.Make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "coredns"}, Data: map[string]string{"Corefile": kubeadm}})
	again := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}, Spec: corev1.ServiceSpec{Ports: svc.Spec.Ports}}
	again.Spec.Ports[0].NodePort = 0
	c.Make(again)
	run()
	await.True(t, "the Corefile forwards", func() bool {
		corefile := new(corev1.ConfigMap)
		if err := c.Get(t.Context(), TargetOf("").ConfigMap, corefile); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(corefile.Data["Corefile"], again.Spec.ClusterIP)
	})
	if got := domains(); got != `{"acme.local":["1.2.3.4"]}` {
		t.Errorf("beside CoreDNS kube-dns has %s", got)
	}
}
