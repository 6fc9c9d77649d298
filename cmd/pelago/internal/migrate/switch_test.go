package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// submariner is a member with these objects besides the usual ones, and the broker of c1 and c2 in
// another cluster. said are its progress lines.
func submariner(t *testing.T, uid string, objects ...client.Object) (s *Submariner, said *[]string) {
	t.Helper()
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "submariner.io/v1alpha1", "kind": "Submariner", "spec": specOf(nil)}}
	u.SetNamespace(operator)
	u.SetName("submariner")
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: brokerNS, Name: name} }
	system := func(uid string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: types.UID(uid)}}
	}
	said = new([]string)
	return &Submariner{
		Member: fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(objects, u, system(uid))...).
			WithStatusSubresource(&submarinerv1.GlobalIngressIP{}, &submarinerv1.GlobalEgressIP{}, &submarinerv1.ClusterGlobalEgressIP{}).Build(),
		Broker: fake.NewClientBuilder().WithScheme(scheme).WithObjects(system("broker"),
			&corev1.ConfigMap{ObjectMeta: at("submariner-globalnet-info"), Data: map[string]string{"globalnetEnabled": "true", "globalnetCidrRange": `"242.0.0.0/8"`, "globalnetClusterSize": "65536"}},
			&submarinerv1.Cluster{ObjectMeta: at("c1"), Spec: submarinerv1.ClusterSpec{ClusterID: "c1", GlobalCIDR: []string{"242.0.0.0/16"}}},
			&submarinerv1.Endpoint{ObjectMeta: at("c2-cable"), Spec: submarinerv1.EndpointSpec{ClusterID: "c2", Backend: "libreswan"}}).Build(),
		Namespace: operator, BrokerNamespace: brokerNS, Timeout: time.Second,
		Waits:    func(context.Context, string) (bool, error) { return false, nil },
		Reasons:  func(context.Context) ([]string, error) { return []string{"pod x: its kernel is too old"}, nil },
		Progress: func(format string, args ...any) { *said = append(*said, fmt.Sprintf(format, args...)) },
	}, said
}

// Submariner goes on until others connect to the cluster in Pelago's network.
func TestAClusterThatWaitsKeepsSubmariner(t *testing.T) {
	s, _ := submariner(t, "member") // what it prints is not needed
	s.state.spec.ClusterID = "c1"
	s.Waits = func(_ context.Context, id string) (bool, error) { return id == "c1", nil }
	if err := s.stop(t.Context()); err == nil || !strings.Contains(err.Error(), "pelago clusters accept c1") {
		t.Errorf("stop: %v, want a refusal with the command", err)
	}
}

func coredns(corefile string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns"}, Data: map[string]string{"Corefile": corefile}}
}

// The rest of a Corefile stays, whatever has become of the markers of Submariner's block.
func TestUnplug(t *testing.T) {
	const rest, block = ".:53 {\n    errors\n}\n", "clusterset.local:53 {\n}\n"
	for name, tt := range map[string]struct {
		corefile string
		damaged  bool
	}{
		"no block":      {corefile: rest},
		"in front":      {corefile: "#lighthouse-start AUTO-GENERATED\n" + block + "#lighthouse-end\n" + rest},
		"at the end":    {corefile: rest + "#lighthouse-start\n" + block + "#lighthouse-end"},
		"no end":        {corefile: "#lighthouse-start\n" + block + rest, damaged: true},
		"no start":      {corefile: block + "#lighthouse-end\n" + rest, damaged: true},
		"end and start": {corefile: "#lighthouse-end\n" + rest + "#lighthouse-start\n", damaged: true},
		"two starts":    {corefile: "#lighthouse-start\n#lighthouse-start\n" + block + "#lighthouse-end\n" + rest, damaged: true},
	} {
		s, _ := submariner(t, "member", coredns(tt.corefile))
		err := s.unplug(t.Context())
		want := rest
		if tt.damaged {
			want = tt.corefile
		}
		cm := coredns("")
		if failed := s.Member.Get(t.Context(), client.ObjectKeyFromObject(cm), cm); failed != nil {
			t.Fatal(failed)
		}
		if (err != nil) != tt.damaged || cm.Data["Corefile"] != want {
			t.Errorf("%s: %v\n%s", name, err, cm.Data["Corefile"])
		}
	}
}

