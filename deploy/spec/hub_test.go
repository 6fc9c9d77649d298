package spec

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// TestHubFields: each field of a Hub has a value that is refused with the field's path, or takes
// any value.
func TestHubFields(t *testing.T) {
	wrong := map[string]func(*Hub){
		"spec.namespace":        func(h *Hub) { h.Namespace = "A B" },
		"spec.etcdReplicas":     func(h *Hub) { h.EtcdReplicas = 2 },
		"spec.storageClass":     func(h *Hub) { h.StorageClass, h.EtcdHostPath, h.EtcdNode = "fast", "/data", "n1" },
		"spec.storageSize":      func(h *Hub) { h.StorageSize = "much" },
		"spec.etcdEmptyDir":     func(h *Hub) { h.StorageClass, h.EtcdEmptyDir = "fast", true },
		"spec.etcdHostPath":     func(h *Hub) { h.EtcdHostPath = "/data" },
		"spec.etcdNode":         func(h *Hub) { h.EtcdNode = "n1" },
		"spec.serviceType":      func(h *Hub) { h.ServiceType = "ExternalName" },
		"spec.nodePort":         func(h *Hub) { h.NodePort = 65536 },
		"spec.apiAddress":       func(h *Hub) { h.APIAddress = "https://hub.example.org" },
		"spec.imagePullPolicy":  func(h *Hub) { h.PullPolicy = "Sometimes" },
		"spec.imagePullSecrets": func(h *Hub) { h.PullSecrets = []string{"A B"} },
		"spec.nodeSelector":     func(h *Hub) { h.NodeSelector = map[string]string{"a b": ""} },
		"spec.tolerations":      func(h *Hub) { h.Tolerations = []corev1.Toleration{{Key: "a b"}} },
	}
	any := []string{"spec.karmadaTools", "spec.image", "spec.imageRegistry", "spec.etcdImage", "spec.kubeAPIServerImage", "spec.kubeControllerManagerImage"}
	var paths []string
	for _, f := range fields(reflect.ValueOf(Hub{})) {
		paths = append(paths, f.path)
		if f.tag.Get("flag") == "" {
			t.Errorf("%s has no flag", f.path)
		}
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(paths)), slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(wrong)), any...)))); diff != "" {
		t.Errorf("fields: -have +tested\n%s", diff)
	}
	if list := DefaultHub().Validate(); len(list) > 0 {
		t.Errorf("the default: %v", list)
	}
	for path, change := range wrong {
		h := DefaultHub()
		change(&h)
		list := h.Validate()
		if !slices.ContainsFunc(list, func(e *field.Error) bool { return e.Field == path }) {
			t.Errorf("%s: %v", path, list)
		}
	}
}

// earlierSettings are what earlier releases have stored of an init with all flags.
var earlierSettings = map[string]string{
	"etcd-replicas": "3", "storage-class": "fast", "storage-size": "20Gi", "service-type": "LoadBalancer", "node-port": "30443",
	"api-address": "hub.example.org:443", "image": "registry.example/pelago:1", "image-pull-policy": "Always", "image-pull-secret": "mirror,second",
	"node-selector": "pool=infra,zone=a", "toleration": "infra,spot=yes:NoSchedule", "image-registry": "mirror.example", "etcd-image": "e:3.6.4",
	"kube-apiserver-image": "a:v1.34.4", "kube-controller-manager-image": "c:v1.34.4",
}

func TestHubSettings(t *testing.T) {
	for name, tt := range map[string]map[string]string{
		"all": earlierSettings, "none": {}, "a directory": {"etcd-host-path": "/data", "etcd-node": "n1"}, "a trial": {"etcd-empty-dir": "true"},
	} {
		h, err := SettingsHub("hub", tt)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt, h.Settings()); diff != "" || h.Namespace != "hub" {
			t.Errorf("%s, namespace %s: -earlier +now\n%s", name, h.Namespace, diff)
		}
		var given Hub
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		flags := given.AddFlags(f)
		for flag, value := range tt {
			if err := f.Set(flag, value); err != nil {
				t.Fatal(err)
			}
		}
		if err := Join(flags.Read()); err != nil {
			t.Fatal(err)
		}
		if given.Namespace = "hub"; !cmp.Equal(given, h) {
			t.Errorf("%s: the flags make another hub: -flags +settings\n%s", name, cmp.Diff(given, h))
		}
	}
	if _, err := SettingsHub("hub", map[string]string{"etcd-replicas": "many"}); err == nil || !strings.Contains(err.Error(), "keep --etcd-replicas many") {
		t.Errorf("settings that are damaged: %v", err)
	}
	if h, err := SettingsHub("hub", map[string]string{"of-another-version": "x"}); err != nil || !cmp.Equal(h.Settings(), map[string]string{}) {
		t.Errorf("a setting of another version: %v, %v", h.Settings(), err)
	}
}

// TestReleaseReplacesDevelopmentImage: what a build without a release has stored or run because no
// image was named is no choice of a user's.
func TestReleaseReplacesDevelopmentImage(t *testing.T) {
	const release = "registry.example/pelago:v2"
	build := manifests.DefaultImage
	defer func() { manifests.DefaultImage = build }()
	manifests.DefaultImage = release
	for stored, want := range map[string]string{build: release, "registry.example/pelago:v1": release, "mirror.example/pelago:v1": "mirror.example/pelago:v1"} {
		h, err := SettingsHub("hub", map[string]string{"image": stored})
		if err != nil || h.Image != want {
			t.Errorf("a hub with image %s gets %s (%v), want %s", stored, h.Image, err, want)
		}
		m := DefaultMember()
		m.AddPod(corev1.PodSpec{Containers: []corev1.Container{{Image: stored}}})
		if m.Image != want {
			t.Errorf("a member that runs %s gets %s, want %s", stored, m.Image, want)
		}
	}
}

func TestHubKeepsAndFixes(t *testing.T) {
	former, err := SettingsHub("hub", earlierSettings)
	if err != nil {
		t.Fatal(err)
	}
	h := DefaultHub()
	h.Namespace, h.EtcdReplicas, h.APIServerImage = "hub", 1, "a:v1.35.0"
	given := []string{"spec.etcdReplicas", "spec.kubeAPIServerImage"}
	h.Keep(former, func(path string) bool { return slices.Contains(given, path) })
	if h.APIServerImage != "a:v1.35.0" || h.StorageClass != "fast" || h.EtcdImage != "e:3.6.4" {
		t.Errorf("kept: %+v", h)
	}
	list := h.Fixed(former)
	if len(list) != 1 || list[0].Field != "spec.etcdReplicas" || !strings.Contains(list[0].Detail, `was installed with "3", and that cannot change`) {
		t.Errorf("fixed: %v", list)
	}
}
