package lab

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/lab/machine"
)

func TestNetworkOf(t *testing.T) {
	for text, want := range map[string]string{
		"bridge": "", "ptp,aws": "", "flannel": "", "flannel=" + binaries.FlannelVersion + ",host-gw": "", "cilium,kpr,native,hostns": "", "cilium,legacy,kpr": "",
		"":                `cni: "" is none of`,
		"weave":           `cni: "weave" is none of`,
		"flannel=0.1":     `flannel "0.1" is not the version that test/kube builds`,
		"flannel=":        `flannel "" is not the version`,
		"bridge=1":        "bridge has no versions to choose from",
		"flannel,vlan":    `"vlan" is no option of flannel`,
		"flannel,":        `"" is no option of flannel`,
		"cilium,kpr,kpr":  `"kpr" is no option of cilium, or is given twice`,
		"cilium,legacy":   "option legacy of cilium needs kpr",
		"cilium,hostns":   "option hostns of cilium needs kpr",
		"bridge,host-gw":  `"host-gw" is no option of bridge`,
		"kube-router,kpr": `"kpr" is no option of kube-router`,
	} {
		_, err := networkOf(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestNetworkFiles: every network's files are valid, and a node has what it needs and nothing that
// the network replaces.
func TestNetworkFiles(t *testing.T) {
	for text, want := range map[string]struct {
		masquerade, proxy bool
		rules             string
		daemons           []string
		config            string // a part of the CNI configuration; empty: no configuration
	}{
		"bridge":          {true, true, "", nil, `"subnet": "10.7.2.0/24"`},
		"ptp":             {true, true, "", nil, `"type": "ptp"`},
		"ptp,aws":         {true, true, "rule add from 10.7.2.0/24 priority 1536 lookup 2\n", nil, `"type": "ptp"`},
		"flannel":         {false, true, "", []string{"flanneld"}, `"type": "flannel"`},
		"flannel,host-gw": {false, true, "", []string{"flanneld"}, `"type": "flannel"`},
		"kube-router":     {false, true, "", []string{"kube-router"}, `"subnet": "10.7.2.0/24"`},
		"cilium":          {false, true, "", []string{"cilium-agent"}, ""},
		"cilium,kpr":      {false, false, "", []string{"cilium-agent"}, ""},
	} {
		l := testLab(t)
		l.record.Options.CNI, l.record.Network = text, t.TempDir()
		if err := os.Mkdir(filepath.Join(l.record.Network, "bpf"), 0o755); err != nil {
			t.Fatal(err)
		}
		c := l.Plan().Clusters[0]
		n := c.Nodes[1]
		if err := l.prepareControlPlane(c); err != nil {
			t.Fatal(err)
		}
		if err := l.prepareNetwork(c, n, l.values(c, n)); err != nil {
			t.Fatal(err)
		}
		var spec machine.Spec
		if err := l.describeNetwork(&spec, l.values(c, n)); err != nil {
			t.Fatal(err)
		}
		var daemons []string
		for _, d := range spec.Daemons {
			daemons = append(daemons, d.Name)
		}
		if (spec.Ruleset != "") != want.masquerade || spec.NoProxy == want.proxy || !strings.Contains(spec.Rules, want.rules) || !slices.Equal(daemons, want.daemons) {
			t.Errorf("%s: masquerade %q, no kube-proxy %v, rules %q, daemons %q; want %+v", text, spec.Ruleset, spec.NoProxy, spec.Rules, daemons, want)
		}
		if !slices.Equal(l.NetworkDaemons(), want.daemons) {
			t.Errorf("%s: NetworkDaemons() = %q", text, l.NetworkDaemons())
		}
		config, err := os.ReadFile(filepath.Join(l.nodeDir(n.Name), conflist))
		if want.config == "" {
			if !os.IsNotExist(err) {
				t.Errorf("%s: the lab writes %s (%v), which is the daemon's to write", text, conflist, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(config) || !strings.Contains(string(config), want.config) {
			t.Errorf("%s: want JSON with %s, got\n%s", text, want.config, config)
		}
	}
}

func TestFlannelBackends(t *testing.T) {
	for text, want := range map[string]string{"flannel": "vxlan", "flannel,host-gw": "host-gw"} {
		l := testLab(t)
		l.record.Options.CNI = text
		c := l.Plan().Clusters[0]
		config, err := render("flannel-net.json", l.values(c, c.Nodes[0]))
		if err != nil {
			t.Fatal(err)
		}
		var net struct {
			Network string
			Backend struct{ Type string }
		}
		if err := json.Unmarshal([]byte(config), &net); err != nil || net.Network != "10.7.0.0/16" || net.Backend.Type != want {
			t.Errorf("%s: %s, %v; want 10.7.0.0/16 and %s", text, config, err, want)
		}
	}
}

func TestCiliumOptions(t *testing.T) {
	for text, want := range map[string][]string{
		"cilium":            {"--kube-proxy-replacement=false", "--routing-mode=tunnel", "--enable-host-legacy-routing=true"},
		"cilium,kpr":        {"--kube-proxy-replacement=true", "--enable-bpf-masquerade=true", "--enable-host-legacy-routing=false"},
		"cilium,kpr,legacy": {"--kube-proxy-replacement=true", "--enable-bpf-masquerade=false", "--enable-host-legacy-routing=true"},
		"cilium,native":     {"--routing-mode=native", "--enable-endpoint-routes=true", "--ipv4-native-routing-cidr=10.7.0.0/16"},
		"cilium,kpr,hostns": {"--bpf-lb-sock-hostns-only=true"},
	} {
		l := testLab(t)
		l.record.Options.CNI = text
		c := l.Plan().Clusters[1]
		argv := ciliumAgent(l.values(c, c.Nodes[0]))[0].Argv
		for _, option := range append(want, "--cluster-name=g2", "--cluster-id=2", "--cgroup-root="+machine.CgroupDir) {
			if !slices.Contains(argv, option) {
				t.Errorf("%s: %s is not in %q", text, option, argv)
			}
		}
	}
}

// TestHoldNetwork: a node whose daemons are held finds the file at the path that it polls.
func TestHoldNetwork(t *testing.T) {
	l := testLab(t)
	file := filepath.Join(l.nodeDir("g1-n1"), "lib", strings.TrimPrefix(machine.HoldFile, "/var/lib/"))
	if err := l.HoldNetwork("g1-n1", true); err != nil || !exists(file) {
		t.Errorf("held: %v, %s exists: %v", err, file, exists(file))
	}
	if err := l.HoldNetwork("g1-n1", false); err != nil || exists(file) {
		t.Errorf("let go: %v, %s exists: %v", err, file, exists(file))
	}
	if err := l.HoldNetwork("g1-n1", false); err == nil {
		t.Error("let go twice: no error")
	}
}

func TestNetworkPackages(t *testing.T) {
	for cni, want := range map[string][]string{
		"bridge": nil, "flannel": nil, // gcc is a package of the tests
		"kube-router": {"ipset"}, "cilium,kpr": {"clang-19", "llvm-19", "ipset"}, "all": {"clang-19", "llvm-19", "ipset"},
	} {
		packages, err := NetworkPackages(cni)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range packages {
			names = append(names, p.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: %q, want %q", cni, names, want)
		}
	}
	if _, err := NetworkPackages("weave"); err == nil {
		t.Error("weave: no error")
	}
}
