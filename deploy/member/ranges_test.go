package member

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

func kubeSystem(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system"}, Data: data}
}

func manager(ranges string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kcm", Namespace: "kube-system", Labels: map[string]string{"component": "kube-controller-manager"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"--cluster-cidr=" + ranges}}}},
	}
}

func custom(group, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func ciliumNode(ranges ...any) *unstructured.Unstructured {
	n := custom("cilium.io", "CiliumNode", "n1", map[string]any{"ipam": map[string]any{"podCIDRs": ranges}})
	n.SetAPIVersion("cilium.io/v2")
	return n
}

// customReader knows the kinds of Calico, Cilium and OpenShift.
func customReader(objects ...client.Object) client.Reader {
	scheme := runtime.NewScheme()
	for _, kind := range []schema.GroupVersionKind{
		{Group: "crd.projectcalico.org", Version: "v1", Kind: "IPPool"}, {Group: "config.openshift.io", Version: "v1", Kind: "Network"},
		{Group: "cilium.io", Version: "v2", Kind: "CiliumNode"},
	} {
		scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kind.GroupVersion().WithKind(kind.Kind+"List"), &unstructured.UnstructuredList{})
	}
	return ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

// Each source of the pod ranges, and which one counts where several have some.
func TestSourcesOfPodRanges(t *testing.T) {
	server := func(annotation, args string) []corev1.Node {
		return []corev1.Node{
			{ObjectMeta: metav1.ObjectMeta{Name: "agent", Annotations: map[string]string{annotation: `["agent"]`}}, Spec: corev1.NodeSpec{PodCIDR: "10.42.1.0/24"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "server", Annotations: map[string]string{annotation: args}}, Spec: corev1.NodeSpec{PodCIDR: "10.42.0.0/24"}},
		}
	}
	pod := func(address string) []runningPod {
		return []runningPod{{"shop/web", netip.MustParseAddr(address)}}
	}
	onePresent := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.9.1.0/24"}}}
	cluster := func(objects ...runtime.Object) *fake.Clientset { return fake.NewClientset(objects...) }
	pool := kubeSystem("cilium-config", map[string]string{"ipam": "cluster-pool", "cluster-pool-ipv4-cidr": "10.0.0.0/9 10.128.0.0/12"})
	for name, tt := range map[string]struct {
		c       *fake.Clientset
		objects []client.Object
		nodes   []corev1.Node
		pods    []runningPod
		accept  bool
		want    string
		refused string
	}{
		"Cilium's pools before kube-controller-manager": {c: cluster(manager("10.244.0.0/16"), pool), want: "10.0.0.0/9 10.128.0.0/12"},
		"Cilium with the ranges of nodes": {
			c: cluster(manager("10.244.0.0/16"), kubeSystem("cilium-config", map[string]string{"ipam": "kubernetes", "cluster-pool-ipv4-cidr": "10.0.0.0/8"})), want: "10.244.0.0/16"},
		"Cilium's native routing": {
			c: cluster(kubeSystem("cilium-config", map[string]string{"ipam": "eni", "ipv4-native-routing-cidr": "10.20.0.0/16"})), want: "10.20.0.0/16"},
		"Calico's pools": {c: cluster(manager("10.244.0.0/16")), want: "192.168.0.0/16 192.169.0.0/20", objects: []client.Object{
			custom("crd.projectcalico.org", "IPPool", "a", map[string]any{"cidr": "192.168.0.0/16"}),
			custom("crd.projectcalico.org", "IPPool", "b", map[string]any{"cidr": "192.169.0.0/20", "allowedUses": []any{"Workload", "Tunnel"}}),
			custom("crd.projectcalico.org", "IPPool", "c", map[string]any{"cidr": "192.170.0.0/16", "disabled": true}),
			custom("crd.projectcalico.org", "IPPool", "d", map[string]any{"cidr": "192.171.0.0/16", "allowedUses": []any{"LoadBalancer"}}),
		}},
		"pools that are not used: pods are elsewhere": {c: cluster(manager("10.244.0.0/16")), pods: pod("10.244.3.4"), want: "10.244.0.0/16", objects: []client.Object{
			custom("crd.projectcalico.org", "IPPool", "a", map[string]any{"cidr": "192.168.0.0/16"}),
		}},
		"k3s":                  {c: cluster(), nodes: server("k3s.io/node-args", `["server","--disable","traefik"]`), want: "10.42.0.0/16"},
		"k3s with a range":     {c: cluster(), nodes: server("k3s.io/node-args", `["server","--cluster-cidr","10.52.0.0/16"]`), want: "10.52.0.0/16"},
		"RKE2 with two ranges": {c: cluster(), nodes: server("rke2.io/node-args", `["server","--cluster-cidr=10.52.0.0/16,fd00::/48"]`), want: "10.52.0.0/16 fd00::/48"},
		"OpenShift": {c: cluster(), want: "10.128.0.0/14", objects: []client.Object{
			custom("config.openshift.io", "Network", "cluster", map[string]any{"clusterNetwork": []any{map[string]any{"cidr": "10.128.0.0/14", "hostPrefix": int64(23)}}}),
		}},
		"only the present nodes":            {c: cluster(), nodes: onePresent, refused: "only the present nodes have some, in [10.9.1.0/24]"},
		"only the present nodes, confirmed": {c: cluster(), nodes: onePresent, accept: true, want: "10.9.1.0/24"},
		"Cilium's nodes are outside of kube-controller-manager's range": {c: cluster(manager("10.244.0.0/16")), nodes: onePresent, objects: []client.Object{ciliumNode("10.0.1.0/24")},
			refused: "kube-controller-manager has [10.244.0.0/16], without CiliumNode n1 with 10.0.1.0/24"},
		"Cilium's pools before the ranges of its nodes": {c: cluster(pool), objects: []client.Object{ciliumNode("10.0.1.0/24")}, want: "10.0.0.0/9 10.128.0.0/12"},
		"Cilium's nodes, confirmed":                     {c: cluster(), nodes: onePresent, accept: true, objects: []client.Object{ciliumNode("10.0.1.0/24")}, want: "10.0.1.0/24"},
		"Cilium's nodes alone":                          {c: cluster(), nodes: onePresent, objects: []client.Object{ciliumNode("10.0.1.0/24")}, refused: "only the present nodes have some, in [10.0.1.0/24]"},
		"pods outside of all sources": {c: cluster(manager("10.244.0.0/16")), pods: pod("10.245.0.9"),
			refused: "kube-controller-manager has [10.244.0.0/16], without pod shop/web at 10.245.0.9"},
		"nothing": {c: cluster(), refused: "neither kube-controller-manager"},
	} {
		t.Run(name, func(t *testing.T) {
			got, source, err := discoverPodCIDRs(t.Context(), tt.c, customReader(tt.objects...), tt.nodes, tt.pods, tt.accept)
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("got %v (%s), %v; want the refusal %q", got, source, err, tt.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(prefixes(t, strings.Fields(tt.want)...), got, comparePrefixes); diff != "" {
				t.Errorf("%s: -want +got\n%s", source, diff)
			}
		})
	}
}

// Given ranges are compared with the addresses of running pods, where there are any.
func TestGivenPodRanges(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), pelagov1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	pod := func(name, address string, change ...func(*corev1.Pod)) runtime.Object {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, HostIP: "192.0.2.7", PodIPs: []corev1.PodIP{{IP: address}}}}
		for _, f := range change {
			f(p)
		}
		return p
	}
	inRange := pod("in", "10.7.1.2")
	outside := []runtime.Object{inRange, pod("web", "10.9.2.3")}
	const named = "pod shop/web at 10.9.2.3"
	given := spec.Member{ClusterCIDR: prefixes(t, "10.7.0.0/16")}
	for name, tt := range map[string]struct {
		want     spec.Member
		former   config.Config
		pods     []runtime.Object
		accept   bool
		refused  string
		reported string
	}{
		"no pods":       {want: given},
		"pods in it":    {want: given, pods: []runtime.Object{inRange}},
		"another range": {want: given, pods: []runtime.Object{manager("10.244.0.0/16"), inRange}},
		"pods that have no address of a range": {want: given, pods: []runtime.Object{
			pod("node-exporter", "10.9.2.3", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
			pod("static", "192.0.2.7"),
			pod("job", "10.9.2.4", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			pod("pending", "", func(p *corev1.Pod) { p.Status.Phase, p.Status.PodIPs = corev1.PodPending, nil }),
			pod("six", "fd00::5"),
		}},
		"pods outside": {want: given, pods: outside,
			refused: "the ranges [10.7.0.0/16] do not contain " + named + ": give all pod ranges with spec.clusterCIDR"},
		"pods outside, confirmed":                      {want: given, pods: outside, accept: true, reported: "Other clusters do not reach " + named},
		"larger than at the former join, pods outside": {want: given, former: config.Config{PodCIDRs: prefixes(t, "10.7.0.0/17")}, pods: outside, refused: named},
		"none given, pods outside of the former":       {former: config.Config{PodCIDRs: prefixes(t, "10.7.0.0/16")}, pods: outside, reported: named},
	} {
		t.Run(name, func(t *testing.T) {
			tt.want.ServiceCIDR = prefixes(t, "10.77.0.0/16")
			c := manifests.Cluster{Config: &rest.Config{Host: "https://192.0.2.1"}, Typed: fake.NewClientset(tt.pods...),
				Client: ctrlfake.NewClientBuilder().WithScheme(scheme).WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "u"}}).Build()}
			reported := ""
			f, err := readFacts(t.Context(), c, tt.want, tt.former, tt.accept, func(format string, args ...any) { reported += fmt.Sprintf(format, args...) })
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("%v, want the refusal %q", err, tt.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(prefixes(t, "10.7.0.0/16"), f.PodCIDRs, comparePrefixes); diff != "" {
				t.Errorf("pod ranges: -want +got\n%s", diff)
			}
			if (reported != "") != (tt.reported != "") || !strings.Contains(reported, tt.reported) {
				t.Errorf("it reports %q, want %q", reported, tt.reported)
			}
		})
	}
}

