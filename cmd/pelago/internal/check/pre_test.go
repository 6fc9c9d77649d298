package check

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// A cluster before it joins: what cannot work is an error, what may not is a warning, and what
// works is silent.
func TestPre(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"gitVersion":"v1.36.0"}`)) // a test server's connection
	}))
	t.Cleanup(server.Close)
	kube := func(name string, data map[string]string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: at("kube-system", name), Data: data}
	}
	routing := map[string]string{"kube-proxy-replacement": "true", "enable-bpf-masquerade": "true"}
	cilium := func(version string, data map[string]string) []client.Object {
		d := &appsv1.DaemonSet{ObjectMeta: at("kube-system", "cilium")}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "cilium-agent", Image: "quay.io/cilium/cilium:" + version}}
		return []client.Object{d, kube("cilium-config", data)}
	}
	with := func(m map[string]string, key, value string) map[string]string {
		out := map[string]string{key: value}
		for k, v := range m {
			out[k] = v
		}
		return out
	}
	ovn := func(mode string) []client.Object {
		d := &appsv1.DaemonSet{ObjectMeta: at("ovn-kubernetes", "ovnkube-node")}
		d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "ovnkube-node", Env: []corev1.EnvVar{{Name: "OVN_GATEWAY_MODE", Value: mode}}}}
		return []client.Object{d}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		node    func(*corev1.Node)
		denied  string // resource that may not be created
		nodes   int    // 2 unless given
		want    string // code and verdict; empty: silent
		reason  string
		remedy  string
	}{
		"a plain cluster":                       {},
		"Cilium 1.15.19, BPF host routing":      {objects: cilium("v1.15.19", routing), want: "PLG-P002 error", reason: "Cilium 1.15.19", remedy: "enable-host-legacy-routing=true"},
		"Cilium 1.19.3 by its digest":           {objects: cilium("v1.19.3@sha256:00", routing), want: "PLG-P002 error", reason: "Cilium 1.19.3", remedy: "upgrade Cilium to 1.20"},
		"Cilium 1.15.19, legacy host routing":   {objects: cilium("v1.15.19", with(routing, "enable-host-legacy-routing", "true"))},
		"Cilium 1.15.19, kube-proxy":            {objects: cilium("v1.15.19", map[string]string{"kube-proxy-replacement": "false", "enable-bpf-masquerade": "true"})},
		"Cilium 1.20.2, BPF host routing":       {objects: cilium("v1.20.2", routing)},
		"Cilium of a version that is not known": {objects: cilium("latest", routing), want: "PLG-P002 warning", reason: "not known", remedy: "1.20"},
		"Cilium 1.20.2 on an older kernel": {objects: cilium("v1.20.2", routing), node: func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "6.1.0-28-amd64" },
			want: "PLG-P002 warning", reason: "6.1.0", remedy: "6.6"},
		"Cilium with netkit":             {objects: cilium("v1.20.2", map[string]string{"datapath-mode": "netkit"}), want: "PLG-P002 error", reason: "netkit", remedy: "veth"},
		"OVN-Kubernetes, shared gateway": {objects: ovn("shared"), want: "PLG-P002 error", reason: "shared gateway mode", remedy: "routingViaHost=true"},
		"OVN-Kubernetes, local gateway":  {objects: ovn("local"), want: "PLG-P002 warning", reason: "local gateway mode", remedy: "test it"},
		"OVN-Kubernetes":                 {objects: ovn(""), want: "PLG-P002 warning", reason: "not known", remedy: "routingViaHost=true"},
		"Open vSwitch":                   {objects: []client.Object{&appsv1.DaemonSet{ObjectMeta: at("kube-system", "antrea-agent")}}, want: "PLG-P002 warning", reason: "antrea", remedy: "test it"},
		"an old kernel":                  {node: func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "5.4.0-150-generic" }, want: "PLG-P001 error", reason: "5.4.0", remedy: "6.1"},
		"an older kernel":                {node: func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "5.15.0-1" }, want: "PLG-P001 warning", reason: "5.15.0", remedy: "6.1"},
		"an old kernel of arm64": {node: func(n *corev1.Node) {
			n.Status.NodeInfo.KernelVersion, n.Status.NodeInfo.Architecture = "5.15.0-1", "arm64"
		}, want: "PLG-P001 error", reason: "5.18", remedy: "6.1"},
		"another architecture": {node: func(n *corev1.Node) { n.Status.NodeInfo.Architecture = "s390x" }, want: "PLG-P001 error", reason: "s390x", remedy: "amd64"},
		"a Windows node":       {node: func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" }, want: "PLG-P001 warning", reason: "windows", remedy: "none"},
		"kube-proxy in ipvs":   {objects: []client.Object{kube("kube-proxy", map[string]string{"config.conf": "kind: KubeProxyConfiguration\nmode: \"ipvs\"\nclusterCIDR: 10.7.0.0/16\n"})}},
		"kube-proxy in userspace": {objects: []client.Object{kube("kube-proxy", map[string]string{"config.conf": "mode: userspace\nclusterCIDR: 10.7.0.0/16\n"})},
			want: "PLG-P003 warning", reason: "userspace", remedy: "nftables"},
		"no rights":  {denied: "clusterroles", want: "PLG-P005 error", reason: "create clusterroles", remedy: "cluster-admin"},
		"one node":   {nodes: 1, want: "PLG-P006 warning", reason: "1 nodes", remedy: "add a node"},
		"Submariner": {objects: []client.Object{&coordinationv1.Lease{ObjectMeta: at("submariner-operator", "submariner-gateway-lock"), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("gw")}}}, want: "PLG-P008 warning", reason: "gw", remedy: "migrate submariner"},
		"a pod outside of all ranges": {objects: []client.Object{&corev1.Pod{ObjectMeta: at("default", "a"), Status: corev1.PodStatus{Phase: corev1.PodRunning,
			PodIPs: []corev1.PodIP{{IP: "172.20.0.1"}}}}}, want: "PLG-P004 error", reason: "default/a", remedy: "--clustercidr"},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{objects: map[string][]client.Object{}, now: time.Now()}
			objects := []client.Object{&corev1.Namespace{ObjectMeta: at("", "kube-system")}}
			nodes := 2
			if tt.nodes > 0 {
				nodes = tt.nodes
			}
			for i := range nodes {
				n := &corev1.Node{ObjectMeta: at("", string(rune('a'+i))), Status: corev1.NodeStatus{
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
					NodeInfo:   corev1.NodeSystemInfo{KernelVersion: "6.12.9-amd64", OperatingSystem: "linux", Architecture: "amd64"}}}
				if tt.node != nil && i == 0 {
					tt.node(n)
				}
				objects = append(objects, n)
			}
			proxy := false
			for _, o := range tt.objects {
				proxy = proxy || o.GetName() == "kube-proxy"
			}
			if !proxy {
				objects = append(objects, kube("kube-proxy", map[string]string{"config.conf": "mode: \"\"\nclusterCIDR: 10.7.0.0/16\n"}))
			}
			w.objects["c"] = append(objects, tt.objects...)
			c := w.client(t, "c")
			typed := []runtime.Object{&networkingv1.ServiceCIDR{ObjectMeta: at("", "kubernetes"), Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.77.0.0/16"}}}}
			for _, o := range w.objects["c"] {
				typed = append(typed, o)
			}
			clientset := fake.NewClientset(typed...)
			clientset.PrependReactor("create", "selfsubjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
				review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview).DeepCopy()
				review.Status.Allowed = review.Spec.ResourceAttributes.Resource != tt.denied
				return true, review, nil
			})
			target := Target{Context: "c", Joining: true, Open: func() (view.Member, error) {
				return view.Member{Config: &rest.Config{Host: server.URL}, Client: c, Typed: clientset}, nil
			}}
			r := Run(Read(t.Context(), []Target{target}, time.Minute, true, Selection{}), Selection{})
			all := r.Findings()
			switch {
			case tt.want == "" && len(all) > 0:
				t.Errorf("findings %+v", all)
			case tt.want == "":
			case len(all) == 0:
				t.Error("nothing is found")
			default:
				f := all[0]
				if f.Code+" "+string(f.Verdict) != tt.want || !strings.Contains(f.Reason+f.Object, tt.reason) || !strings.Contains(f.Remedy, tt.remedy) {
					t.Errorf("findings %+v", all)
				}
			}
		})
	}
}

// What pods on the nodes have found: MTUs that are small or differ, and ports that are taken.
func TestPreNodes(t *testing.T) {
	c := Cluster{Context: "c", Joining: true}
	only := Selection{Only: []string{"PLG-P010", "PLG-P011"}}
	if r := Run(&Set{Clusters: []Cluster{c}}, only); len(r.Outcomes) != 0 {
		t.Errorf("without pods: %+v", r)
	}
	c.Before.Nodes = []NodeFacts{{Node: "a", Device: "eth0", MTU: 1500, UDP: []uint16{53, 68}}, {Node: "b", Device: "eth0", MTU: 1500}}
	if r := Run(&Set{Clusters: []Cluster{c}}, only); r.Verdict != OK || len(r.Outcomes) != 2 {
		t.Errorf("as it should be: %+v", r)
	}
	c.Before.Nodes = []NodeFacts{{Node: "a", Device: "eth0", MTU: 1500, UDP: []uint16{4500, 4800}}, {Node: "b", Device: "ens3", MTU: 1380}, {Node: "c", Device: "eth0", MTU: 1450}}
	var got []string
	for _, f := range Run(&Set{Clusters: []Cluster{c}}, only).Findings() {
		got = append(got, f.Code+" "+string(f.Verdict)+" "+f.Object+": "+f.Reason)
	}
	if diff := cmp.Diff([]string{"PLG-P010 error Node b: its uplink ens3 has an MTU of 1380", "PLG-P011 error Node a: a process listens on UDP 4800",
		"PLG-P010 warning Node c: its uplink eth0 has an MTU of 1450, that of another node 1500: larger packets between the two may be lost",
		"PLG-P011 warning Node a: a process listens on UDP 4500, which the node needs as a gateway"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	c.Member = true // its own ports
	if r := Run(&Set{Clusters: []Cluster{c}}, Selection{Only: []string{"PLG-P011"}}); r.Verdict != OK {
		t.Errorf("a cluster that has joined: %+v", r)
	}
}

// An API server before it is a hub: what deploy-broker and init need.
func TestPreHub(t *testing.T) {
	answers := map[string]string{"/version": `{"gitVersion":"v1.36.0"}`, "/readyz": "[+]ping ok\n[-]etcd failed: reason withheld\n",
		"/metrics": "# TYPE apiserver_storage_size_bytes gauge\napiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"} 7.5e+09\n"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(answers[r.URL.Path])) // a test server's connection
	}))
	t.Cleanup(server.Close)
	cfg := &rest.Config{Host: server.URL}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := Cluster{Context: "hub", Hosting: true, unread: map[source]error{}}
	m := view.Member{Config: cfg, Typed: typed}
	if err := errors.Join(readReadyz(t.Context(), m, &c), readStored(t.Context(), m, &c)); err != nil {
		t.Fatal(err)
	}
	c.Before.Denied = []string{"create secrets"}
	want := []string{"PLG-P020 error: the user may not create secrets", "PLG-P021 error: check etcd failed: reason withheld fails",
		"PLG-P022 error: the API server does not serve ValidatingAdmissionPolicies of admissionregistration.k8s.io/v1",
		"PLG-P023 warning: it stores 7.0 GiB; its quota in a hub of `pelago init` is 8 GiB, beyond which it accepts no writes"}
	var got []string
	for _, f := range Run(&Set{Clusters: []Cluster{c}}, Selection{Only: []string{"P"}}).Findings() {
		got = append(got, f.Code+" "+string(f.Verdict)+": "+f.Reason)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	c.Hub, c.Hosting = true, false
	if r := Run(&Set{Clusters: []Cluster{c}}, Selection{Only: []string{"PLG-H012"}}); r.Verdict != Warning {
		t.Errorf("a hub that is nearly full: %+v", r)
	}
	answers = map[string]string{"/readyz": "[+]ping ok\n", "/metrics": "apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"} 1.2e+07\n"}
	c = Cluster{Context: "hub", Hosting: true, unread: map[source]error{}}
	c.Before.Admission = true
	if err := errors.Join(readReadyz(t.Context(), m, &c), readStored(t.Context(), m, &c)); err != nil || c.Stored != 1.2e7 {
		t.Errorf("%v, %g bytes are stored", err, c.Stored)
	}
	if r := Run(&Set{Clusters: []Cluster{c}}, Selection{Only: []string{"P"}}); r.Verdict != OK || len(r.Outcomes) != 4 {
		t.Errorf("an API server that can be a hub: %+v", r)
	}
}

// A range of the cluster that another one has is an error without globalnet.
func TestFitsClusterset(t *testing.T) {
	other := submarinerv1.Cluster{ObjectMeta: at("b", "c2"), Spec: submarinerv1.ClusterSpec{ClusterCIDR: []string{"10.7.128.0/17"}}}
	c := Cluster{Context: "c", Joining: true}
	c.Before.Facts.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}
	c.Before.Registered = []submarinerv1.Cluster{other}
	only := Selection{Only: []string{"PLG-P009", "PLG-P007"}}
	r := Run(&Set{Clusters: []Cluster{c}}, only)
	if all := r.Findings(); len(all) != 2 || all[0].Code != "PLG-P009" || !strings.Contains(all[0].Reason, "10.7.128.0/17") || all[1].Code != "PLG-P007" {
		t.Errorf("findings %+v", all)
	}
	c.Before.Registered[0].Spec.GlobalCIDR = []string{"242.0.0.0/24"}
	c.Nodes = []corev1.Node{{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "198.51.100.1"}}}}}
	if r := Run(&Set{Clusters: []Cluster{c}}, only); r.Verdict != OK {
		t.Errorf("with globalnet and a public address: %+v", r.Findings())
	}
}

// The last line of join.
func TestConnected(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*world)
		done   bool
		want   string
	}{
		"all":       {func(*world) {}, true, "2 of 2 gateways connected, 3ms"},
		"no others": {func(w *world) { without[*pelagov1alpha1.Peer](w, "g1", "g2") }, true, "2 of 2 gateways connected, 3ms"},
		"one": {func(w *world) {
			g := get[*submarinerv1.Gateway](w, "g1", "g1-n2")
			for i := range g.Status.Connections {
				g.Status.Connections[i].Status, g.Status.Connections[i].StatusMessage = submarinerv1.ConnectionError, "no answer"
			}
		}, false, "1 of 2 gateways connected, 3ms: from g1-n2 to gateway g2-n2 of cluster g2: no answer (see `pelago check`)"},
		"one that waits for acceptance": {func(w *world) {
			get[*pelagov1alpha1.Peer](w, "g1", "g2").Status.Conditions = []metav1.Condition{{Type: "Accepted", Status: "False", Reason: "Unapproved", Message: "accept g2"}}
		}, true, "2 of 2 gateways connected, 3ms"},
	} {
		w := newWorld(t)
		tt.change(w)
		got, err := Connected(t.Context(), w.client(t, "g1"))
		if err != nil || got.Done() != tt.done || got.String() != tt.want {
			t.Errorf("%s: %t %q %v", name, got.Done(), got, err)
		}
		if waits := strings.HasPrefix(name, "one that waits"); waits != (got.Waiting == "accept g2") {
			t.Errorf("%s: waiting %q", name, got.Waiting)
		}
	}
}
