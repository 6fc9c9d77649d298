package binaries

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// Releases of CNIs that folders of test/kube pin.
const (
	CiliumVersion     = "1.20.2"
	FlannelVersion    = "0.28.10"
	KubeRouterVersion = "2.1.0"
)

const (
	ciliumModule     = "github.com/cilium/cilium"
	kubeRouterModule = "github.com/cloudnativelabs/kube-router/v2"
)

var cilium = artifact{
	title: "Cilium " + CiliumVersion, name: "cilium-agent", version: CiliumVersion, source: "test/kube/cilium", tags: "osusergo",
	programs: map[string]string{"cilium-agent": ciliumModule + "/daemon", "cilium-cni": ciliumModule + "/plugins/cilium-cni"},
	of:       ciliumModule, copies: map[string]string{"bpf": "bpf", "crds": "pkg/k8s/apis/cilium.io/client/crds"},
	ldflags: "-s -w -X " + ciliumModule + "/pkg/version.ciliumVersion=" + CiliumVersion, cold: "30 minutes",
}

var flannel = artifact{
	title: "flannel " + FlannelVersion, name: "flanneld", version: FlannelVersion, source: "test/kube/flannel",
	// Its backend udp is written in C.
	cgo: true, programs: map[string]string{"flanneld": "github.com/flannel-io/flannel"},
	ldflags: "-s -w -X github.com/flannel-io/flannel/pkg/version.Version=" + FlannelVersion, cold: "3 minutes",
}

// flannelPlugin is the last release of the plugin in containernetworking/plugins: module proxies do
// not have github.com/flannel-io/cni-plugin, into which it moved.
var flannelPlugin = artifact{
	title: "flannel's CNI plugin 0.9.1", name: "flannel", version: "0.9.1", source: "test/kube/flannelplugin",
	programs: map[string]string{"flannel": "github.com/containernetworking/plugins/plugins/meta/flannel"},
	ldflags:  "-s -w", cold: "10 seconds",
}

var kubeRouter = artifact{
	title: "kube-router " + KubeRouterVersion, name: "kube-router", version: KubeRouterVersion, source: "test/kube/kuberouter",
	programs: map[string]string{"kube-router": kubeRouterModule + "/cmd/kube-router"},
	ldflags:  "-s -w -X " + kubeRouterModule + "/pkg/version.Version=v" + KubeRouterVersion, cold: "4 minutes",
}

// Cilium returns a directory that holds cilium-agent, cilium-cni, the sources of the agent's BPF
// programs (bpf) and the definitions of its kinds (crds), building them first if the cache lacks
// them.
func Cilium(ctx context.Context, progress Progress) (dir string, err error) {
	return cilium.ensure(ctx, progress)
}

// KubeRouter returns a directory that holds kube-router, building it first if the cache lacks it.
func KubeRouter(ctx context.Context, progress Progress) (dir string, err error) {
	return kubeRouter.ensure(ctx, progress)
}

// Flannel returns a directory that holds flanneld and the CNI plugin flannel, building them first
// if the cache lacks them.
func Flannel(ctx context.Context, progress Progress) (dir string, err error) {
	plugin, err := flannelPlugin.ensure(ctx, progress)
	if err != nil {
		return "", err
	}
	if dir, err = flannel.ensure(ctx, progress); err != nil {
		return "", err
	}
	// A link within one file system, whose name is that of the plugin's build.
	err = os.Link(filepath.Join(plugin, flannelPlugin.name), filepath.Join(dir, flannelPlugin.name))
	if errors.Is(err, os.ErrExist) {
		err = nil
	}
	return dir, err
}
