package manifests

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/test/apiserver"
)

// One API server is hub and member at once, as small clustersets have it.
var server = apiserver.NewShared(apiserver.HubControllers())

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func open(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// install runs everything that init, deploy-broker and join run.
func install(t *testing.T, cfg *rest.Config, o MemberOptions) {
	t.Helper()
	ctx := context.Background()
	if err := Propagation(ctx, open(t, cfg), PropagationOptions{Workloads: true}, t.Logf); err != nil {
		t.Fatal(err)
	}
	if err := HubBase(ctx, open(t, cfg), t.Logf); err != nil {
		t.Fatal(err)
	}
	book := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "submariner-globalnet-info", Namespace: BrokerNamespace},
		Data: map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": "120.0.0.0/8"}}
	clusterset := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "pelago-clusterset", Namespace: BrokerNamespace}}
	for _, cm := range []*corev1.ConfigMap{book, clusterset} {
		if err := open(t, cfg).Create(ctx, cm); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	if err := Hub(ctx, open(t, cfg), t.Logf); err != nil {
		t.Fatal(err)
	}
	if err := MemberBase(ctx, open(t, cfg), t.Logf); err != nil {
		t.Fatal(err)
	}
	if err := Member(ctx, open(t, cfg), o, t.Logf); err != nil {
		t.Fatal(err)
	}
	if err := Execution(ctx, open(t, cfg), o, t.Logf); err != nil {
		t.Fatal(err)
	}
}

// installed are all objects that install writes.
func installed(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, read := range []func() ([]*unstructured.Unstructured, error){
		HubCRDs, MemberCRDs, HubObjects, func() ([]*unstructured.Unstructured, error) { return MemberObjects(MemberOptions{}) },
		PropagationCRDs, PropagationOptions{Workloads: true}.objects, func() ([]*unstructured.Unstructured,
			error) {
			return ExecutionObjects(MemberOptions{})
		},
	} {
		objs, err := read()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, objs...)
	}
	return all
}

func TestInstallingAgainChangesNothing(t *testing.T) {
	cfg := server.Config(t)
	c := open(t, cfg)
	state := func() map[string]any {
		out := map[string]any{}
		for _, u := range installed(t) {
			have := &unstructured.Unstructured{}
			have.SetGroupVersionKind(u.GroupVersionKind())
			if err := c.Get(context.Background(), client.ObjectKeyFromObject(u), have); err != nil {
				t.Fatal(err)
			}
			// Others write the status, and with it the version.
			delete(have.Object, "status")
			have.SetResourceVersion("")
			have.SetManagedFields(nil)
			out[u.GetKind()+" "+name(u)] = have.Object
		}
		return out
	}
	install(t, cfg, MemberOptions{})
	first := state()
	install(t, cfg, MemberOptions{})
	if diff := cmp.Diff(first, state()); diff != "" {
		t.Errorf("the second installation changed objects: -first +second\n%s", diff)
	}
}

// The API server finds no expression of a policy that does not fit the kind it is about.
func TestPoliciesAreWellTyped(t *testing.T) {
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	list := &admissionv1.ValidatingAdmissionPolicyList{}
	if err := open(t, cfg).List(context.Background(), list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 {
		t.Error("no policies")
	}
	for _, p := range list.Items {
		if p.Status.TypeChecking == nil {
			continue // not reached yet; the canary has shown that it works
		}
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			// The controller read before the schema of the CRD of its parameters was
			// published; it does not read again.
			if p.Spec.ParamKind != nil && strings.Contains(w.Warning, "undeclared reference to 'params'") {
				continue
			}
			t.Errorf("%s: %s: %s", p.Name, w.FieldRef, w.Warning)
		}
	}
}

// Every policy is seen to refuse before rights are given, but those that have nothing to refuse
// yet.
func TestEveryPolicyHasACanary(t *testing.T) {
	compares := []string{"pelago-clusters-disjoint", "pelago-clusters-hub", "pelago-clusters-underlay", "pelago-clusters-needed",
		"pelago-member-clusters-uid",
		"pelago-endpoint-keys", "pelago-member-clustersetips"}
	for _, tt := range []struct {
		objects func() ([]*unstructured.Unstructured, error)
		tried   map[string]func(context.Context) error
	}{
		{HubObjects, brokerCanaries(nil)},
		{PropagationOptions{}.objects, propagationCanaries(nil)},
	} {
		objs, err := tt.objects()
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range split(objs).policies {
			if _, ok := tt.tried[u.GetName()]; !ok && !slices.Contains(compares, u.GetName()) {
				t.Errorf("%s has no canary", u.GetName())
			}
		}
	}
}

