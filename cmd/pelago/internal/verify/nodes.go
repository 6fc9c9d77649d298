package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/rollout"
)

const (
	labelNode    = "pelago.io/verify-node"
	terminations = "/dev/termination-log"
)

// Nodes reads facts about the nodes of a cluster by a pod in the network of each, which ends at once
// and is removed. It calls no program of the node and changes nothing there.
func Nodes(ctx context.Context, m view.Member, image string, progress manifests.Progress) (facts []check.NodeFacts, err error) {
	c := &Cluster{Member: m, Image: image, Pull: corev1.PullIfNotPresent}
	if err := c.removeNamespace(ctx, progress); err != nil {
		return nil, err
	}
	nodes, err := m.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	ns := namespaceObject()
	ns.Labels["pod-security.kubernetes.io/enforce"] = "privileged" // for hostNetwork
	if err := m.Client.Create(ctx, ns); err != nil {
		return nil, fmt.Errorf("create Namespace %s: %w", Namespace, err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), CleanupWithin)
		defer cancel()
		err = errors.Join(err, c.removeNamespace(clean, progress))
	}()
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if os := n.Labels[corev1.LabelOSStable]; os != "" && os != "linux" {
			continue
		}
		if err := c.createPod(ctx, c.nodePod(i, n.Name)); err != nil {
			return nil, err
		}
	}
	return c.awaitFacts(ctx)
}

// nodePod reads the facts of one node, and has no privilege but the node's network.
func (c *Cluster) nodePod(i int, node string) *corev1.Pod {
	p := c.pod(fmt.Sprintf("node-%d", i), "node")
	p.Labels[labelNode] = "true"
	p.Spec.NodeName, p.Spec.HostNetwork, p.Spec.TopologySpreadConstraints = node, true, nil
	p.Spec.RestartPolicy, p.Spec.Tolerations = corev1.RestartPolicyNever, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	container := &p.Spec.Containers[0]
	container.Command = []string{"pelago", "verify-pod", "node", "--output", terminations}
	container.ReadinessProbe, container.TerminationMessagePath = nil, terminations
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
	}
	container.Env = []corev1.EnvVar{field("NODE_NAME", "spec.nodeName"), field("HOST_IP", "status.hostIP")}
	return p
}

// awaitFacts waits until all pods have ended, and reads what they left. Pods that do not end are an
// error beside the facts of the others.
func (c *Cluster) awaitFacts(ctx context.Context) (facts []check.NodeFacts, err error) {
	limited, cancel := context.WithTimeout(ctx, podsWithin)
	defer cancel()
	var pods corev1.PodList
	waited := wait.PollUntilContextCancel(limited, pollInterval, true, func(context.Context) (bool, error) {
		if err := c.Client.List(ctx, &pods, client.InNamespace(Namespace), client.HasLabels{labelNode}); err != nil {
			return false, fmt.Errorf("list pods: %w", err)
		}
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !over(&p) }), nil
	})
	if waited != nil && !errors.Is(waited, context.DeadlineExceeded) {
		return nil, waited
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		var f check.NodeFacts
		switch {
		case p.Status.Phase != corev1.PodSucceeded:
			errs = append(errs, fmt.Errorf("pod on node %s, image %s: %s", p.Spec.NodeName, c.Image, rollout.PodReason(*p)))
			continue
		case len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Terminated == nil:
			errs = append(errs, fmt.Errorf("pod on node %s: its termination message is missing", p.Spec.NodeName))
			continue
		}
		if err := json.Unmarshal([]byte(p.Status.ContainerStatuses[0].State.Terminated.Message), &f); err != nil {
			errs = append(errs, fmt.Errorf("read what the pod on node %s found: %w", p.Spec.NodeName, err))
			continue
		}
		facts = append(facts, f)
	}
	slices.SortFunc(facts, func(a, b check.NodeFacts) int { return strings.Compare(a.Node, b.Node) })
	return facts, errors.Join(errs...)
}

func over(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ReadNode reads the facts of the node in whose network it runs: the device that has the address
// hostIP, and the UDP ports of tables in the form of /proc/net/udp.
func ReadNode(node, hostIP string, tables ...io.Reader) (check.NodeFacts, error) {
	f := check.NodeFacts{Node: node}
	devices, err := net.Interfaces()
	if err != nil {
		return f, fmt.Errorf("list network devices: %w", err)
	}
	for _, d := range devices {
		addresses, err := d.Addrs()
		if err != nil {
			return f, fmt.Errorf("list the addresses of %s: %w", d.Name, err)
		}
		for _, a := range addresses {
			if p, ok := a.(*net.IPNet); ok && p.IP.String() == hostIP {
				f.Device, f.MTU = d.Name, d.MTU
			}
		}
	}
	if f.Device == "" {
		return f, fmt.Errorf("no network device has the node's address %q", hostIP)
	}
	for _, table := range tables {
		ports, err := udpPorts(table)
		if err != nil {
			return f, err
		}
		f.UDP = append(f.UDP, ports...)
	}
	slices.Sort(f.UDP)
	f.UDP = slices.Compact(f.UDP)
	return f, nil
}

// udpPorts are the local ports of a table in the form of /proc/net/udp.
func udpPorts(table io.Reader) (ports []uint16, err error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || !strings.HasSuffix(fields[0], ":") {
			continue // the header
		}
		_, text, _ := strings.Cut(fields[1], ":") // without it: empty, which is no number
		port, err := strconv.ParseUint(text, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("read the UDP ports of the node: %w", err)
		}
		ports = append(ports, uint16(port))
	}
	return ports, lines.Err()
}
