package hub

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
	"github.com/pelago-net/pelago/test/apiserver"
)

var update = flag.Bool("update", false, "write the golden files")

var server = apiserver.NewShared()

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

var hostedVariants = map[string]spec.Hub{
	"three": {Namespace: "hub", EtcdReplicas: 3, StorageClass: "fast", StorageSize: "20Gi", ServiceType: "LoadBalancer", KarmadaTools: true,
		ImageRegistry: "mirror.example/k8s/", Image: "mirror.example/pelago:1", Placement: spec.Placement{PullSecrets: []string{"mirror"},
			NodeSelector: map[string]string{"pool": "infra"}, Tolerations: []corev1.Toleration{{Key: "infra", Operator: corev1.TolerationOpExists}}}},
	"one": {Namespace: "hub", EtcdReplicas: 1, StorageSize: "10Gi", ServiceType: "NodePort", NodePort: 30443, EtcdHostPath: "/data", EtcdNode: "n1",
		EtcdImage: "localhost/kube:dev"},
	"trial": {Namespace: "hub", EtcdReplicas: 1, StorageSize: "10Gi", ServiceType: "ClusterIP", EtcdEmptyDir: true},
}

// TestHostedManifests compares what `pelago init --host-context --dry-run` prints.
func TestHostedManifests(t *testing.T) {
	stages, err := Manifests(hostedVariants["three"])
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, u := range slices.Concat(stages...) {
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "---\n%s", text)
	}
	golden(t, "hosted.yaml", got.Bytes())
	o := Machine{Dir: "/srv/hub", Address: "192.0.2.7", Port: 6443}
	processes, audit, err := o.Processes()
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(map[string]any{"processes": processes, "audit": audit})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "local.yaml", text)
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s: -want +got (write it with -update)\n%s", name, diff)
	}
}

// TestRestoreExchanges runs the script by which a restore exchanges the data: those from before its
// first attempt stay.
func TestRestoreExchanges(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o700), os.WriteFile(filepath.Join(dir, name, "data"), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name, "data"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return string(text)
	}
	run := func(restore, restored, former string) {
		t.Helper()
		pod, err := RestorePod(hostedVariants["one"], 0, restore)
		if err != nil {
			t.Fatal(err)
		}
		write("restored", restored)
		command := slices.Clone(pod.Spec.Containers[0].Command)
		command[2] = strings.ReplaceAll(command[2], "/var/lib/pelago", dir)
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if read("etcd") != restored || read("former/etcd") != former {
			t.Errorf("restore %s: data %q, former data %q; want %q and %q", restore, read("etcd"), read("former/etcd"), restored, former)
		}
	}
	run("first", "a", "") // into an empty volume
	run("first", "b", "")
	write("former", "of an older version, which had the data there")
	run("second", "c", "b")
	run("second", "d", "b")
	if read("former") != "" {
		t.Error("the data of a former restore stay")
	}
	run("third", "e", "d")
}

// TestHostedApplyAndRemove: an API server accepts all fields, applying again changes nothing, and
// removal takes what has the label, data and keys with purge only.
func TestHostedApplyAndRemove(t *testing.T) {
	c, err := manifests.NewClient(server.Config(t))
	check(t, err)
	ctx := t.Context()
	for name, o := range hostedVariants {
		o.Namespace = "hub-" + name
		create := func(objs ...client.Object) {
			t.Helper()
			for _, obj := range objs {
				if err := c.Create(ctx, obj); err != nil {
					t.Fatal(err)
				}
			}
		}
		labels := map[string]string{HostedLabel: HostedValue}
		meta := func(name string, labels map[string]string) metav1.ObjectMeta {
			return metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: labels}
		}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("data-pelago-hub-etcd-0", labels), Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}}
		claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		ca, former, foreign := &corev1.Secret{ObjectMeta: meta(HostedCA, labels)}, &corev1.Secret{ObjectMeta: meta(HostedFormerCA, labels)}, &corev1.Secret{ObjectMeta: meta("foreign", nil)}
		create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace}}, claim, ca, former, foreign, &corev1.Secret{ObjectMeta: meta(HostedPKI, labels)})

		stages, err := Manifests(o)
		if err != nil {
			t.Fatal(err)
		}
		all := slices.Concat(stages...)
		versions := func() map[string]string {
			out := map[string]string{}
			for _, u := range all {
				have := u.DeepCopy()
				if err := c.Get(ctx, client.ObjectKeyFromObject(u), have); err != nil {
					t.Fatal(err)
				}
				out[u.GetKind()+" "+u.GetName()] = have.GetResourceVersion()
			}
			return out
		}
		apply := func() {
			t.Helper()
			for _, u := range all {
				if err := ApplyHosted(ctx, c, []*unstructured.Unstructured{u.DeepCopy()}); err != nil {
					t.Fatal(err)
				}
			}
		}
		apply()
		first := versions()
		apply()
		if diff := cmp.Diff(first, versions()); diff != "" {
			t.Errorf("%s: applied again: -first +second\n%s", name, diff)
		}
		pod, err := RestorePod(o, 0, "first")
		if err != nil {
			t.Fatal(err)
		}
		create(pod)

		exists := func(obj client.Object) bool {
			err := c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
			if client.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			return err == nil && obj.GetDeletionTimestamp() == nil
		}
		for _, purge := range []bool{false, true} {
			if err := RemoveHosted(ctx, c, o.Namespace, purge); err != nil {
				t.Fatal(err)
			}
			for _, u := range all {
				if exists(u.DeepCopy()) {
					t.Errorf("%s: %s %s stays", name, u.GetKind(), u.GetName())
				}
			}
			if !exists(foreign) {
				t.Errorf("%s: a Secret without the label is gone", name)
			}
			if exists(claim) == purge || exists(ca) == purge || exists(former) == purge {
				t.Errorf("%s: with purge %v: the claim exists: %v, the authorities: %v", name, purge, exists(claim), exists(ca))
			}
		}
	}
}
