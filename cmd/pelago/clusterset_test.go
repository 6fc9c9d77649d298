package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
	members "github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
	"github.com/pelago-net/pelago/test/apiserver"
)

// clusterset is a hub and a member, both API servers without nodes of their own, in one kubeconfig.
type clusterset struct {
	dir, kubeconfig string
	hub, member     *rest.Config
}

// newClusterset starts them; more are options of the hub.
func newClusterset(t *testing.T, more ...apiserver.Option) clusterset {
	t.Helper()
	c := clusterset{dir: t.TempDir(), hub: apiserver.Start(t, append(more, apiserver.HubControllers())...),
		member: apiserver.Start(t, apiserver.Controllers("namespace-controller", "garbage-collector-controller",
			"serviceaccount-token-controller"))}
	c.kubeconfig = filepath.Join(c.dir, "kubeconfig")
	kc := clientcmdapi.NewConfig()
	for name, cfg := range map[string]*rest.Config{"hub": c.hub, "g1": c.member} {
		kc.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
		kc.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
		kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	kc.CurrentContext = "g1"
	if err := clientcmd.WriteToFile(*kc, c.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c clusterset) infoFile() string { return filepath.Join(c.dir, broker.InfoFile) }

// pelago runs the command line and returns what it prints.
func (c clusterset) pelago(args ...string) (string, error) {
	var out bytes.Buffer
	err := c.into(context.Background(), &out, args...)
	return out.String(), err
}

// into runs the command line, which prints into out.
func (c clusterset) into(ctx context.Context, out io.Writer, args ...string) error {
	cmd := root("pelago")
	cmd.SetArgs(append(args, "--kubeconfig", c.kubeconfig))
	cmd.SetOut(out)
	cmd.SetErr(out)
	cmd.SetIn(strings.NewReader(""))
	return cmd.ExecuteContext(ctx)
}

// must runs the command line and fails the test if it fails.
func (c clusterset) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.pelago(args...)
	if err != nil {
		t.Fatalf("pelago %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// fails runs the command line and fails the test unless its error has the words.
func (c clusterset) fails(t *testing.T, words string, args ...string) {
	t.Helper()
	out, err := c.pelago(args...)
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("pelago %s: error %v, want one with %q\n%s", strings.Join(args, " "), err, words, out)
	}
}

func (c clusterset) deployBroker(t *testing.T, more ...string) string {
	t.Helper()
	return c.must(t, append([]string{"deploy-broker", "--context", "hub", "--globalnet", "--globalnet-cidr-range", "120.0.0.0/8",
		"--output", c.infoFile()}, more...)...)
}

// propagated are the definitions of a hub that propagates workloads, as an earlier installation has
// left them.
func propagated(t *testing.T) apiserver.Option {
	t.Helper()
	crds, err := manifests.PropagationCRDs()
	must(t, err)
	return apiserver.InstalledCRDs(manifests.LabelCRDRevision, "1", names(crds)...)
}

// propagates makes the hub propagate workloads, as init does, which first waits to see whether
// workload controllers run.
func (c clusterset) propagates(t *testing.T) {
	t.Helper()
	must(t, manifests.Propagation(t.Context(), open(t, c.hub), manifests.PropagationOptions{}, t.Logf))
}

func (c clusterset) join(args ...string) []string {
	return append([]string{"join", c.infoFile(), "--context", "g1", "--wait=false", "--yes"}, args...)
}

func open(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	m, err := openCluster(rest.CopyConfig(cfg))
	if err != nil {
		t.Fatal(err)
	}
	return m.Client
}

func TestDeployBrokerAndJoin(t *testing.T) {
	t.Parallel()
	c := newClusterset(t)
	ctx := context.Background()
	hub, member := open(t, c.hub), open(t, c.member)
	for name, labels := range map[string]map[string]string{"n0": {"node-role.kubernetes.io/control-plane": ""}, "n1": nil, "n2": nil} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: corev1.NodeSpec{PodCIDR: map[string]string{"n0": "10.7.0.0/24", "n1": "10.7.1.0/24", "n2": "10.7.2.0/24"}[name]}}
		if err := member.Create(ctx, node); err != nil {
			t.Fatal(err)
		}
	}

	c.fails(t, "run `pelago deploy-broker` at the hub", c.join("--clusterid", "g1")...)
	t.Log(c.deployBroker(t))
	if stat, err := os.Stat(c.infoFile()); err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("broker-info.subm: %v, %v; want mode 0600", stat.Mode(), err)
	}
	first := readFile(t, c.infoFile())
	c.deployBroker(t)
	kept, err := filepath.Glob(c.infoFile() + ".*")
	if err != nil || len(kept) != 1 || readFile(t, kept[0]) != first {
		t.Errorf("the former broker-info.subm is in %q (%v), want one file with its content", kept, err)
	}
	a, b := info(t, kept[0]), info(t, c.infoFile())
	if !bytes.Equal(a.IPSecPSK.Data["psk"], b.IPSecPSK.Data["psk"]) || len(b.IPSecPSK.Data["psk"]) != 48 {
		t.Error("deploying the broker again changed the IPsec key")
	}
	c.fails(t, "has not joined", "show", "networks", "--context", "g1")
	c.fails(t, "no kind ServiceExport", "export", "service", "kubernetes", "-n", "default", "--context", "g1")

	out := c.must(t, c.join("--clusterid", "g1", "--globalnet-cidr", "120.1.0.0/24")...)
	if !strings.Contains(out, "takes part in the network only") {
		t.Errorf("the hub has no kinds for workloads, but join does not report it:\n%s", out)
	}
	if !strings.Contains(out, "is connected to no other one before an administrator of the hub accepts it: pelago clusters accept g1") {
		t.Errorf("the cluster waits for approval, but join does not report it:\n%s", out)
	}
	if out := c.must(t, "clusters", "accept", "g1", "--context", "hub"); !strings.Contains(out, "Cluster g1 is accepted; it takes part in the network only") {
		t.Errorf("clusters accept: %s", out)
	}
	if out := c.must(t, c.join("--clusterid", "g1")...); strings.Contains(out, "accept") {
		t.Errorf("an accepted cluster joins again: %s", out)
	}
	want := config.Config{
		ClusterID: "g1", ClusterIndex: 1, GlobalCIDRs: prefixes(t, "120.1.0.0/24"), PodCIDRs: prefixes(t, "10.7.0.0/22"),
		ServiceCIDRs: prefixes(t, "10.77.0.0/16"), FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"), Mode: config.ModeSubmariner,
		GlobalRange: netip.MustParsePrefix("120.0.0.0/8"), ClusterSetIPCIDRs: prefixes(t, "243.0.0.0/20"), ClusterSetIPRange: netip.MustParsePrefix("243.0.0.0/8"),
		CableDriver: "wireguard", CablePort: 4500, Gateways: 2,
		HubID: uid(t, hub), HubServer: c.hub.Host, BrokerNamespace: manifests.BrokerNamespace,
	}
	m := &reader{t, member}
	if diff := cmp.Diff(want.Data(), m.config().Data()); diff != "" {
		t.Errorf("pelago-config: -want +got\n%s", diff)
	}
	if labels := m.node("n1").Labels; labels[submarinerv1.LabelGateway] != "true" {
		t.Errorf("the first worker has labels %v, want it to be the gateway", labels)
	}
	tokens := m.secret(config.OverlayTokenSecretName)
	if _, err := config.ParseOverlayTokens(tokens); err != nil {
		t.Error(err)
	}
	egress := &submarinerv1.ClusterGlobalEgressIP{}
	if err := member.Get(ctx, client.ObjectKey{Name: members.ClusterEgress}, egress); err != nil || egress.Spec.Count() != 8 {
		t.Errorf("cluster egress: %v, %d addresses; want 8", err, egress.Spec.Count())
	}
	access, err := config.ParseBroker(m.secret(config.BrokerSecretName))
	if err != nil {
		t.Fatal(err)
	}
	own := open(t, &rest.Config{Host: access.Server, BearerToken: access.Token, TLSClientConfig: rest.TLSClientConfig{CAData: access.CA}})
	cluster := &submarinerv1.Cluster{}
	if err := own.Get(ctx, client.ObjectKey{Namespace: access.Namespace, Name: "g1"}, cluster); err != nil {
		t.Fatalf("the member reads its Cluster with its own credential: %v", err)
	}
	if diff := cmp.Diff(submarinerv1.ClusterSpec{ClusterID: "g1", GlobalCIDR: []string{"120.1.0.0/24"},
		ClusterCIDR: []string{"10.7.0.0/22"}, ServiceCIDR: []string{"10.77.0.0/16"}, ClusterSetIPCIDR: []string{"243.0.0.0/20"}}, cluster.Spec); diff != "" {
		t.Errorf("Cluster: -want +got\n%s", diff)
	}

	t.Run("check", func(t *testing.T) {
		c.testCheck(t, tokens, m.secret(config.BrokerSecretName), m.secret(config.PSKSecretName))
	})

	t.Run("again", func(t *testing.T) {
		later := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3"}, Spec: corev1.NodeSpec{PodCIDR: "10.7.200.0/24"}}
		if err := member.Create(ctx, later); err != nil {
			t.Fatal(err)
		}
		c.must(t, c.join("--clusterid", "g1")...)
		if diff := cmp.Diff(want.Data(), m.config().Data()); diff != "" {
			t.Errorf("joining again changed pelago-config: -want +got\n%s", diff)
		}
		if diff := cmp.Diff(tokens, m.secret(config.OverlayTokenSecretName)); diff != "" {
			t.Error("joining again changed the overlay token")
		}
		if labels := m.node("n2").Labels; labels[submarinerv1.LabelGateway] != "" {
			t.Error("joining again made another node a gateway")
		}
	})
	t.Run("ranges grow", func(t *testing.T) {
		c.fails(t, "give ranges that contain all of the former", c.join("--clusterid", "g1", "--clustercidr", "10.7.0.0/23")...)
		c.must(t, c.join("--clusterid", "g1", "--clustercidr", "10.7.0.0/16,100.64.0.0/16", "--servicecidr", "10.77.0.0/16,10.78.0.0/16")...)
		want.PodCIDRs, want.ServiceCIDRs = prefixes(t, "10.7.0.0/16", "100.64.0.0/16"), prefixes(t, "10.77.0.0/16", "10.78.0.0/16")
		if diff := cmp.Diff(want.Data(), m.config().Data()); diff != "" {
			t.Errorf("pelago-config with grown ranges: -want +got\n%s", diff)
		}
		c.must(t, c.join("--clusterid", "g1")...)
		if diff := cmp.Diff(want.Data(), m.config().Data()); diff != "" {
			t.Errorf("joining again changed the grown ranges: -want +got\n%s", diff)
		}
	})
	t.Run("settings that are not given again stay", func(t *testing.T) { c.testKeptSettings(t, m) })
	t.Run("bad input", func(t *testing.T) {
		c.fails(t, `has joined as "g1"`, c.join("--clusterid", "other")...)
		c.fails(t, "already has GlobalCIDR", c.join("--clusterid", "g1", "--globalnet-cidr", "120.9.0.0/24")...)
		c.fails(t, "is registered with ranges of pods", c.join("--clusterid", "g1", "--clustercidr", "10.8.0.0/16")...)
		c.fails(t, "every cluster takes part in it", c.join("--clusterid", "g1", "--globalnet=false")...)
		c.fails(t, "has no such node; it has n0, n1, n2, n3", c.join("--clusterid", "g1", "--gateway-node", "n9")...)
		other := info(t, c.infoFile())
		other.IPSecPSK.Data["psk"] = []byte("of another clusterset")
		file := filepath.Join(c.dir, "other.subm")
		content, err := other.Encode()
		must(t, err)
		must(t, os.WriteFile(file, content, 0o600))
		c.fails(t, "replace the pre-shared key: 1 clusters are registered", "deploy-broker", "--context", "hub", "--ipsec-psk-from", file,
			"--output", c.infoFile())
		c.fails(t, `context "nowhere"`, "show", "all", "--contexts", "nowhere")
	})
	t.Run("services", func(t *testing.T) {
		c.fails(t, "there is no such Service", "export", "service", "web", "-n", "default")
		c.must(t, "export", "service", "kubernetes", "-n", "default")
		if out := c.must(t, "export", "service", "kubernetes", "-n", "default"); !strings.Contains(out, "was exported before") {
			t.Error(out)
		}
		export, err := broker.ServiceExport(member, client.ObjectKey{Namespace: "default", Name: "kubernetes"})
		must(t, err)
		for _, want := range []string{"true", "false"} {
			c.must(t, "export", "service", "kubernetes", "-n", "default", "--use-clusterset-ip="+want)
			if err := member.Get(ctx, client.ObjectKeyFromObject(export), export); err != nil || export.GetAnnotations()["lighthouse.submariner.io/use-clusterset-ip"] != want {
				t.Errorf("annotations %v, want %s (%v)", export.GetAnnotations(), want, err)
			}
		}
		c.fails(t, `--to: "g 2" is no cluster id`, "export", "service", "kubernetes", "-n", "default", "--to", "g 2")
		c.must(t, "export", "service", "kubernetes", "-n", "default", "--to", "g2,g3")
		if err := member.Get(ctx, client.ObjectKeyFromObject(export), export); err != nil || export.GetAnnotations()["pelago.io/export-to"] != "g2,g3" {
			t.Errorf("annotations %v, want the clusters (%v)", export.GetAnnotations(), err)
		}
		if out := c.must(t, "export", "service", "kubernetes", "-n", "default"); !strings.Contains(out, "was exported before, to g2,g3\n") {
			t.Errorf("the audience that stays is not printed: %s", out)
		}
		if out := c.must(t, "export", "service", "kubernetes", "-n", "default", "--to", ""); !strings.Contains(out, "is exported to all clusters\n") {
			t.Errorf("--to \"\" prints %s", out)
		}
		must(t, member.Get(ctx, client.ObjectKeyFromObject(export), export))
		if to, restricted := export.GetAnnotations()["pelago.io/export-to"]; restricted {
			t.Errorf("--to \"\" leaves the service exported to %q", to)
		}
		if got := completed(t, "unexport", "service", "--kubeconfig", c.kubeconfig, "-n", "default", ""); got != "kubernetes" {
			t.Errorf("unexport service completes %q", got)
		}
		c.must(t, "unexport", "service", "kubernetes", "-n", "default")
		c.fails(t, "is not exported", "unexport", "service", "kubernetes", "-n", "default")
	})
	t.Run("show", func(t *testing.T) {
		if out := c.must(t, "show", "services", "--context", "g1"); !strings.Contains(out, "No services: no cluster exports one") {
			t.Error(out)
		}
		var states []view.State
		if err := json.Unmarshal([]byte(c.must(t, "show", "all", "-o", "json")), &states); err != nil {
			t.Fatal(err)
		}
		if len(states) != 1 || states[0].Cluster != "g1" || len(states[0].Shown) != len(view.Views) {
			t.Errorf("show all -o json: %+v", states)
		}
		t.Log(c.must(t, "show", "all"))
	})
	t.Run("unjoin", func(t *testing.T) {
		c.fails(t, "cluster g11 is not registered at the hub", "unjoin", "--context", "hub", "--clusterid", "g11")
		c.must(t, "unjoin", "--context", "hub", "--clusterid", "g11", "--ignore-not-found")
		c.must(t, "unjoin", "--context", "hub", "--clusterid", "g1")
		err := own.List(ctx, &submarinerv1.EndpointList{}, client.InNamespace(access.Namespace))
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			t.Errorf("the removed member lists Endpoints: %v, want a refusal", err)
		}
		m.makeObjects()
		c.fails(t, "nothing was changed: answer y at a terminal, or give --yes", "unjoin", "--context", "g1")
		m.get(client.ObjectKey{Namespace: manifests.SystemNamespace, Name: manifests.NodeDaemonSet}, &appsv1.DaemonSet{})
		if id := m.config().ClusterID; id != "g1" {
			t.Errorf("an unjoin that was not confirmed leaves cluster id %q in pelago-config", id)
		}
		// No kubelet is there to clean a node: it is named until it is clean or given up.
		for range 2 {
			c.fails(t, "not clean yet: nodes ", "unjoin", "--context", "g1", "--yes", "--timeout", "100ms")
		}
		out := c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
		if !strings.Contains(out, "until `pelago-node cleanup` runs there") {
			t.Errorf("nodes that were not cleaned are not reported:\n%s", out)
		}
		m.checkObjects()
		m.checkNodes(out)
		c.fails(t, "has not joined", "unjoin", "--context", "g1")
		c.must(t, "unjoin", "--context", "g1", "--ignore-not-found")
		// What is gone may come back under another name.
		c.must(t, c.join("--clusterid", "other")...)
		c.must(t, "unjoin", "--context", "hub", "--clusterid", "other")
		c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
	})
	t.Run("a ConfigMap that the Corefile imports", func(t *testing.T) {
		const imports = ".:53 {\n}\nimport custom/*.server\n"
		corefile := func() *corev1.ConfigMap {
			cm := &corev1.ConfigMap{}
			m.get(client.ObjectKey{Namespace: "kube-system", Name: "coredns"}, cm)
			return cm
		}
		c.must(t, c.join("--clusterid", "d1")...)
		if m.config().CoreDNSCustom != "" {
			t.Errorf("CoreDNS imports nothing, and pelago-config has ConfigMap %s", m.config().CoreDNSCustom)
		}
		cm := corefile() // as the agent leaves it
		cm.Data["Corefile"] = m.corefile(imports)
		must(t, member.Update(ctx, cm))
		if out := c.must(t, c.join("--clusterid", "d1")...); !strings.Contains(out, "ConfigMap kube-system/coredns-custom") || m.config().CoreDNSCustom != "coredns-custom" {
			t.Errorf("pelago-config has ConfigMap %q:\n%s", m.config().CoreDNSCustom, out)
		}
		if got := corefile().Data["Corefile"]; got != imports {
			t.Errorf("CoreDNS would have two servers for clusterset.local:\n%s", got)
		}
		custom := &corev1.ConfigMap{}
		m.get(client.ObjectKey{Namespace: "kube-system", Name: "coredns-custom"}, custom)
		custom.Data = map[string]string{"pelago.server": m.corefile(""), "other.server": "x"}
		must(t, member.Update(ctx, custom))
		c.must(t, c.join("--clusterid", "d1", "--coredns-custom-configmap", "kube-system/dns-extra")...)
		m.get(client.ObjectKeyFromObject(custom), custom)
		if diff := cmp.Diff(map[string]string{"other.server": "x"}, custom.Data); diff != "" {
			t.Errorf("the former ConfigMap: -want +got\n%s", diff)
		}
		extra := &corev1.ConfigMap{}
		m.get(client.ObjectKey{Namespace: "kube-system", Name: "dns-extra"}, extra)
		extra.Data = map[string]string{"pelago.server": m.corefile("")}
		must(t, member.Update(ctx, extra))
		c.must(t, "unjoin", "--context", "hub", "--clusterid", "d1")
		c.must(t, "unjoin", "--context", "g1", "--yes", "--timeout", "100ms", "--force")
		extra = &corev1.ConfigMap{}
		m.get(client.ObjectKey{Namespace: "kube-system", Name: "dns-extra"}, extra)
		if len(extra.Data) > 0 {
			t.Errorf("unjoin left %v", extra.Data)
		}
		cm = corefile()
		cm.Data["Corefile"] = ".:53 {\n}\n"
		must(t, member.Update(ctx, cm))
	})
	t.Run("without globalnet", func(t *testing.T) {
		c.must(t, "deploy-broker", "--context", "hub", "--globalnet=false", "--fabric-cidr", "200.0.0.0/8", "--output", c.infoFile())
		c.fails(t, "no globalnet", c.join("--clusterid", "c1", "--globalnet-cidr", "120.1.0.0/24")...)
		c.fails(t, "range 243.7.0.0/16 of this cluster overlaps the clusterset's range 243.0.0.0/8 of ClusterSetIPs", c.join("--clusterid", "c1", "--clustercidr", "243.7.0.0/16")...)
		c.fails(t, "does not lie inside the clusterset's range 243.0.0.0/8", c.join("--clusterid", "c1", "--clusterset-ip-cidr", "10.0.0.0/20")...)
		c.fails(t, "range 200.7.0.0/16 of this cluster overlaps the clusterset's fabric range 200.0.0.0/8", c.join("--clusterid", "c1", "--clustercidr", "200.7.0.0/16")...)
		// the user's, so unjoin left it
		if err := member.Delete(ctx, egress); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		c.must(t, c.join("--clusterid", "c1", "--cable-driver", "ipsec")...)
		want.ClusterID, want.GlobalCIDRs, want.GlobalRange, want.CableDriver = "c1", nil, netip.Prefix{}, "libreswan"
		want.FabricCIDR = netip.MustParsePrefix("200.0.0.0/8")
		want.PodCIDRs, want.ServiceCIDRs = prefixes(t, "10.7.0.0/16"), prefixes(t, "10.77.0.0/16") // what the nodes of now cover
		if diff := cmp.Diff(want.Data(), m.config().Data()); diff != "" {
			t.Errorf("pelago-config: -want +got\n%s", diff)
		}
		if err := hub.Get(ctx, client.ObjectKey{Namespace: access.Namespace, Name: "c1"}, cluster); err != nil || cluster.Annotations["pelago.io/fabric-cidr"] != "200.0.64.0/18" {
			t.Errorf("Cluster c1 at the hub: %v, annotations %v; want its share of the fabric", err, cluster.Annotations)
		}
		if err := member.Get(ctx, client.ObjectKey{Name: members.ClusterEgress}, egress); !apierrors.IsNotFound(err) {
			t.Errorf("a cluster without globalnet has egress IPs: %v", err)
		}
	})
}

