// Package machine is the inside of a lab's node: what its first process does.
//
// The lab starts Run as pid 1 of new mount, pid and uts namespaces, in the
// node's network namespace. Run gives the node a root file system of its own,
// starts containerd, kubelet and kube-proxy like an init system would, restarts
// them when they end, and reaps orphans. When it is killed the kernel ends
// everything in the pid namespace and drops every mount, which is a node's
// power failure.
//
// What a node keeps over that (images, containers' state, its configuration) is
// in Spec.Dir on the host. Nothing else of the host can be written from a node.
package machine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Spec is all that Run needs to know; it is written to SpecFile by the lab.
type Spec struct {
	// Hostname is the name of the node.
	Hostname string `json:"hostname"`
	// BootID is the boot id, which a kernel generates at each boot.
	BootID string `json:"bootID"`
	// Dir is the node's directory on the host. It holds etc (what differs from
	// the host's /etc), lib (/var/lib) and log (/var/log).
	Dir string `json:"dir"`
	// Kubernetes is a directory with kubelet, kube-proxy and kubectl.
	Kubernetes string `json:"kubernetes"`
	// Containerd is a directory with containerd, its shim for runc and ctr.
	Containerd string `json:"containerd"`
	// Images is a directory of image archives (*.tar) to import at each start.
	Images string `json:"images"`
	// CgroupRoot is the cgroup below which the kubelet puts pods, such as
	// "/pelago-lab/pelago/g1-n1".
	CgroupRoot string `json:"cgroupRoot"`
	// Network is a directory with programs and plugins of the CNI; empty: none.
	Network string `json:"network,omitempty"`
	// Ruleset is loaded into nftables before anything starts: the CNI's masquerade. Empty: none.
	Ruleset string `json:"ruleset,omitempty"`
	// Rules is input of `ip -batch`, such as policy rules; empty: none.
	Rules string `json:"rules,omitempty"`
	// NoProxy leaves kube-proxy out.
	NoProxy bool `json:"noProxy,omitempty"`
	// Daemons are the programs of the CNI, which run from when the Node object exists.
	Daemons []Daemon `json:"daemons,omitempty"`
	// Server is the URL of the API server; kubelet and kube-proxy start once the
	// Node object can be read there.
	Server string `json:"server"`
}

// Daemon is a program that a node runs beside its kubelet, and starts again when it ends.
type Daemon struct {
	// Name is that of its log.
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	// Env is added to the environment, as NAME=VALUE.
	Env []string `json:"env,omitempty"`
}

// Paths inside a node.
const (
	// BinDir holds the Kubernetes binaries.
	BinDir = "/opt/pelago-lab/bin"
	// ContainerdDir holds containerd's binaries.
	ContainerdDir = "/opt/pelago-lab/containerd"
	// ImageDir holds the archives of Spec.Images.
	ImageDir = "/opt/pelago-lab/images"
	// NetworkDir holds the programs and plugins of the CNI (Spec.Network).
	NetworkDir = "/opt/pelago-lab/network"
	// HoldFile keeps the daemons of the CNI from being started while it exists.
	HoldFile = "/var/lib/pelago-lab-hold-network"
	// CgroupDir shows the node's own cgroup of the v2 hierarchy (Spec.CgroupRoot) as a mount point: a
	// CNI that attaches programs to its root attaches them to the pods of the node. Where Cilium finds
	// no mount point, it mounts the root of the whole machine.
	CgroupDir = "/run/pelago-lab/cgroup"
	// Socket is containerd's.
	Socket = "/run/containerd/containerd.sock"
	// Path is the PATH of a node's processes.
	Path = BinDir + ":" + ContainerdDir + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// HostDir shows the host's root file system, read-only, without what is
	// mounted in it.
	HostDir = "/host"

	// ContainerdConfig, KubeletConfig, … are files that the lab writes.
	ContainerdConfig  = "/etc/containerd/config.toml"
	NetworkConfigDir  = "/etc/cni/net.d"
	KubeletConfig     = "/etc/kubernetes/kubelet.yaml"
	KubeletKubeconfig = "/etc/kubernetes/kubelet.kubeconfig"
	ProxyConfig       = "/etc/kubernetes/kube-proxy.yaml"
	ProxyKubeconfig   = "/etc/kubernetes/kube-proxy.kubeconfig"
	NetworkKubeconfig = "/etc/kubernetes/network.kubeconfig"
	PKIDir            = "/etc/kubernetes/pki"
)

// SpecFile is where the lab puts the spec of the node whose directory is dir.
func SpecFile(dir string) string { return filepath.Join(dir, "node.json") }

// LogFile is where, on the host, the output of a node's service is found.
func LogFile(dir, service string) string { return filepath.Join(dir, "log", service+".log") }

// Services are the names that LogFile accepts, besides "init".
func Services() []string { return []string{"containerd", "kubelet", "kube-proxy"} }

// ReadSpec loads the spec of the node whose directory is dir.
func ReadSpec(dir string) (Spec, error) {
	var s Spec
	data, err := os.ReadFile(SpecFile(dir))
	if err != nil {
		return s, fmt.Errorf("read the node's spec: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read the node's spec %s: %w", SpecFile(dir), err)
	}
	return s, nil
}
