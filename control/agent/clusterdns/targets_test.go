package clusterdns

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodeLocal is the Corefile of NodeLocal DNSCache with kube-proxy in mode iptables. The daemon
// replaces the words in underscores itself, so they are in the ConfigMap.
const nodeLocal = `cluster.local:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind 169.254.20.10 10.96.0.10
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health 169.254.20.10:8080
    }
in-addr.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind 169.254.20.10 10.96.0.10
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
.:53 {
    errors
    cache 30
    reload
    loop
    bind 169.254.20.10 10.96.0.10
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
`

// TestDistributions: what is written into the DNS configuration of each distribution, and that
// removal leaves nothing of it behind.
func TestDistributions(t *testing.T) {
	const rke2 = ".:53 {\n    errors \n    health  {\n        lameduck 10s\n    }\n    ready \n    kubernetes   cluster.local  cluster.local in-addr.arpa ip6.arpa {\n" +
		"        pods insecure\n        fallthrough in-addr.arpa ip6.arpa\n        ttl 30\n    }\n    prometheus   0.0.0.0:9153\n    forward   . /etc/resolv.conf\n    cache   30\n    loop \n    reload \n    loadbalance \n}"
	const microk8s = ".:53 {\n    errors\n    health {\n      lameduck 5s\n    }\n    ready\n    log . {\n      class error\n    }\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n" +
		"      pods insecure\n      fallthrough in-addr.arpa ip6.arpa\n    }\n    prometheus :9153\n    forward . 8.8.8.8 8.8.4.4 \n    cache 30\n    loop\n    reload\n    loadbalance\n}\n"
	const k3s = ".:53 {\n    errors\n    health\n    ready\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n      pods insecure\n      fallthrough in-addr.arpa ip6.arpa\n    }\n" +
		"    hosts /etc/coredns/NodeHosts {\n      ttl 60\n      reload 15s\n      fallthrough\n    }\n    prometheus :9153\n    forward . /etc/resolv.conf\n    cache 30\n    loop\n    reload\n    loadbalance\n" +
		"    import /etc/coredns/custom/*.override\n}\nimport /etc/coredns/custom/*.server\n"
	if !ImportsServers(k3s) || ImportsServers(microk8s) {
		t.Error("imports of server blocks are not found by the Corefile")
	}
	const zones = "clusterset.local:53 243.in-addr.arpa:53 {\n"
	const after = "    forward . 10.77.0.20\n}\n#pelago-end\n"
	for _, c := range []struct {
		about  string
		target string // of Targets, by its ConfigMap
		custom string
		data   map[string]string
		want   string // of the key, before what was there
	}{
		{"kubeadm, kind, EKS", "coredns", "", map[string]string{"Corefile": kubeadm}, startMarker + "\n" + zones + after},
		{"MicroK8s", "coredns", "", map[string]string{"Corefile": microk8s}, startMarker + "\n" + zones + after},
		{"RKE2", "rke2-coredns-rke2-coredns", "", map[string]string{"Corefile": rke2}, startMarker + "\n" + zones + after},
		{"AKS and k3s", "coredns-custom", CustomName, map[string]string{"log.override": "log\n"}, startMarker + "\n" + zones + after},
		{"a ConfigMap without data", "coredns-custom", CustomName, nil, startMarker + "\n" + zones + after},
		{"NodeLocal DNSCache", "node-local-dns", "", map[string]string{"Corefile": nodeLocal}, startMarker + "\n" + zones + "    bind 169.254.20.10 10.96.0.10\n" + after},
		{"NodeLocal DNSCache of Kubespray", "nodelocaldns", "", map[string]string{"Corefile": strings.ReplaceAll(nodeLocal, "20.10", "25.10")},
			startMarker + "\n" + zones + "    bind 169.254.25.10 10.96.0.10\n" + after},
	} {
		t.Run(c.about, func(t *testing.T) {
			f := Forward{Zones: []string{"clusterset.local", "243.in-addr.arpa"}, To: server20}
			var target Target
			for _, some := range Targets(c.custom) {
				if some.ConfigMap == (types.NamespacedName{Namespace: "kube-system", Name: c.target}) {
					target = some
				}
			}
			cm := &corev1.ConfigMap{Data: c.data}
			before := cm.DeepCopy()
			if err := target.Forwards(cm, f); err == nil || !strings.Contains(err.Error(), "no or another block") {
				t.Errorf("before: got %v", err)
			}
			if changed, err := target.apply(cm, &f); err != nil || !changed {
				t.Fatalf("changed %v, %v", changed, err)
			}
			if diff := cmp.Diff(c.want+before.Data[target.Key], cm.Data[target.Key]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if err := target.Forwards(cm, f); err != nil {
				t.Errorf("after: got %v", err)
			}
			if changed, err := target.apply(cm, &f); err != nil || changed {
				t.Errorf("again: changed %v, %v", changed, err)
			}
			f.Cache = 2 * time.Second
			if _, err := target.apply(cm, &f); err != nil || !strings.Contains(cm.Data[target.Key], "\n    cache 2\n    forward . 10.77.0.20\n") {
				t.Errorf("with a cache: %v\n%s", err, cm.Data[target.Key])
			}
			if changed, err := target.Clean(cm); err != nil || !changed {
				t.Errorf("clean: changed %v, %v", changed, err)
			}
			for key, text := range before.Data {
				if cm.Data[key] != text {
					t.Errorf("left in key %s:\n%s", key, cm.Data[key])
				}
			}
			if len(cm.Data) != len(before.Data) {
				t.Errorf("keys left: %v", cm.Data)
			}
		})
	}
}

// TestOperator: spec.servers of OpenShift's DNS operator, as JSON.
func TestOperator(t *testing.T) {
	const foreign = `{"name":"corp","zones":["corp.example"],"forwardPlugin":{"policy":"Random","upstreams":["192.0.2.1"]}}`
	const ours = `{"name":"pelago","zones":["clusterset.local","243.in-addr.arpa"],"forwardPlugin":{"upstreams":["10.77.0.20"]}}`
	f := &Forward{Zones: []string{"clusterset.local.", "243.in-addr.arpa"}, To: server20}
	for _, c := range []struct {
		about   string
		before  string // spec
		forward *Forward
		want    string // spec; "": unchanged
		problem string
	}{
		{"new cluster", `{}`, f, `{"servers":[` + ours + `]}`, ""},
		{"no spec", ``, f, `{"servers":[` + ours + `]}`, ""},
		{"after others", `{"logLevel":"Normal","servers":[` + foreign + `]}`, f, `{"logLevel":"Normal","servers":[` + foreign + `,` + ours + `]}`, ""},
		{"again", `{"servers":[` + ours + `]}`, f, "", ""},
		{"with the operator's defaults", `{"servers":[` + strings.Replace(ours, `{"upstreams"`, `{"policy":"Random","protocolStrategy":"","upstreams"`, 1) + `]}`, f, "", ""},
		{"another address", `{"servers":[` + strings.Replace(ours, `{"upstreams":["10.77.0.20"`, `{"policy":"Random","upstreams":["10.77.0.9"`, 1) + `,` + foreign + `]}`, f,
			`{"servers":[` + strings.Replace(ours, `{"upstreams"`, `{"policy":"Random","upstreams"`, 1) + `,` + foreign + `]}`, ""},
		{"the Service is gone", `{"servers":[` + foreign + `,` + ours + `]}`, nil, `{"servers":[` + foreign + `]}`, ""},
		{"nothing to remove", `{"servers":[` + foreign + `]}`, nil, "", ""},
		{"Submariner's entry", `{"servers":[{"name":"lighthouse","zones":["clusterset.local"]}]}`, f, "", "delete that entry"},
		{"zone taken", `{"servers":[{"name":"mine","zones":["x.example","clusterset.local"]}]}`, f, "", "entry mine of spec.servers has zone clusterset.local already"},
		{"headless Service", `{}`, &Forward{Zones: f.Zones}, "", "must not be headless"},
		{"not a list", `{"servers":"x"}`, f, "", "read DNS default of OpenShift"},
	} {
		t.Run(c.about, func(t *testing.T) {
			u := NewOperator()
			u.SetName(OperatorName)
			parse := func(text string) any {
				var spec any
				if err := json.Unmarshal([]byte(text), &spec); err != nil {
					t.Fatal(err)
				}
				return spec
			}
			if c.before != "" {
				u.Object["spec"] = parse(c.before)
			}
			before := u.DeepCopy()
			changed, err := ApplyOperator(u, c.forward)
			if (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Fatalf("got error %v, want %q", err, c.problem)
			}
			if changed != (c.want != "") {
				t.Errorf("changed: %v", changed)
			}
			want := before.Object["spec"]
			if c.want != "" {
				want = parse(c.want)
			}
			if diff := cmp.Diff(want, u.Object["spec"]); diff != "" {
				t.Errorf("spec (-want +got):\n%s", diff)
			}
		})
	}
}
