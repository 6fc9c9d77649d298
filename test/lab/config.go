package lab

import (
	"embed"
	"fmt"
	"strings"
	"text/template"

	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab/machine"
)

//go:embed config
var configFiles embed.FS

var configs = template.Must(template.New("").Option("missingkey=error").ParseFS(configFiles, "config/*"))

// configValues is what the files under config/ are filled in with.
type configValues struct {
	Cluster    Cluster
	Node       Node
	KubeProxy  string
	CgroupRoot string
	Uplink     string
	UplinkOnly bool

	Socket, NetworkConfigDir, PKIDir, ProxyKubeconfig string
	// where the CNI's programs and kubeconfig are
	NetworkDir, NetworkKubeconfig string
	// Options are the words after the CNI's name.
	Options map[string]bool

	PauseImage, CoreDNSImage string
	DNSReplicas              int
}

func (l *Lab) values(c Cluster, n Node) configValues {
	options := map[string]bool{}
	for _, option := range l.network().options {
		options[option] = true
	}
	return configValues{
		Cluster: c, Node: n, KubeProxy: l.record.Options.KubeProxy, CgroupRoot: l.cgroup(n.Name),
		Uplink: machineLink, UplinkOnly: l.record.Options.Masquerade == MasqueradeUplink,
		Socket: machine.Socket, NetworkConfigDir: machine.NetworkConfigDir, PKIDir: machine.PKIDir,
		ProxyKubeconfig: machine.ProxyKubeconfig,
		NetworkDir:      machine.NetworkDir, NetworkKubeconfig: machine.NetworkKubeconfig, Options: options,
		PauseImage: images.Pause, CoreDNSImage: images.CoreDNS,
		DNSReplicas: min(2, len(c.Nodes)),
	}
}

// render fills in one file under config/.
func render(name string, values configValues) (string, error) {
	var out strings.Builder
	if err := configs.ExecuteTemplate(&out, name, values); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return out.String(), nil
}
