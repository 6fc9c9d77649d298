package member

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelago-net/pelago/deploy/spec"
)

var comparePrefixes = cmpopts.EquateComparable(netip.Prefix{})

func TestFindPodRanges(t *testing.T) {
	node := func(name string, cidrs ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
		return n
	}
	for name, tt := range map[string]struct {
		nodes []corev1.Node
		want  []netip.Prefix
	}{
		"none":          {nil, nil},
		"no ranges":     {[]corev1.Node{node("n1")}, nil},
		"one node":      {[]corev1.Node{node("n1", "10.7.1.0/24")}, prefixes(t, "10.7.1.0/24")},
		"neighbours":    {[]corev1.Node{node("n1", "10.7.0.0/24"), node("n2", "10.7.1.0/24")}, prefixes(t, "10.7.0.0/23")},
		"far apart":     {[]corev1.Node{node("n1", "10.7.1.0/24"), node("n2", "10.7.200.0/24")}, prefixes(t, "10.7.0.0/16")},
		"both families": {[]corev1.Node{node("n1", "10.7.1.0/24", "fd00:7:1::/64"), node("n2", "10.7.2.0/24", "fd00:7:2::/64")}, prefixes(t, "10.7.0.0/22", "fd00:7::/46")},
		"unreadable":    {[]corev1.Node{node("n1", "x"), node("n2", "10.7.2.0/24")}, prefixes(t, "10.7.2.0/24")},
	} {
		if diff := cmp.Diff(tt.want, fromNodes(tt.nodes), comparePrefixes); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

// Sources have an order: those with the whole range first.
func TestPodRangeSources(t *testing.T) {
	manager := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kcm", Namespace: "kube-system", Labels: map[string]string{"component": "kube-controller-manager"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Command: []string{"kube-controller-manager", "--allocate-node-cidrs=true", "--cluster-cidr=10.7.0.0/16,fd00:7::/48"}}}},
	}
	proxy := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy", Namespace: "kube-system"},
		Data: map[string]string{"config.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nclusterCIDR: \"10.8.0.0/16\"\nmode: iptables\n"}}
	nodes := []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.9.1.0/24"}}}
	silent := proxy.DeepCopy()
	silent.Data["config.conf"] = "clusterCIDR: \"\"\n"
	for name, tt := range map[string]struct {
		c     *fake.Clientset
		nodes []corev1.Node
		want  []netip.Prefix
	}{
		"kube-controller-manager": {fake.NewClientset(manager, proxy), nodes, prefixes(t, "10.7.0.0/16", "fd00:7::/48")},
		"kube-proxy":              {fake.NewClientset(proxy), nodes, prefixes(t, "10.8.0.0/16")},
		"nodes":                   {fake.NewClientset(silent), nodes, prefixes(t, "10.9.1.0/24")},
	} {
		got, _, err := discoverPodCIDRs(t.Context(), tt.c, ctrlfake.NewClientBuilder().Build(), tt.nodes, nil, true)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tt.want, got, comparePrefixes); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
	if _, _, err := discoverPodCIDRs(t.Context(), fake.NewClientset(), ctrlfake.NewClientBuilder().Build(), nil, nil, true); err == nil {
		t.Error("no source has ranges: no error")
	}
}

func TestServiceRangeFromARefusal(t *testing.T) {
	for text, want := range map[string][]netip.Prefix{
		`Service "pelago-x" is invalid: spec.clusterIPs: Invalid value: []string{"192.0.2.1"}: failed to allocate IP 192.0.2.1: the provided IP (192.0.2.1) is not in the valid range. The range of valid IPs is 10.77.0.0/16`: prefixes(t, "10.77.0.0/16"),
		`The range of valid IPs is fd00:77::/112`: prefixes(t, "fd00:77::/112"),
		`services is forbidden`:                   nil,
	} {
		if diff := cmp.Diff(want, fromText(refusedClusterIP, text), comparePrefixes); diff != "" {
			t.Errorf("%s: -want +got\n%s", text, diff)
		}
	}
}

func TestCovering(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func() netip.Prefix {
			b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")
			return netip.PrefixFrom(netip.AddrFrom4([4]byte(b)), rapid.IntRange(0, 32).Draw(t, "length")).Masked()
		}
		a, b := draw(), draw()
		c := covering(a, b)
		if !c.Contains(a.Addr()) || !c.Contains(b.Addr()) || c.Bits() > a.Bits() || c.Bits() > b.Bits() {
			t.Fatalf("%s does not cover %s and %s", c, a, b)
		}
		if c.Bits() < min(a.Bits(), b.Bits()) {
			if half := netip.PrefixFrom(a.Addr(), c.Bits()+1).Masked(); half.Contains(b.Addr()) {
				t.Fatalf("%s covers %s and %s, but so does %s", c, a, b, half)
			}
		}
	})
}

func prefixes(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	out, err := spec.ParseRanges(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