func TestSwitchIsRefused(t *testing.T) {
	deployment := func(labels map[string]string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: operator, Name: "submariner-operator", Labels: labels}}
	}
	for words, tt := range map[string]struct {
		uid     string
		objects []client.Object
	}{
		"--operator-namespace names that of Submariner": {uid: "member"},
		"delete its Subscription and this object first": {uid: "member", objects: []client.Object{deployment(map[string]string{"olm.owner": "submariner.v0.20.0"})}},
		"in use by c2: switch them first":               {uid: "broker", objects: []client.Object{deployment(nil)}},
		"key Corefile of ConfigMap kube-system/coredns: its markers are damaged (1 times \"#lighthouse-start\", 0 times": {uid: "member",
			objects: []client.Object{deployment(nil), coredns("#lighthouse-start\nclusterset.local:53 {\n}\n.:53 {\n}\n")}},
	} {
		s, _ := submariner(t, tt.uid, tt.objects...)
		if err := s.Switch(t.Context()); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error %v, want one with %q", err, words)
		}
	}
	s, _ := submariner(t, "member", deployment(nil), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: operator, Name: keptSubmariner,
		Annotations: map[string]string{annotationSwitched: "true"}}})
	if done, err := s.check(t.Context()); !done || err != nil {
		t.Errorf("after the switch: done %t, %v", done, err)
	}
}

// A node whose pod does not start, because the image or the kernel is missing something, is
// reported with the reason.
func TestNodesThatAreNotReady(t *testing.T) {
	s, _ := submariner(t, "member", &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: migrator},
		Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberReady: 1}})
	err := s.awaitMigrator(t.Context())
	if err == nil || !strings.Contains(err.Error(), "only 1 of 2 pods") || !strings.Contains(err.Error(), "its kernel is too old") {
		t.Errorf("error %v", err)
	}
}

// Addresses that cannot be kept are reported, and the others are allocated.
func TestAddressesThatCannotBeKept(t *testing.T) {
	ingress := func(name, ip string) *submarinerv1.GlobalIngressIP {
		return &submarinerv1.GlobalIngressIP{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
			Spec: submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.ClusterIPService}, Status: submarinerv1.GlobalIngressIPStatus{AllocatedIP: ip}}
	}
	stale := ingress("pod-db-0", "242.0.0.9") // of a pod that is gone
	stale.Spec = submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.HeadlessServicePod, PodRef: &corev1.LocalObjectReference{Name: "db-0"}}
	settings := config.Config{ClusterID: "c1", ClusterIndex: 1, Mode: config.ModeSubmariner, CableDriver: config.CableLibreswan, CablePort: 4500, HubID: "h", HubServer: "https://h",
		BrokerNamespace: "b"}.Data()
	for key, value := range map[string]string{config.KeyGlobalCIDR: "242.0.0.0/16", config.KeyPodCIDR: "10.7.0.0/16", config.KeyServiceCIDR: "10.8.0.0/16", config.KeyFabricCIDR: "241.0.0.0/8"} {
		settings[key] = value
	}
	s, said := submariner(t, "member", ingress("a", "242.0.0.7"), ingress("b", "242.0.0.7"), ingress("c", "242.9.0.1"), ingress("d", "242.0.0.0"), ingress("e", ""), stale,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: settings})
	s.state.spec.ClusterID = "c1"
	if err := s.adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	slices.Sort(*said)
	if diff := cmp.Diff([]string{
		"warning: GlobalIngressIP shop/c has the address 242.9.0.1, which is not in the GlobalCIDR 242.0.0.0/16: it gets another",
		"warning: GlobalIngressIP shop/d has the address 242.0.0.0, which is not in the GlobalCIDR 242.0.0.0/16: it gets another",
		"warning: the address 242.0.0.7 of GlobalIngressIP shop/b is allocated to GlobalIngressIP shop/a: it gets another",
	}, *said); diff != "" {
		t.Errorf("reported: -want +got\n%s", diff)
	}
	var claims pelagov1alpha1.GlobalAddressList
	if err := s.Member.List(t.Context(), &claims); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, a := range claims.Items {
		got[a.Name] = a.Spec.Owner.UID
	}
	if diff := cmp.Diff(map[string]string{"242-0-0-7": "uid-a", "242-0-0-9": "uid-pod-db-0"}, got); diff != "" {
		t.Errorf("allocated: -want +got\n%s", diff)
	}
	s.state.spec.ClusterID = "c7"
	if err := s.adopt(t.Context()); err == nil || !strings.Contains(err.Error(), `of cluster "c1": want "c7"`) {
		t.Errorf("with the settings of another cluster: %v", err)
	}
}
