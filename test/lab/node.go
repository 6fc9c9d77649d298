package lab

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// nodePath is the PATH of everything that the lab runs.
const nodePath = machine.Path

// gatewayLabel marks a node that carries traffic between clusters.
const gatewayLabel = "submariner.io/gateway"

// nodeDir is where a node's files are on the host.
func (l *Lab) nodeDir(name string) string { return filepath.Join(l.dir, "node", name) }

// nodeProcess is the name under which a node's first process is recorded.
func nodeProcess(name string) string { return name + "/init" }

// cgroup is the control group of a node's pods, or with the name programs, which no node has, that
// of all other processes.
func (l *Lab) cgroup(name string) string {
	return "/" + cgroupParent + "/" + l.record.Plan.Name + "/" + name
}

const programs = "programs"

// cgroupParent is above the control groups of all labs.
const cgroupParent = "pelago-lab"

// prepareNode writes everything that the node's file system needs.
func (l *Lab) prepareNode(c Cluster, n Node) error {
	dir := l.nodeDir(n.Name)
	inNode := func(path string) string { return filepath.Join(dir, path) } // for paths under /etc
	if err := l.nodeCredentials(c, n, inNode); err != nil {
		return err
	}
	values := l.values(c, n)
	for name, path := range map[string]string{
		"containerd.toml": machine.ContainerdConfig,
		"kubelet.yaml":    machine.KubeletConfig,
		"kube-proxy.yaml": machine.ProxyConfig,
	} {
		text, err := render(name, values)
		if err != nil {
			return err
		}
		if err := writeFile(inNode(path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := l.prepareNetwork(c, n, values); err != nil {
		return err
	}
	// Networks that the host has configured for itself are not the node's.
	if err := unix.Setxattr(inNode(machine.NetworkConfigDir), "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("hide the host's %s: %w", machine.NetworkConfigDir, err)
	}
	machineID := sha256.Sum256([]byte(l.record.ID + n.Name))
	for path, text := range map[string]string{
		"/etc/hostname":   n.Name + "\n",
		"/etc/hosts":      fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", n.Address, n.Name),
		"/etc/machine-id": fmt.Sprintf("%x\n", machineID[:16]),
		// no name server: refused at once
		"/etc/resolv.conf": fmt.Sprintf("nameserver %s\n", c.Router),
	} {
		if err := writeFile(inNode(path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	spec := machine.Spec{
		Hostname: n.Name, BootID: newBootID(), Dir: dir, Kubernetes: l.record.Kubernetes,
		Containerd: l.record.Containerd, Images: l.record.Images,
		CgroupRoot: l.cgroup(n.Name), Server: c.URL(),
	}
	if err := l.describeNetwork(&spec, values); err != nil {
		return err
	}
	return writeJSON(machine.SpecFile(dir), spec)
}

// nodeCredentials writes the certificates and kubeconfigs of a node, unless
// they are there.
func (l *Lab) nodeCredentials(c Cluster, n Node, inNode func(string) string) error {
	ca, err := openAuthority(filepath.Join(l.clusterDir(c.Name), "pki"), "ca")
	if err != nil {
		return err
	}
	kubelet := inNode(machine.KubeletKubeconfig)
	if exists(kubelet) {
		return nil
	}
	user := identity{name: "system:node:" + n.Name, orgs: []string{"system:nodes"}}
	client, err := ca.issue(user)
	if err != nil {
		return err
	}
	user.hosts = []string{n.Name, n.Address.String()}
	server, err := ca.issue(user)
	if err != nil {
		return err
	}
	proxy, err := os.ReadFile(filepath.Join(l.clusterDir(c.Name), "kube-proxy.kubeconfig"))
	if err != nil {
		return err
	}
	pki := func(name string) string { return filepath.Join(inNode(machine.PKIDir), name) }
	return errors.Join(
		writeFile(pki("ca.crt"), ca.pem, 0o644),
		writeFile(pki("kubelet.crt"), server.cert, 0o644),
		writeFile(pki("kubelet.key"), server.key, 0o600),
		writeFile(pki("kubelet-client.crt"), client.cert, 0o644),
		writeFile(pki("kubelet-client.key"), client.key, 0o600),
		writeFile(inNode(machine.ProxyKubeconfig), proxy, 0o600),
		// Written last: if it exists, all do.
		writeKubeconfig(kubelet, access{cluster: c.Name, server: c.URL(), ca: ca.pem, user: n.Name, client: client}),
	)
}

// startNode plugs a node in and switches it on, unless it runs.
func (l *Lab) startNode(c Cluster, n Node) error {
	if l.recorded(nodeProcess(n.Name)).alive() {
		return nil
	}
	if err := l.prepareNode(c, n); err != nil {
		return fmt.Errorf("prepare node %s: %w", n.Name, err)
	}
	if err := l.ensureNodeNetwork(c, n); err != nil {
		return fmt.Errorf("network of node %s: %w", n.Name, err)
	}
	_, err := l.ensureProcess(program{
		name:      nodeProcess(n.Name),
		namespace: l.record.Plan.Namespace(n.Name),
		argv:      []string{l.record.NodeInit, l.nodeDir(n.Name)},
		log:       machine.LogFile(l.nodeDir(n.Name), "init"),
		clone:     unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS,
	})
	return err
}

// ensureNodeObject creates the Node before its kubelet starts, so that the
// planned pod CIDR is the node's from the beginning.
func ensureNodeObject(ctx context.Context, client kubernetes.Interface, n Node) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}},
		Spec:       corev1.NodeSpec{PodCIDR: n.PodCIDR.String(), PodCIDRs: []string{n.PodCIDR.String()}},
	}
	if n.Gateway {
		node.Labels[gatewayLabel] = "true"
	}
	_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Node %s: %w", n.Name, err)
	}
	return nil
}

// newBootID makes an id of the form that Linux uses, a random UUID.
func newBootID() string {
	id := make([]byte, 16)
	rand.Read(id) // never fails: the program would be ended
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// nodeReady returns whether the Node is Ready and the reason given if not.
func nodeReady(node *corev1.Node) (bool, string) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue, condition.Message
		}
	}
	return false, "the kubelet has not reported yet"
}
