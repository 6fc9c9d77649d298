package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/hub"
	"github.com/pelago-net/pelago/test/apiserver"
)

// TestHosted runs init --host-context at an API server without kubelets: pods never run, so init
// ends with what is missing.
func TestHosted(t *testing.T) {
	t.Parallel()
	cfg := apiserver.Start(t)
	c := apiserver.Connect(t, cfg, appsv1.AddToScheme)
	s := clusterset{dir: t.TempDir(), hub: cfg}
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	text, err := apiserver.Kubeconfig(cfg)
	must(t, err)
	must(t, os.WriteFile(s.kubeconfig, text, 0o600))
	raw, err := clientcmd.Load(text)
	must(t, err)
	ns := "hub"
	host := []string{"--host-context", raw.CurrentContext, "--namespace", ns, "--timeout", "2s"}
	init := func(more ...string) []string { return append(append([]string{"init"}, host...), more...) }
	key := func(name string) client.ObjectKey { return client.ObjectKey{Namespace: ns, Name: name} }
	exists := func(obj client.Object, name string) bool {
		err := c.Get(t.Context(), key(name), obj)
		must(t, client.IgnoreNotFound(err))
		return err == nil
	}

	for _, tt := range []struct {
		words string
		flags []string
	}{
		{"none of the others can be", []string{"--local"}},
		{"give 1 or 3", []string{"--etcd-replicas", "2"}},
		{"give a size", []string{"--storage-size", "much"}},
		{"give both", []string{"--etcd-host-path", "/data"}},
		{"holds one member", []string{"--etcd-host-path", "/data", "--etcd-node", "n1", "--etcd-replicas", "3"}},
		{"give one of them", []string{"--etcd-empty-dir", "--storage-class", "fast"}},
		{"give --api-address", []string{"--service-type", "ClusterIP"}},
		{"without https://", []string{"--api-address", "https://hub.example.org"}},
		{"without https://", []string{"--api-address", "hub_1:6443"}},
		{"is no port", []string{"--api-address", "hub.example.org:66000"}},
		{"no name of a Secret", []string{"--image-pull-secret", "A B"}},
		{"has no default StorageClass: give --storage-class", nil},
	} {
		s.fails(t, tt.words, init(tt.flags...)...)
	}
	s.fails(t, "--dry-run has no effect without --host-context", "init", "--dry-run")
	s.fails(t, "--karmada-tools needs --host-context or --local", "init", "--karmada-tools")
	printed := s.must(t, init("--dry-run", "--etcd-replicas", "3", "--image-registry", "mirror.example")...)
	if !strings.Contains(printed, "image: mirror.example/etcd:") || strings.Contains(printed, "kind: Secret") {
		t.Errorf("--dry-run prints\n%s", printed)
	}
	if exists(&appsv1.StatefulSet{}, hub.HostedEtcd) {
		t.Error("--dry-run has written objects")
	}
	c.Make(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "standard", Annotations: map[string]string{
		"storageclass.kubernetes.io/is-default-class": "true"}}, Provisioner: "none.example"})
	s.fails(t, "no node of the host cluster has an address", init()...)
	c.Make(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.11"}}}})
	s.fails(t, "after 2s without progress these do not run: StatefulSet pelago-hub-etcd (0 of 1 ready)", init("--image", "registry.example/pelago:1", "--image-pull-secret", "mirror",
		"--toleration", "infra", "--toleration", "spot=yes:NoSchedule", "--karmada-tools")...)

	kept, issued, settings := &corev1.Secret{}, &corev1.Secret{}, &corev1.ConfigMap{}
	must(t, c.Get(t.Context(), key(hub.HostedCA), kept))
	must(t, c.Get(t.Context(), key(hub.HostedPKI), issued))
	must(t, c.Get(t.Context(), key(hub.HostedSettings), settings))
	service := &corev1.Service{}
	must(t, c.Get(t.Context(), key(hub.HostedAPIServer), service))
	admin, err := clientcmd.RESTConfigFromKubeConfig(issued.Data[hub.AdminKubeconfig])
	must(t, err)
	port := settings.Data["node-port"]
	if want := "https://192.0.2.11:" + port; admin.Host != want || port == "" || settings.Data["image"] != "registry.example/pelago:1" {
		t.Errorf("the hub is at %s, want %s; kept are %v", admin.Host, want, settings.Data)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(admin.CAData)
	pair, err := tls.X509KeyPair(issued.Data["apiserver.crt"], issued.Data["apiserver.key"])
	must(t, err)
	for _, name := range []string{"192.0.2.11", "pelago-hub-apiserver.hub.svc"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("the certificate of the API server for %s: %v", name, err)
		}
	}

	tools := &corev1.Service{}
	must(t, c.Get(t.Context(), key(hub.HostedKarmada), tools))
	contexts, err := clientcmd.Load(issued.Data[hub.AdminKubeconfig])
	must(t, err)
	if at, want := contexts.Clusters[hub.KarmadaName], fmt.Sprintf("https://192.0.2.11:%d", tools.Spec.Ports[0].NodePort); at == nil || at.Server != want {
		t.Errorf("Karmada's tools reach the hub at %v, want %s", at, want)
	}
	pair, err = tls.X509KeyPair(issued.Data["karmada.crt"], issued.Data["karmada.key"])
	must(t, err)
	for _, name := range []string{"192.0.2.11", "pelago-hub-karmada.hub.svc"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("the certificate for Karmada's tools for %s: %v", name, err)
		}
	}

	// Each part waits for those before. At last the pods run, but the API server is not reached;
	// nothing that exists has changed.
	etcd := &appsv1.StatefulSet{}
	must(t, c.Get(t.Context(), key(hub.HostedEtcd), etcd))
	etcd.Status = appsv1.StatefulSetStatus{Replicas: 1, ReadyReplicas: 1, UpdatedReplicas: 1, ObservedGeneration: etcd.Generation}
	must(t, c.Status().Update(t.Context(), etcd))
	for _, name := range []string{hub.HostedAPIServer, hub.HostedControllerManager} {
		d := &appsv1.Deployment{}
		if exists(d, name) {
			t.Errorf("%s is there before what it needs runs", name)
		}
		s.fails(t, "after 2s without progress these do not run: Deployment "+name+" (0 of 1 ready)", init()...)
		must(t, c.Get(t.Context(), key(name), d))
		d.Status = appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1, UpdatedReplicas: 1, ObservedGeneration: d.Generation}
		must(t, c.Status().Update(t.Context(), d))
		if pod := d.Spec.Template.Spec; len(pod.Tolerations) != 3 || len(pod.ImagePullSecrets) != 1 {
			t.Errorf("%s: another run keeps the tolerations %v and the Secrets %v", name, pod.Tolerations, pod.ImagePullSecrets)
		}
		if ptr.Deref(d.Spec.Replicas, 0) != 1 {
			t.Errorf("%s has %d replicas, want 1 with one member of etcd", name, *d.Spec.Replicas)
		}
	}
	s.fails(t, "reach the API server at https://127.0.0.1:1: ", init("--api-address", "127.0.0.1:1")...)
	again := &corev1.Secret{}
	must(t, c.Get(t.Context(), key(hub.HostedCA), again))
	if again.ResourceVersion != kept.ResourceVersion {
		t.Error("the second run has changed the authorities")
	}
	must(t, c.Get(t.Context(), key(hub.HostedPKI), again))
	if bytes.Equal(again.Data["apiserver.crt"], issued.Data["apiserver.crt"]) || !bytes.Equal(again.Data["etcd.crt"], issued.Data["etcd.crt"]) {
		t.Error("with another address the certificate of the API server must be issued again, and no other")
	}
	s.fails(t, "reach the API server at https://127.0.0.1:1: ", init("--karmada-tools=false")...)
	must(t, c.Get(t.Context(), key(hub.HostedPKI), again))
	if contexts, err := clientcmd.Load(again.Data[hub.AdminKubeconfig]); err != nil || contexts.Contexts[hub.KarmadaName] != nil || exists(tools, tools.Name) {
		t.Errorf("without Karmada's tools: their context or Service stays (%v)", err)
	}
	if out := s.must(t, append([]string{"hub", "renew"}, host[:4]...)...); !strings.Contains(out, "Issued 0 certificates") {
		t.Errorf("renew at once: %s", out)
	}
	s.fails(t, `the hub in namespace hub was installed with "1", and that cannot change`, init("--etcd-replicas", "3")...)
	testSkippedVersion(t, s, c, key(hub.HostedAPIServer), init())
	s.fails(t, "find out whether clusters are registered at the hub", append([]string{"deinit", "--yes"}, host...)...)
	backUp := append([]string{"hub", "backup", filepath.Join(s.dir, "backup")}, host...)
	s.fails(t, "no member of etcd in namespace hub is ready", backUp...)
	for i, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("%s-%d", hub.HostedEtcd, i), Labels: map[string]string{
			"app": hub.HostedEtcd}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "etcd", Image: "etcd"}}}}
		c.Make(pod)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
		must(t, c.Status().Update(t.Context(), pod))
	}
	s.fails(t, "connect to pod hub/pelago-hub-etcd-1", backUp...)
	must(t, c.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(ns), client.GracePeriodSeconds(0)))
	s.fails(t, "it is no file of `pelago hub backup`", append([]string{"hub", "restore", s.kubeconfig}, host...)...)
	testRestore(t, s, c, ns, host)
	s.fails(t, "nothing was changed: answer y", append([]string{"deinit", "--force"}, host...)...)

	out := s.must(t, append([]string{"deinit", "--yes", "--force"}, host...)...)
	if exists(etcd, etcd.Name) || !exists(kept, kept.Name) || !strings.Contains(out, "--purge removes them") {
		t.Errorf("deinit leaves etcd, or removes the authorities:\n%s", out)
	}
	must(t, c.Delete(t.Context(), kept))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "data-pelago-hub-etcd-0", Labels: etcd.Labels},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: etcd.Spec.VolumeClaimTemplates[0].Spec.Resources.Requests}}}
	c.Make(claim)
	s.fails(t, "but not Secret pelago-hub-ca, without which its data cannot be read", init()...)
	s.fails(t, "has no hub (no ConfigMap pelago-hub-install)", "hub", "backup", "x", "--host-context", raw.CurrentContext, "--namespace", "other")
	s.fails(t, "has no hub (no ConfigMap pelago-hub-install)", "deinit", "--host-context", raw.CurrentContext, "--namespace", "other")
}