func TestOutsideOfRanges(t *testing.T) {
	pods := []runningPod{{"a/in", netip.MustParseAddr("10.7.0.1")}, {"a/six", netip.MustParseAddr("fd00::1")}}
	if got := outsideOf(prefixes(t, "10.7.0.0/16"), pods); got != "" {
		t.Errorf("outside: %s; a family without ranges is left out", got)
	}
	for i := range 5 {
		pods = append(pods, runningPod{"a/out", netip.AddrFrom4([4]byte{10, 8, 0, byte(i)})})
	}
	want := "pod a/out at 10.8.0.0, pod a/out at 10.8.0.1, pod a/out at 10.8.0.2, 2 more"
	if got := outsideOf(prefixes(t, "10.7.0.0/16"), pods); got != want {
		t.Errorf("outside: %s, want %s", got, want)
	}
}

func TestForwardedNameServers(t *testing.T) {
	got := forwarded(".:53 {\n  errors\n  forward . 172.20.0.53 tls://9.9.9.9:853 10.0.0.2:5353 {\n    max_concurrent 1000\n  }\n}\nexample.org {\n forward . /etc/resolv.conf\n}\n")
	if diff := cmp.Diff([]string{"172.20.0.53", "9.9.9.9", "10.0.0.2", "{", "/etc/resolv.conf"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// ClusterIPs in packets that a gateway forwards need kube-proxy, or one that translates per packet.
func TestClusterIPsWithoutKubeProxy(t *testing.T) {
	external := prefixes(t, "172.20.0.0/24")
	for name, tt := range map[string]struct {
		want             spec.Member
		replaces         string // kube-proxy-replacement of Cilium
		refused, warning string
	}{
		"nothing that needs it":  {replaces: "true"},
		"routed":                 {want: spec.Member{RouteServiceCIDR: true}, replaces: "true", refused: "routeServiceCIDR"},
		"routed, earlier Cilium": {want: spec.Member{RouteServiceCIDR: true}, replaces: "strict", refused: "routeServiceCIDR"},
		"hosts outside":          {want: spec.Member{ExternalCIDR: external}, replaces: "true", warning: "172.20.0.0/24"},
		"beside kube-proxy":      {want: spec.Member{RouteServiceCIDR: true, ExternalCIDR: external}, replaces: "false"},
		"without Cilium":         {want: spec.Member{RouteServiceCIDR: true, ExternalCIDR: external}},
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientset()
			if tt.replaces != "" {
				c = fake.NewClientset(kubeSystem("cilium-config", map[string]string{"kube-proxy-replacement": tt.replaces}))
			}
			said := ""
			err := checkClusterIPs(t.Context(), c, tt.want, func(format string, args ...any) { said += fmt.Sprintf(format, args...) })
			if (err != nil) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("error %v, want one with %q", err, tt.refused)
			}
			if (said != "") != (tt.warning != "") || !strings.Contains(said, tt.warning) {
				t.Errorf("it says %q, want %q", said, tt.warning)
			}
		})
	}
}
