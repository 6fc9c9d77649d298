package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelago-net/pelago/test/lab/binaries"
	"github.com/pelago-net/pelago/test/lab/machine"
)

// DefaultCNI is the network of a lab that names none: one bridge per node, routes between nodes.
const DefaultCNI = "bridge"

// network is a CNI: what it needs beside the lab's own parts, and which of these it replaces. Its
// templates are files under config/.
type network struct {
	version string // empty: that of Debian's plugins
	options []string

	// programs returns the directory of its programs, built if the cache lacks them; nil: it has
	// none beside Debian's plugins.
	programs func(context.Context, binaries.Progress) (string, error)
	packages []Package // beside those of every lab
	files    map[string]string
	rules    string // template of input for `ip -batch`, applied when a node starts
	// tree is a folder of the programs' directory of which each node gets a copy of its own in
	// /var/lib; definitions are folders of CRDs.
	tree        map[string]string
	definitions []string
	daemons     func(configValues) []machine.Daemon

	ownRoutes     bool // the lab has no routes to the pods of other nodes
	ownMasquerade bool // the lab translates nothing
	ownProxy      bool // kube-proxy does not run
	policies      bool // it enforces NetworkPolicies
}

// conflist is where the lab writes a network's configuration.
const conflist = machine.NetworkConfigDir + "/10-lab.conflist"

// networks are the CNIs by name, for the options that follow it.
var networks = map[string]struct {
	version string
	options []string
	of      func(on map[string]bool) network
}{
	DefaultCNI: {of: func(map[string]bool) network {
		return network{files: map[string]string{conflist: "cni.json"}}
	}},
	// A route for each pod, as most CNIs of clouds have them; aws: with the rules and the table of
	// an interface of its own that the VPC CNI has for pods.
	"ptp": {options: []string{"aws"}, of: func(on map[string]bool) network {
		n := network{files: map[string]string{conflist: "ptp.json"}}
		if on["aws"] {
			n.rules = "vpc-rules.batch"
		}
		return n
	}},
	"flannel": {version: binaries.FlannelVersion, options: []string{"host-gw"}, of: func(map[string]bool) network {
		return network{
			programs: binaries.Flannel,
			packages: []Package{{"gcc", "flanneld is compiled with cgo", "/usr/bin/gcc", false}},
			files:    map[string]string{conflist: "flannel.json", "/etc/kube-flannel/net-conf.json": "flannel-net.json"},
			daemons: func(v configValues) []machine.Daemon {
				return []machine.Daemon{{Name: "flanneld", Env: []string{"NODE_NAME=" + v.Node.Name}, Argv: []string{
					filepath.Join(machine.NetworkDir, "flanneld"), "--kube-subnet-mgr", "--kubeconfig-file=" + machine.NetworkKubeconfig,
					"--iface=" + v.Uplink, "--ip-masq"}}}
			},
			ownRoutes: true, ownMasquerade: true,
		}
	}},
	"kube-router": {version: binaries.KubeRouterVersion, of: func(map[string]bool) network {
		return network{
			programs: binaries.KubeRouter,
			packages: []Package{{"ipset", "kube-router's sets of addresses", "/usr/sbin/ipset", false}},
			files:    map[string]string{conflist: "kube-router.json"},
			daemons: func(v configValues) []machine.Daemon {
				return []machine.Daemon{{Name: "kube-router", Env: []string{"NODE_NAME=" + v.Node.Name, "KUBE_ROUTER_CNI_CONF_FILE=" + conflist}, Argv: []string{
					filepath.Join(machine.NetworkDir, "kube-router"), "--kubeconfig=" + machine.NetworkKubeconfig, "--hostname-override=" + v.Node.Name,
					"--run-router=true", "--run-firewall=true", "--run-service-proxy=false", "--service-cluster-ip-range=" + v.Cluster.ServiceCIDR.String()}}}
			},
			ownRoutes: true, ownMasquerade: true, policies: true,
		}
	}},
	// kpr: Cilium replaces kube-proxy, with host routing and masquerade by BPF; legacy: with kpr,
	// host routing and masquerade by the kernel; native: routes between the nodes and one for each
	// pod; hostns: sockets of pods are left to the programs of their devices.
	"cilium": {version: binaries.CiliumVersion, options: []string{"hostns", "kpr", "legacy", "native"}, of: func(on map[string]bool) network {
		return network{
			programs: binaries.Cilium,
			packages: []Package{
				{"clang-19", "Cilium's agent compiles its programs", "/usr/lib/llvm-19/bin/clang", false},
				{"llvm-19", "the assembler for these", "/usr/lib/llvm-19/bin/llc", false},
				{"ipset", "Cilium's sets of nodes", "/usr/sbin/ipset", false},
			},
			files:       map[string]string{},
			tree:        map[string]string{"bpf": "cilium/bpf"},
			definitions: []string{"crds/v2", "crds/v2alpha1"},
			daemons:     ciliumAgent,
			ownRoutes:   true, ownMasquerade: true, ownProxy: on["kpr"], policies: true,
		}
	}},
}