// testSkippedVersion: what earlier releases have installed is more than one minor version older.
func testSkippedVersion(t *testing.T, s clusterset, c *apiserver.Cluster, key client.ObjectKey, init []string) {
	run := func(image string) (former string) {
		d := &appsv1.Deployment{}
		must(t, c.Get(t.Context(), key, d))
		container := &d.Spec.Template.Spec.Containers[0]
		former, container.Image = container.Image, image
		must(t, c.Update(t.Context(), d))
		return former
	}
	former := run("registry.k8s.io/kube-apiserver:v1.34.4")
	s.fails(t, "kube-apiserver of this hub is 1.34, and it must not skip a minor version: give --kube-apiserver-image an image of 1.35 such as "+
		"registry.k8s.io/kube-apiserver:v1.35.0, and --kube-controller-manager-image the same version", init...)
	run(former)
}

// testRestore: a restore changes nothing before it has read the backup and was confirmed; then it
// keeps the keys that it replaces. Pods never run, so it does not complete.
func testRestore(t *testing.T, s clusterset, c *apiserver.Cluster, ns string, host []string) {
	kept := map[string][]byte{}
	for _, name := range hub.KeptFiles() {
		kept[name] = []byte("of the backup")
	}
	page := make([]byte, 512)
	sum := sha256.Sum256(page)
	var text bytes.Buffer
	must(t, hub.EncodeBackup(&text, nil, kept, bytes.NewReader(append(page, sum[:]...))))
	whole, part := filepath.Join(s.dir, "whole"), filepath.Join(s.dir, "part")
	must(t, os.WriteFile(whole, text.Bytes(), 0o600))
	must(t, os.WriteFile(part, text.Bytes()[:text.Len()-4], 0o600))
	keys := func(secret string) map[string][]byte {
		have := &corev1.Secret{}
		must(t, client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: secret}, have)))
		return have.Data
	}
	original := keys(hub.HostedCA)
	restore := func(file string, more ...string) []string {
		return append(append([]string{"hub", "restore", file}, host...), more...)
	}
	s.fails(t, "a part of one", restore(part, "--yes")...)
	s.fails(t, "nothing was changed: answer y", restore(whole)...)
	etcd := &appsv1.StatefulSet{}
	must(t, c.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: hub.HostedEtcd}, etcd))
	if *etcd.Spec.Replicas != 1 || !cmp.Equal(keys(hub.HostedCA), original) || keys(hub.HostedFormerCA) != nil {
		t.Error("the hub has changed before the backup was read and confirmed")
	}
	for range 2 {
		s.fails(t, "restore member 0 of etcd by pod hub/pelago-hub-restore-0", restore(whole, "--yes")...)
		if !cmp.Equal(keys(hub.HostedCA), kept) || !cmp.Equal(keys(hub.HostedFormerCA), original) {
			t.Errorf("the hub has the keys of the backup: %t, the former ones are kept: %t", cmp.Equal(keys(hub.HostedCA), kept), cmp.Equal(keys(hub.HostedFormerCA), original))
		}
	}
}
