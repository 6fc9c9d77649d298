package lab

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// testLab is a lab of the default shape whose files are in a temporary
// directory; nothing of it runs.
func testLab(t *testing.T) *Lab {
	t.Helper()
	o := Options{Underlay: prefix("172.31.0.0/16"), Addressing: Overlapping}.withDefaults()
	plan, err := newPlan(o)
	if err != nil {
		t.Fatal(err)
	}
	return &Lab{dir: t.TempDir(), record: record{ID: "id", Options: o, Plan: plan, Kubernetes: "/kube"}, progress: func(string) {}}
}

func TestCertificates(t *testing.T) {
	l := testLab(t)
	c := l.Plan().Clusters[0]
	if err := l.prepareControlPlane(c); err != nil {
		t.Fatal(err)
	}
	pki := filepath.Join(l.clusterDir("g1"), "pki")
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(pki, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(read("ca.crt"))
	pair, err := tls.X509KeyPair(read("apiserver.crt"), read("apiserver.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"172.31.1.2", "10.77.0.1", "kubernetes.default.svc", "localhost"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("API server as %s: %v", host, err)
		}
	}
	kubelet, err := tls.X509KeyPair(read("apiserver-kubelet-client.crt"), read("apiserver-kubelet-client.key"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubelet.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("API server as the kubelets' client: %v", err)
	}
	front, _ := pem.Decode(read("front-proxy-client.crt"))
	proxy, err := x509.ParseCertificate(front.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proxy.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
		t.Error("the front proxy's client is signed by the cluster's CA: anybody with it could claim to be anyone")
	}
	// Preparing again keeps what is in use.
	before := read("apiserver.crt")
	if err := l.prepareControlPlane(c); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(before, read("apiserver.crt")) {
		t.Error("preparing again issued another certificate")
	}
}

func TestMergedKubeconfig(t *testing.T) {
	l := testLab(t)
	for _, c := range l.Plan().Clusters {
		if err := l.prepareControlPlane(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.writeKubeconfig(); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(l.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, context := range config.Contexts {
		got[name] = config.Clusters[context.Cluster].Server + " " + context.AuthInfo
		if len(config.AuthInfos[context.AuthInfo].ClientCertificateData) == 0 {
			t.Errorf("context %s has no credentials", name)
		}
	}
	want := map[string]string{"g1": "https://172.31.1.2:6443 g1-admin", "g2": "https://172.31.2.2:6443 g2-admin", "hub": "https://172.31.255.2:6443 hub-admin"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contexts (-want +got):\n%s", diff)
	}
	if config.CurrentContext != "g1" {
		t.Errorf("current context = %s, want g1", config.CurrentContext)
	}
	if _, err := l.RESTConfig("g2"); err != nil {
		t.Error(err)
	}
	if _, err := l.RESTConfig("g9"); err == nil || !strings.Contains(err.Error(), "g9") {
		t.Errorf("RESTConfig of an unknown cluster: %v, want an error that names it", err)
	}
}

func TestHubRunsTheNamedControllersOnly(t *testing.T) {
	l := testLab(t)
	hub, err := l.Plan().Cluster(hubName)
	if err != nil {
		t.Fatal(err)
	}
	controllers := slices.IndexFunc(controllerManagerArgs(hub, "/d"), func(a string) bool { return strings.HasPrefix(a, "--controllers=") })
	list := strings.TrimPrefix(controllerManagerArgs(hub, "/d")[controllers], "--controllers=")
	if strings.Contains(list, "*") || strings.Contains(list, "deployment") || !strings.Contains(list, "garbage-collector-controller") {
		t.Errorf("controllers of the hub: %s", list)
	}
	for arg, want := range map[string]bool{"--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection": true,
		"--enable-bootstrap-token-auth": true, "--enable-aggregator-routing": false, "--service-cluster-ip-range=10.96.0.0/12": true,
		"--enable-admission-plugins=NodeRestriction": false} {
		if got := slices.Contains(apiServerArgs(hub, "/d"), arg); got != want {
			t.Errorf("the hub's API server has %s: %v, want %v", arg, got, want)
		}
	}
	if diff := cmp.Diff([]string{"etcd", "kube-apiserver", "kube-controller-manager"}, hub.components()); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
}

func TestNodeFiles(t *testing.T) {
	l := testLab(t)
	c := l.Plan().Clusters[0]
	if err := l.prepareControlPlane(c); err != nil {
		t.Fatal(err)
	}
	values := l.values(c, c.Nodes[1])
	var kubelet, proxy map[string]any
	for name, into := range map[string]*map[string]any{"kubelet.yaml": &kubelet, "kube-proxy.yaml": &proxy} {
		text, err := render(name, values)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if got := []any{kubelet["cgroupRoot"], kubelet["clusterDNS"], proxy["mode"], proxy["clusterCIDR"]}; !cmp.Equal(got,
		[]any{"/pelago-lab/pelago/g1-n2", []any{"10.77.0.10"}, "iptables", "10.7.0.0/16"}) {
		t.Errorf("cgroup, DNS, mode, pods = %v", got)
	}
	text, err := render("cni.json", values)
	if err != nil {
		t.Fatal(err)
	}
	var cni any
	if err := json.Unmarshal([]byte(text), &cni); err != nil {
		t.Fatalf("cni.json: %v", err)
	}
	if !strings.Contains(text, `"subnet": "10.7.2.0/24"`) {
		t.Errorf("cni.json lacks the node's pods:\n%s", text)
	}
	any, err := render("masquerade.nft", values)
	if err != nil {
		t.Fatal(err)
	}
	values.UplinkOnly = true
	uplink, err := render("masquerade.nft", values)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(any, "oifname") || !strings.Contains(uplink, `oifname "eth0"`) {
		t.Errorf("masquerade any:\n%s\nuplink:\n%s", any, uplink)
	}
}

func TestCoreDNSManifest(t *testing.T) {
	l := testLab(t)
	text, err := render("coredns.yaml", l.values(l.Plan().Clusters[0], Node{}))
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		_, kind, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		kinds = append(kinds, kind.Kind)
	}
	want := []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "Service"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
}

func TestBootIDsDiffer(t *testing.T) {
	a, b := newBootID(), newBootID()
	if a == b || len(a) != 36 || strings.Count(a, "-") != 4 {
		t.Errorf("boot ids %q and %q, want two different UUIDs", a, b)
	}
}

func TestPackages(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range Packages() {
		if seen[p.Name] || p.Reason == "" || !strings.HasPrefix(p.Probe, "/") {
			t.Errorf("package %+v: named twice, or without reason or probe", p)
		}
		seen[p.Name] = true
	}
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	brought := filepath.Join(dir, "brought-by-module")
	packages := []Package{
		{"present", "reason", "/", true},
		{"optional", "reason", "/no/such/optional", false},
		{"runtime", "runs containers", "/no/such/runtime", true},
	}
	features := []feature{
		{"/proc", "processes", ""},
		{"/no/such/feature", "magic", ""},
		{brought, "a module's feature", "good"},
		{"/no/such/other", "another feature", "bad"},
	}
	err := check(packages, features, func(module string) error {
		if module == "good" {
			return os.WriteFile(brought, nil, 0o600)
		}
		return errors.New("no such module")
	})
	want := `/no/such/runtime is missing: install the Debian package runtime (runs containers), or all by "pelago-lab prerequisites --install"
the kernel lacks magic, /no/such/feature does not exist: another kernel is needed
the kernel lacks another feature, /no/such/other does not exist: modprobe bad failed`
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
	if err := check(packages[:2], features[:1], nil); err != nil {
		t.Errorf("nothing is missing: %v", err)
	}
}

func TestMachineLimitsAreRestored(t *testing.T) {
	dir := t.TempDir()
	l := limits{dir: dir, file: filepath.Join(t.TempDir(), "machine.json")}
	set := func(low, high int) {
		t.Helper()
		if err := errors.Join(l.write("low", low), l.write("high", high)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, low, high int) {
		t.Helper()
		gotLow, err1 := l.read("low")
		gotHigh, err2 := l.read("high")
		if err := errors.Join(err1, err2); err != nil || gotLow != low || gotHigh != high {
			t.Errorf("%s: low %d, high %d, %v; want %d and %d", when, gotLow, gotHigh, err, low, high)
		}
	}
	set(128, 9000)
	want := map[string]int{"low": 8192, "high": 8192}
	for range 2 { // the second lab must not remember the first one's value
		if err := l.raise(want); err != nil {
			t.Fatal(err)
		}
		expect("raised", 8192, 9000)
	}
	for range 2 {
		if err := l.restore(); err != nil {
			t.Fatal(err)
		}
		expect("restored", 128, 9000)
	}
	if exists(l.file) {
		t.Error("the record of former values is still there")
	}
	if err := l.raise(map[string]int{"absent": 1}); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a limit that does not exist: %v", err)
	}
}

func TestWriteFileReplacesAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "deep/er/file")
	for _, text := range []string{"one", "two"} {
		if err := writeFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != text {
			t.Errorf("file = %q, %v, want %q", data, err, text)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 1 {
		t.Errorf("entries = %v, %v, want no temporary file left", entries, err)
	}
}