// ciliumAgent has the options of Cilium's Helm chart that a lab needs. The agent writes the
// configuration of its CNI plugin when it is ready.
func ciliumAgent(v configValues) []machine.Daemon {
	options := map[string]string{
		"cluster-name": v.Cluster.Name, "cluster-id": strings.TrimPrefix(v.Cluster.Name, "g"),
		"k8s-kubeconfig-path": machine.NetworkKubeconfig,
		"enable-ipv4":         "true", "enable-ipv6": "false", "ipam": "kubernetes", "identity-allocation-mode": "crd",
		"routing-mode": "tunnel", "tunnel-protocol": "vxlan", "kube-proxy-replacement": "false",
		"enable-ipv4-masquerade": "true", "enable-bpf-masquerade": "false", "enable-host-legacy-routing": "true",
		"enable-l7-proxy": "false", "enable-hubble": "false", "enable-health-checking": "false",
		"enable-endpoint-health-checking": "false", "enable-bandwidth-manager": "false",
		// of the node's pods: each node has socket programs of its own
		"cgroup-root": machine.CgroupDir, "bpf-root": "/sys/fs/bpf",
		"lib-dir": "/var/lib/cilium", "state-dir": "/var/run/cilium",
		"write-cni-conf-when-ready": machine.NetworkConfigDir + "/05-cilium.conflist", "cni-exclusive": "true",
		// small maps: all nodes share the machine's memory
		"bpf-ct-global-tcp-max": "65536", "bpf-ct-global-any-max": "32768", "bpf-nat-global-max": "65536",
		"bpf-neigh-global-max": "65536", "bpf-map-dynamic-size-ratio": "0",
		"monitor-aggregation": "none",
	}
	if v.Options["kpr"] {
		options["kube-proxy-replacement"] = "true"
		if !v.Options["legacy"] {
			options["enable-bpf-masquerade"], options["enable-host-legacy-routing"] = "true", "false"
		}
	}
	if v.Options["native"] {
		options["routing-mode"], options["auto-direct-node-routes"] = "native", "true"
		options["ipv4-native-routing-cidr"], options["enable-endpoint-routes"] = v.Cluster.PodCIDR.String(), "true"
		delete(options, "tunnel-protocol")
	}
	if v.Options["hostns"] {
		options["bpf-lb-sock-hostns-only"] = "true"
	}
	argv := []string{filepath.Join(machine.NetworkDir, "cilium-agent")}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		argv = append(argv, "--"+name+"="+options[name])
	}
	return []machine.Daemon{{Name: "cilium-agent", Argv: argv, Env: []string{
		"K8S_NODE_NAME=" + v.Node.Name, "CILIUM_K8S_NAMESPACE=kube-system", "PATH=/usr/lib/llvm-19/bin:" + machine.Path}}}
}

// networkOf reads a CNI as Options.CNI has it: NAME[=VERSION][,option…].
func networkOf(text string) (network, error) {
	words := strings.Split(text, ",")
	name, version, _ := strings.Cut(words[0], "=")
	known, ok := networks[name]
	if !ok {
		return network{}, fmt.Errorf("cni: %q is none of %q", name, slices.Sorted(maps.Keys(networks)))
	}
	if strings.Contains(words[0], "=") && version != known.version {
		if known.version == "" {
			return network{}, fmt.Errorf("cni: %s has no versions to choose from: it is that of Debian's containernetworking-plugins", name)
		}
		return network{}, fmt.Errorf("cni: %s %q is not the version that test/kube builds, %s", name, version, known.version)
	}
	on := map[string]bool{}
	for _, option := range words[1:] {
		if !slices.Contains(known.options, option) || on[option] {
			return network{}, fmt.Errorf("cni: %q is no option of %s, or is given twice: it has %q", option, name, known.options)
		}
		on[option] = true
	}
	for _, option := range []string{"legacy", "hostns"} {
		if on[option] && !on["kpr"] {
			return network{}, fmt.Errorf("cni: option %s of %s needs kpr", option, name)
		}
	}
	n := known.of(on)
	n.version, n.options = known.version, words[1:]
	return n, nil
}