// Server-side apply refuses what the schema does not know, so a misspelt field cannot be installed.
func TestUnknownFieldIsRefused(t *testing.T) {
	objs, err := MemberObjects(MemberOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Config(t)
	install(t, cfg, MemberOptions{})
	for _, u := range objs {
		if u.GetKind() != "DaemonSet" {
			continue
		}
		if err := unstructured.SetNestedField(u.Object, "x", "spec", "template", "spec", "hostNetwrok"); err != nil {
			t.Fatal(err)
		}
		if err := Apply(context.Background(), open(t, cfg), u); err == nil || !strings.Contains(err.Error(), "hostNetwrok") {
			t.Errorf("a misspelt field: %v", err)
		}
	}
}

func TestImage(t *testing.T) {
	for name, tt := range map[string]struct {
		options             MemberOptions
		wantImage, wantPull string
	}{
		"default": {MemberOptions{}, "localhost/pelago:dev", "IfNotPresent"},
		"given":   {MemberOptions{Image: "registry.example:5000/pelago@sha256:0123", PullPolicy: "Never"}, "registry.example:5000/pelago@sha256:0123", "Never"},
		"hostile": {MemberOptions{Image: "x\n  privileged: true # \""}, "x\n  privileged: true # \"", "IfNotPresent"},
	} {
		t.Run(name, func(t *testing.T) {
			objs, err := MemberObjects(tt.options)
			if err != nil {
				t.Fatal(err)
			}
			execution, err := ExecutionObjects(tt.options)
			if err != nil {
				t.Fatal(err)
			}
			hub, err := PropagationOptions{Workloads: true, MemberOptions: tt.options}.objects()
			if err != nil {
				t.Fatal(err)
			}
			objs = slices.Concat(objs, execution, hub)
			n := 0
			for _, u := range objs {
				containers, ok, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
				if err != nil || !ok {
					continue
				}
				n++
				container := containers[0].(map[string]any)
				if container["image"] != tt.wantImage || container["imagePullPolicy"] != tt.wantPull {
					t.Errorf("%s: image %q, pull policy %q", u.GetName(), container["image"], container["imagePullPolicy"])
				}
				if container["name"] != u.GetName() {
					t.Errorf("%s: its container is called %s", u.GetName(), container["name"])
				}
			}
			if n != 5 {
				t.Errorf("%d workloads, want 5", n)
			}
		})
	}
}

// The IKE daemon's container is there for the cable driver libreswan only, has no more rights than
// it needs, and shares one directory with the node daemon.
func TestContainerOfTheIKEDaemon(t *testing.T) {
	shared := corev1.VolumeMount{Name: "ike", MountPath: "/run/pelago-ike"}
	for with, want := range map[bool][]string{false: {"pelago-node"}, true: {"pelago-node", "ike"}} {
		objs, err := MemberObjects(MemberOptions{Image: "image", IKE: with})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(objs, func(u *unstructured.Unstructured) bool { return u.GetKind() == "DaemonSet" })
		var d appsv1.DaemonSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objs[i].Object, &d, true); err != nil {
			t.Fatal(err)
		}
		pod := d.Spec.Template.Spec
		var got []string
		for _, c := range pod.Containers {
			got = append(got, c.Name)
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return cmp.Equal(m, shared) }) != with || c.Image != "image" {
				t.Errorf("with IKE daemon: %t: container %s has the image %s and the mounts %v", with, c.Name, c.Image, c.VolumeMounts)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("containers -want +got\n%s", diff)
		}
		if with {
			rights := pod.Containers[1].SecurityContext
			want := &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_BIND_SERVICE", "SYS_NICE"}}
			if diff := cmp.Diff(want, rights.Capabilities); diff != "" || rights.Privileged != nil {
				t.Errorf("privileged %v, capabilities -want +got\n%s", rights.Privileged, diff)
			}
			if !slices.ContainsFunc(pod.Containers[1].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/var/run/secrets/kubernetes.io/serviceaccount" }) {
				t.Error("it gets the node daemon's token of the API server")
			}
		}
	}
}

// TestIsDefault: the image that an installation ran because none was named is no choice of a
// user's, also when the next one is of a release.
func TestIsDefault(t *testing.T) {
	build := DefaultImage
	defer func() { DefaultImage = build }()
	for _, tt := range []struct {
		of, image string
		want      bool
	}{
		{devImage, "localhost/pelago:dev", true},
		{devImage, "localhost/pelago", true},
		{devImage, "registry.example:5000/pelago:v1", false},
		{"registry.example:5000/pelago:v2", "localhost/pelago:dev", true},
		{"registry.example:5000/pelago:v2", "registry.example:5000/pelago:v1@sha256:00", true},
		{"registry.example:5000/pelago@sha256:00", "registry.example:5000/pelago", true},
		{"registry.example:5000/pelago:v2", "mirror.example/pelago:v2", false},
		{"registry.example:5000/pelago:v2", "pelago", false},
	} {
		if DefaultImage = tt.of; IsDefault(tt.image) != tt.want {
			t.Errorf("default %s: %s is one: %t, want %t", tt.of, tt.image, !tt.want, tt.want)
		}
	}
}
