package lab

import (
	"context"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is the present state of a lab.
type Status struct {
	Name       string          `json:"name"`
	Underlay   netip.Prefix    `json:"underlay"`
	KubeProxy  string          `json:"kubeProxy"`
	Kubeconfig string          `json:"kubeconfig"`
	Clusters   []ClusterStatus `json:"clusters"`
}

// ClusterStatus is one cluster or the hub.
type ClusterStatus struct {
	Name        string `json:"name"`
	Server      string `json:"server"`
	PodCIDR     string `json:"podCIDR,omitempty"`
	ServiceCIDR string `json:"serviceCIDR"`
	Version     string `json:"version,omitempty"` // as reported by the API server
	State       string `json:"state"`             // ready, unreachable (from the host) or degraded
	Message     string `json:"message,omitempty"` // what is wrong
	Link        string `json:"link"`              // to the router: up, cut, unplugged, shaped to …
	// Processes maps the control plane's components to pids; 0 is not running.
	Processes map[string]int `json:"processes"`
	Nodes     []NodeStatus   `json:"nodes,omitempty"`
}

// NodeStatus is one node.
type NodeStatus struct {
	Name    string     `json:"name"`
	Address netip.Addr `json:"address"`
	PodCIDR string     `json:"podCIDR"`
	State   string     `json:"state"` // running, paused, off
	Ready   string     `json:"ready"` // Ready condition at the API server: True, False, Unknown
	Link    string     `json:"link"`
	PID     int        `json:"pid,omitempty"` // of the first process
}

// statusLimit bounds the question to one API server.
const statusLimit = 3 * time.Second

// Status inspects processes, links and API servers. What does not answer is
// reported as such, it is no error.
func (l *Lab) Status(ctx context.Context) Status {
	plan := l.record.Plan
	s := Status{Name: plan.Name, Underlay: plan.Underlay, KubeProxy: l.record.Options.KubeProxy, Kubeconfig: l.Kubeconfig()}
	s.Clusters = make([]ClusterStatus, len(plan.Clusters))
	var group sync.WaitGroup
	for i, c := range plan.Clusters {
		group.Go(func() { s.Clusters[i] = l.clusterStatus(ctx, c) })
	}
	group.Wait()
	return s
}

func (l *Lab) clusterStatus(ctx context.Context, c Cluster) ClusterStatus {
	s := ClusterStatus{Name: c.Name, Server: c.URL(), ServiceCIDR: c.ServiceCIDR.String(), Link: l.linkState(c.Name), Processes: map[string]int{}}
	if !c.Hub {
		s.PodCIDR = c.PodCIDR.String()
	}
	s.State = "ready"
	for _, component := range c.components() {
		p := l.recorded(c.Name + "/" + component)
		s.Processes[component] = 0
		if p.alive() {
			s.Processes[component] = p.PID
		} else {
			s.State, s.Message = "degraded", component+" is not running"
		}
	}
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	ready := map[string]string{}
	if err := l.askAPIServer(ctx, &s, ready); err != nil && s.State == "ready" {
		s.State, s.Message = "unreachable", err.Error()
	}
	for _, n := range c.Nodes {
		s.Nodes = append(s.Nodes, l.nodeStatus(n, ready[n.Name]))
	}
	return s
}

// askAPIServer fills in the version and the nodes' Ready conditions.
func (l *Lab) askAPIServer(ctx context.Context, s *ClusterStatus, ready map[string]string) error {
	client, err := l.Clientset(s.Name)
	if err != nil {
		return err
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		ok, _ := nodeReady(&nodes.Items[i])
		ready[nodes.Items[i].Name] = map[bool]string{true: "True", false: "False"}[ok]
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	s.Version = version.GitVersion
	return nil
}

func (l *Lab) nodeStatus(n Node, ready string) NodeStatus {
	s := NodeStatus{Name: n.Name, Address: n.Address, PodCIDR: n.PodCIDR.String(), Ready: ready, Link: l.linkState(n.Name)}
	if s.Ready == "" {
		s.Ready = "Unknown"
	}
	init := l.recorded(nodeProcess(n.Name))
	switch state := init.state(); state {
	case 0:
		s.State = "off"
		return s
	case 'T':
		s.State = "paused"
	default:
		s.State = "running"
	}
	s.PID = init.PID
	return s
}

// linkState describes the link of a node or a cluster.
func (l *Lab) linkState(target string) string {
	c, err := l.cableOf(target)
	if err != nil {
		return "absent"
	}
	defer c.close()
	port, err := c.sw.LinkByName(c.port)
	if err != nil {
		return "absent"
	}
	switch tbf, err := shaper(c.sw, c.port); {
	case port.Attrs().MasterIndex == 0:
		return "cut"
	case port.Attrs().OperState == netlink.OperDown:
		return "unplugged"
	case err == nil && tbf != nil:
		return "shaped to " + strconv.FormatFloat(float64(tbf.Rate)*8/1e6, 'f', -1, 64) + " Mbit/s"
	}
	return "up"
}
