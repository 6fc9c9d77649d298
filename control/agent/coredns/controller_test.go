package coredns

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var shared = apiserver.NewShared()

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

	stop := runController(t, TargetOf(""))
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

	custom := TargetOf("coredns-custom")
	runController(t, custom)
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

// runController runs the controller in a manager until the test ends.
func runController(t *testing.T, target Target) (stop func()) {
	t.Helper()
	return apiserver.Manager{
		Scheme: clientgoscheme.Scheme,
		Cache:  cache.Options{ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: ConfigMapCache(target)}},
		Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
			return New(m.GetClient(), m.GetEventRecorderFor("pelago-agent"), []string{"clusterset.local"}, target).SetupWithManager(m)
		}},
	}.Run(t, shared.Config(t))
}
