package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Package is a Debian package that something here needs.
type Package struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	// Probe is a file that the package brings; a pattern of path/filepath.
	Probe string `json:"probe"`
	// Lab: no lab comes up without it; the others are for building and
	// testing.
	Lab bool `json:"lab"`
}

// Packages lists the Debian packages that this repository's make targets need.
func Packages() []Package { return slices.Clone(packages) }

var packages = []Package{
	{"runc", "starts containers for containerd", "/usr/sbin/runc", true},
	{"containernetworking-plugins", "CNI plugins bridge, host-local, loopback and portmap", "/usr/lib/cni/bridge", true},
	{"iptables", "kube-proxy in iptables mode, kubelet; copied into the image of the node daemon", "/usr/sbin/xtables-nft-multi", true},
	{"nftables", "kube-proxy in nftables mode, the nodes' masquerade", "/usr/sbin/nft", true},
	{"conntrack", "kube-proxy's clean-up and the tests that list translated connections", "/usr/sbin/conntrack", true},
	{"iproute2", "ip, tc and ss for people and tests inside the namespaces", "/usr/sbin/tc", true},
	{"busybox-static", "shell of the images, ping", "/usr/bin/busybox", true},
	{"procps", "ps inside nodes", "/usr/bin/ps", false},
	{"ca-certificates", "lets Go fetch modules over HTTPS", "/etc/ssl/certs/ca-certificates.crt", false},
	{"curl", "HTTP client in the whereami image", "/usr/bin/curl", false},
	{"bind9-dnsutils", "dig and nslookup in the whereami image", "/usr/bin/dig", false},
	{"netcat-openbsd", "nc in the whereami image", "/usr/bin/nc.openbsd", false},
	{"socat", "the server of the MCS conformance suite, in its image", "/usr/bin/socat", false},
	{"iperf3", "throughput tests; in the whereami image", "/usr/bin/iperf3", false},
	{"tcpdump", "looking at packets; in the whereami image", "/usr/bin/tcpdump", false},
	{"wireguard-go", "the other end of a WireGuard wire in tests", "/usr/bin/wireguard-go", false},
	{"wireguard-tools", "wg, which configures it", "/usr/bin/wg", false},
	{"strongswan-charon", "IKE daemon of the IPsec wire; copied into the image", "/usr/lib/ipsec/charon", false},
	{"strongswan-swanctl", "vici, the daemon's control socket; copied into the image", "/usr/sbin/swanctl", false},
	{"libstrongswan-standard-plugins", "AES-GCM for the IKE daemon; copied into the image", "/usr/lib/ipsec/plugins/libstrongswan-gcm.so", false},
	{"libcharon-extra-plugins", "ESP in user space for the IKE daemon; copied into the image", "/usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so", false},
	{"gcc", "go test -race", "/usr/bin/gcc", false},
	{"libc6-dev", "C library headers for go test -race", "/usr/include/stdlib.h", false},
	{"clang-16", "regenerates the eBPF objects (make generate, make verify)", "/usr/bin/clang-16", false},
	{"llvm-16", "llvm-strip for the eBPF objects", "/usr/bin/llvm-strip-16", false},
	{"clang-format-16", "the format of the C sources (make lint)", "/usr/bin/clang-format-16", false},
	{"qemu-system-x86", "the machine of make vm", "/usr/bin/qemu-system-x86_64", false},
	{"bpftool", "dumps pinned maps", "/usr/sbin/bpftool", false},
	{"ethtool", "offload settings in benchmarks", "/usr/sbin/ethtool", false},
	{"jq", "reads result files", "/usr/bin/jq", false},
}

// Present reports whether the package's probe exists.
func (p Package) Present() bool {
	matches, err := filepath.Glob(p.Probe)
	return err == nil && len(matches) > 0
}

// feature is something that the kernel must offer.
type feature struct {
	file   string // shows it
	name   string
	module string // brings it, if it is not built in
}

var features = []feature{
	{"/proc/sys/net/bridge/bridge-nf-call-iptables", "bridge netfilter", "br_netfilter"},
	{"/sys/fs/bpf", "the bpf file system (CONFIG_BPF_SYSCALL)", ""},
	{"/sys/fs/cgroup", "mounted control groups", ""},
	{"/sys/kernel/btf/vmlinux", "BTF type information (CONFIG_DEBUG_INFO_BTF)", ""},
}

// CheckPrerequisites names everything that is missing for bringing up a lab.
// Kernel modules that are missing are loaded.
func CheckPrerequisites() error {
	return check(packages, features, func(module string) error { return exec.Command("modprobe", module).Run() })
}

func check(packages []Package, features []feature, load func(module string) error) error {
	var errs []error
	for _, p := range packages {
		if p.Lab && !p.Present() {
			errs = append(errs, fmt.Errorf("%s is missing: install the Debian package %s (%s), or all by \"pelago-lab prerequisites --install\"", p.Probe, p.Name, p.Reason))
		}
	}
	for _, f := range features {
		if exists(f.file) {
			continue
		}
		remedy := "another kernel is needed"
		if f.module != "" {
			if load(f.module) == nil && exists(f.file) {
				continue
			}
			remedy = "modprobe " + f.module + " failed"
		}
		errs = append(errs, fmt.Errorf("the kernel lacks %s, %s does not exist: %s", f.name, f.file, remedy))
	}
	return errors.Join(errs...)
}

// Install installs packages with apt-get, writing its output to out.
func Install(ctx context.Context, packages []Package, out io.Writer) error {
	if len(packages) == 0 {
		return nil
	}
	if err := requireRoot(); err != nil {
		return err
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("install packages: this is no Debian (no apt-get); install them by other means")
	}
	install := []string{"install", "--yes", "--no-install-recommends"}
	for _, p := range packages {
		install = append(install, p.Name)
	}
	for _, args := range [][]string{{"update"}, install} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("apt-get %s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}