// reader reads a member's objects for a test.
type reader struct {
	t *testing.T
	c client.Client
}

func (m *reader) config() config.Config {
	m.t.Helper()
	cm := &corev1.ConfigMap{}
	m.get(client.ObjectKey{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, cm)
	c, err := config.Parse(cm.Data)
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

func (m *reader) secret(name string) map[string][]byte {
	m.t.Helper()
	s := &corev1.Secret{}
	m.get(client.ObjectKey{Namespace: config.SystemNamespace, Name: name}, s)
	return s.Data
}

func (m *reader) node(name string) *corev1.Node {
	m.t.Helper()
	n := &corev1.Node{}
	m.get(client.ObjectKey{Name: name}, n)
	return n
}

// makeObjects creates what an agent leaves outside of the system namespace, and similar objects of
// other owners.
func (m *reader) makeObjects() {
	m.t.Helper()
	owner := kube.Owner{HubID: m.config().HubID}
	foreign := kube.Owner{HubID: "another"}
	slice := func(name string, o *kube.Owner) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, AddressType: discoveryv1.AddressTypeIPv4}
		if o != nil {
			o.Mark(s)
		}
		return s
	}
	imported := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport",
		"metadata": map[string]any{"name": "web", "namespace": "default"}, "spec": map[string]any{"type": "Headless", "ports": []any{}}}}
	owner.Mark(imported)
	for _, obj := range []client.Object{
		slice("ours", &owner), slice("foreign", &foreign), slice("users", nil), imported,
		&pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1, NodeUID: "u"}},
		&submarinerv1.GlobalIngressIP{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default",
			Labels: map[string]string{pelagov1alpha1.LabelManagedBy: pelagov1alpha1.ManagedBy}},
			Spec: submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.ClusterIPService}},
		&submarinerv1.GlobalIngressIP{ObjectMeta: metav1.ObjectMeta{Name: "users", Namespace: "default"},
			Spec: submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.ClusterIPService}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "users", Labels: map[string]string{submarinerv1.LabelGateway: "true"},
			Annotations: map[string]string{pelagov1alpha1.AnnotationDrained: "true", pelagov1alpha1.AnnotationRotateKeys: "x", "user": "x"}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"},
			Data: map[string]string{"Corefile": m.corefile(".:53 {\n}\n"), "other": "x"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "node-local-dns", Namespace: "kube-system"},
			Data: map[string]string{"Corefile": m.corefile(".:53 {\n}\n"), "other": "x"}},
	} {
		if err := m.c.Create(context.Background(), obj); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *reader) corefile(text string) string {
	m.t.Helper()
	text, err := clusterdns.Forward{Zones: []string{"clusterset.local"}, To: netip.MustParseAddr("10.77.0.9")}.Patch(text)
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

// checkObjects reports which of them were kept or removed wrongly.
func (m *reader) checkObjects() {
	m.t.Helper()
	ctx := context.Background()
	slices := &discoveryv1.EndpointSliceList{}
	if err := m.c.List(ctx, slices, client.InNamespace("default")); err != nil {
		m.t.Fatal(err)
	}
	var left []string
	for _, s := range slices.Items {
		left = append(left, s.Name)
	}
	if diff := cmp.Diff([]string{"foreign", "users"}, left); diff != "" {
		m.t.Errorf("EndpointSlices that stay: -want +got\n%s", diff)
	}
	imports := &unstructured.UnstructuredList{}
	imports.SetAPIVersion("multicluster.x-k8s.io/v1alpha1")
	imports.SetKind("ServiceImport")
	nodes, ingress := &pelagov1alpha1.NodeIndexList{}, &submarinerv1.GlobalIngressIPList{}
	if err := errors.Join(m.c.List(ctx, imports), m.c.List(ctx, nodes), m.c.List(ctx, ingress)); err != nil {
		m.t.Fatal(err)
	}
	if n := len(imports.Items) + len(nodes.Items); n != 0 {
		m.t.Errorf("%d ServiceImports and %d NodeIndexes stay", len(imports.Items), len(nodes.Items))
	}
	left = nil
	for _, g := range ingress.Items {
		left = append(left, g.Name)
	}
	if diff := cmp.Diff([]string{"users"}, left); diff != "" {
		m.t.Errorf("GlobalIngressIPs that stay: -want +got\n%s", diff)
	}
	for _, name := range []string{"coredns", "node-local-dns"} {
		dns := &corev1.ConfigMap{}
		m.get(client.ObjectKey{Namespace: "kube-system", Name: name}, dns)
		if diff := cmp.Diff(map[string]string{"Corefile": ".:53 {\n}\n", "other": "x"}, dns.Data); diff != "" {
			m.t.Errorf("ConfigMap %s: -want +got\n%s", name, diff)
		}
	}
}

// checkNodes reports labels and annotations of nodes that were kept or removed wrongly. It deletes
// the node that makeObjects has made.
func (m *reader) checkNodes(out string) {
	m.t.Helper()
	if labels := m.node("n1").Labels; labels[submarinerv1.LabelGateway] != "" {
		m.t.Errorf("the label of a gateway that join has set stays: %v", labels)
	}
	users := m.node("users")
	if diff := cmp.Diff(map[string]string{"user": "x"}, users.Annotations); diff != "" || users.Labels[submarinerv1.LabelGateway] != "true" {
		m.t.Errorf("node users: labels %v, annotations -want +got\n%s", users.Labels, diff)
	}
	if !strings.Contains(out, "label submariner.io/gateway of users, which join has not set") {
		m.t.Errorf("the node that keeps the label is not named:\n%s", out)
	}
	must(m.t, m.c.Delete(context.Background(), users))
}

func (m *reader) get(key client.ObjectKey, obj client.Object) {
	m.t.Helper()
	if err := m.c.Get(context.Background(), key, obj); err != nil {
		m.t.Fatal(err)
	}
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func info(t *testing.T, file string) broker.Info {
	t.Helper()
	i, err := install.ReadInfo(file)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func uid(t *testing.T, c client.Client) string {
	t.Helper()
	u, err := broker.ClusterUID(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func prefixes(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	out, err := spec.ParseRanges(texts)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