// NetworkPackages are the packages of a CNI, or with "all" of every one, beside those of Packages.
func NetworkPackages(cni string) ([]Package, error) {
	names := []string{cni}
	if cni == "all" {
		names = slices.Sorted(maps.Keys(networks))
	}
	var all []Package
	for _, name := range names {
		n, err := networkOf(name)
		if err != nil {
			return nil, err
		}
		for _, p := range n.packages {
			known := func(q Package) bool { return q.Name == p.Name }
			if !slices.ContainsFunc(all, known) && !slices.ContainsFunc(packages, known) {
				all = append(all, p)
			}
		}
	}
	return all, nil
}

// checkPackages names the Debian packages that the network lacks.
func (n network) checkPackages() error {
	return check(slices.Collect(func(yield func(Package) bool) {
		for _, p := range n.packages {
			p.Lab = true // no lab with this network comes up without it
			if !yield(p) {
				return
			}
		}
	}), nil, nil)
}

// network is the lab's own; its options were read before.
func (l *Lab) network() network {
	n, err := networkOf(l.record.Options.CNI)
	if err != nil { // a lab of another version of this program
		return networks[DefaultCNI].of(nil)
	}
	return n
}

// NetworkDaemons are the programs of the CNI on every node; a node starts those that end again.
func (l *Lab) NetworkDaemons() (names []string) {
	if n := l.network(); n.daemons != nil {
		for _, d := range n.daemons(configValues{}) {
			names = append(names, d.Name)
		}
	}
	return names
}

// NetworkVersion is the version of the CNI's programs; empty: that of Debian's plugins.
func (l *Lab) NetworkVersion() string { return l.network().version }

// EnforcesPolicies reports whether the CNI enforces NetworkPolicies.
func (l *Lab) EnforcesPolicies() bool { return l.network().policies }

// HoldNetwork keeps the CNI's daemons of a node from starting when it boots, until they are
// released.
func (l *Lab) HoldNetwork(node string, hold bool) error {
	file := filepath.Join(l.nodeDir(node), "lib", filepath.Base(machine.HoldFile))
	if hold {
		return writeFile(file, nil, 0o644)
	}
	return os.Remove(file)
}

// prepareNetwork writes what the CNI needs of a node's files.
func (l *Lab) prepareNetwork(c Cluster, n Node, values configValues) error {
	network, dir := l.network(), l.nodeDir(n.Name)
	for path, name := range network.files {
		text, err := render(name, values)
		if err != nil {
			return err
		}
		if err := writeFile(filepath.Join(dir, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for from, to := range network.tree {
		target := filepath.Join(dir, "lib", to)
		if exists(target) {
			continue // of an earlier start
		}
		if err := os.CopyFS(target, os.DirFS(filepath.Join(l.record.Network, from))); err != nil {
			return fmt.Errorf("copy %s into node %s: %w", from, n.Name, err)
		}
	}
	if network.daemons == nil {
		return os.MkdirAll(filepath.Join(dir, machine.NetworkConfigDir), 0o755)
	}
	admin, err := os.ReadFile(l.ClusterKubeconfig(c.Name))
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Join(dir, machine.NetworkConfigDir), 0o755),
		writeFile(filepath.Join(dir, machine.NetworkKubeconfig), admin, 0o600))
}

// describeNetwork completes a node's spec.
func (l *Lab) describeNetwork(s *machine.Spec, values configValues) (err error) {
	network := l.network()
	s.Network, s.NoProxy = l.record.Network, network.ownProxy
	if !network.ownMasquerade {
		if s.Ruleset, err = render("masquerade.nft", values); err != nil {
			return err
		}
	}
	if network.rules != "" {
		if s.Rules, err = render(network.rules, values); err != nil {
			return err
		}
	}
	if network.daemons != nil {
		s.Daemons = network.daemons(values)
	}
	return nil
}

// applyDefinitions applies the CNI's CRDs to a cluster.
func (l *Lab) applyDefinitions(ctx context.Context, c Cluster) error {
	for _, dir := range l.network().definitions {
		cmd := exec.CommandContext(ctx, l.Kubectl(), "--kubeconfig", l.ClusterKubeconfig(c.Name), "apply", "--server-side", "-f", filepath.Join(l.record.Network, dir))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apply the CNI's definitions to %s: %w: %s", c.Name, err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}

// CNIs lists the networks with their options, for people.
func CNIs() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		if known := networks[name]; len(known.options) > 0 {
			name += " (options " + strings.Join(known.options, ", ") + ")"
		}
		all = append(all, name)
	}
	return strings.Join(all, "; ")
}
