package inspect

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/dns"
)

func TestParseDestination(t *testing.T) {
	zones := []string{"clusterset.local", "corp.example"}
	for text, want := range map[string]string{
		"120.2.0.20:80":                            "120.2.0.20:80",
		"sample/web":                               "web.sample.svc.clusterset.local:0",
		"sample/web:8080":                          "web.sample.svc.clusterset.local:8080",
		"web.sample.svc.clusterset.local.":         "web.sample.svc.clusterset.local:0",
		"g2.web.sample.svc.corp.example:80":        "g2.web.sample.svc.corp.example:80",
		"120.2.0.20":                               "error: add the port",
		"fd00::1":                                  "error: is no port",
		"web":                                      "error: NAMESPACE/SERVICE",
		"web.sample.svc.cluster.local":             "error: below clusterset.local or corp.example",
		"sample/web:http":                          `error: "http" is no port`,
		"web.sample.svc.clusterset.local:0":        `error: "0" is no port`,
		"web.sample.svc.clusterset.local:80000000": "error: is no port",
	} {
		d, err := parseDestination(text, "tcp", zones)
		got := d.name
		if d.address.IsValid() {
			got = d.address.String()
		}
		if wrong, ok := strings.CutPrefix(want, "error: "); ok {
			if err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v; want an error with %q", text, err, wrong)
			}
		} else if got += ":" + strconv.Itoa(int(d.port)); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	if d, err := parseDestination("120.2.0.20", "icmp", zones); err != nil || d.port != 0 {
		t.Errorf("ping of an address: %+v, %v", d, err)
	}
}

// The port is that of the service for the protocol; a headless service's pods have others, too.
func TestResolvePorts(t *testing.T) {
	web := newWorld().zone.Services[0]
	headless := web
	headless.Name, headless.Type = "db", dns.Headless
	table := dns.Table{Mode: dns.ModeSubmariner, LocalCluster: "g1", Zones: []string{"clusterset.local"}, Services: []dns.Service{web, headless}}
	for _, c := range []struct{ to, protocol, want string }{
		{"sample/web", "tcp", "120.2.0.21:80"},
		{"sample/web:81", "tcp", "no-port"},
		{"sample/web", "udp", "no-port"},
		{"sample/web", "icmp", "120.2.0.21:0"},
		{"sample/db:5432", "tcp", "120.2.0.21:5432"},
		{"g2.web.sample.svc.clusterset.local", "tcp", "120.2.0.21:80"},
		{"g3.web.sample.svc.clusterset.local", "tcp", "unknown-name"},
		{"sample/other", "tcp", "no-import"},
	} {
		d, err := parseDestination(c.to, c.protocol, table.Zones)
		if err != nil {
			t.Fatal(err)
		}
		end, err := resolve(table, nil, &d)
		if err != nil {
			t.Fatal(err)
		}
		got := d.address.String() + ":" + strconv.Itoa(int(d.port))
		if end != nil {
			got = end.Reason
		}
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.protocol, c.to, got, c.want)
		}
	}
}

// Of the peers of a rule only an ipBlock matches another cluster's address.
func TestForbids(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}}}
	port := func(p intstr.IntOrString, end *int32) []networkingv1.NetworkPolicyPort {
		return []networkingv1.NetworkPolicyPort{{Port: &p, EndPort: end}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	ingress := func(ports []networkingv1.NetworkPolicyPort, from ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicySpec {
		return networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from, Ports: ports}}}
	}
	everyone := networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}
	other := networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}
	for name, c := range map[string]struct {
		spec    networkingv1.NetworkPolicySpec
		in, out bool // forbidden
	}{
		"deny ingress":         {networkingv1.NetworkPolicySpec{}, true, false},
		"of other pods":        {other, false, false},
		"deny egress":          {networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}, false, true},
		"everyone of clusters": {ingress(nil, everyone), true, false},
		"anyone":               {ingress(nil), false, false},
		"the range":            {ingress(nil, everyone, block("120.1.0.0/24")), false, false},
		"but this address":     {ingress(nil, block("120.1.0.0/24", "120.1.0.0/30")), true, false},
		"another range":        {ingress(nil, block("120.3.0.0/24")), true, false},
		"the port":             {ingress(port(intstr.FromInt32(8080), nil)), false, false},
		"the named port":       {ingress(port(intstr.FromString("http"), nil)), false, false},
		"another named port":   {ingress(port(intstr.FromString("metrics"), nil)), true, false},
		"a range of ports":     {ingress(port(intstr.FromInt32(8000), ptr.To[int32](9000))), false, false},
		"another port":         {ingress(port(intstr.FromInt32(80), nil)), true, false},
		"an egress rule":       {networkingv1.NetworkPolicySpec{Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{block("120.2.0.0/24")}}}}, true, true},
	} {
		policies := []networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "p"}, Spec: c.spec},
			{ObjectMeta: metav1.ObjectMeta{Namespace: "elsewhere", Name: "deny"}}}
		for out, want := range map[bool]bool{false: c.in, true: c.out} {
			if got := forbids(policies, pod, out, ip("120.1.0.1"), corev1.ProtocolTCP, 8080); (len(got) > 0) != want {
				t.Errorf("%s, out %t: %v, want forbidden %t", name, out, got, want)
			}
		}
	}
}
