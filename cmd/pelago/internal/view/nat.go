package view

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/deploy"
)

// NAT is a source of translated flows and packet counters: the maps of this machine, or those of nodes of a member, read by this
// program in the pods of pelago-node.
type NAT struct {
	Local bool
	Pins  string // if Local: the directory of the pinned maps
	Member
	// Nodes is empty for all that run pelago-node.
	Nodes []string
}

// Flow is a translated flow with the node that translates it.
type Flow struct {
	NodeName string `json:"nodeName"`
	loader.Flow
}

// Counter is a packet counter with its node.
type Counter struct {
	NodeName string `json:"nodeName"`
	loader.Counter
}

// Service is an exported port with the node whose maps hold it.
type Service struct {
	NodeName string `json:"nodeName"`
	loader.Service
}

// Flows are sorted by node, protocol and addresses.
func (n NAT) Flows(ctx context.Context) ([]Flow, error) {
	flows, err := gather(ctx, n, "nat list", (*loader.Loader).Flows, func(node string, f loader.Flow) Flow { return Flow{node, f} })
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Protocol, b.Protocol),
			a.Opening.Source.Compare(b.Opening.Source), a.Opening.Destination.Compare(b.Opening.Destination))
	})
	return flows, err
}

// Counters leaves out those that are zero.
func (n NAT) Counters(ctx context.Context) ([]Counter, error) {
	return gather(ctx, n, "nat stats", (*loader.Loader).Counters, func(node string, c loader.Counter) Counter { return Counter{node, c} })
}

// Services are sorted by node, address, port and protocol.
func (n NAT) Services(ctx context.Context) ([]Service, error) {
	services, err := gather(ctx, n, "service list", (*loader.Loader).Services, func(node string, s loader.Service) Service { return Service{node, s} })
	slices.SortFunc(services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	return services, err
}

// gather reads rows from this machine's maps, or runs the same command on every node. A node that cannot be reached is an error: a
// partial list of flows looks like a complete one.
func gather[R, T any](
	ctx context.Context, n NAT, command string, read func(*loader.Loader) ([]R, error), row func(node string, r R) T,
) ([]T, error) {
	rows := []T{}
	if n.Local {
		l, err := loader.OpenMaps(n.Pins)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		found, err := read(l)
		for _, r := range found {
			rows = append(rows, row(cmp.Or(os.Getenv("NODE_NAME"), "local"), r))
		}
		return rows, err
	}
	pods, err := n.daemonPods(ctx)
	if err != nil {
		return nil, err
	}
	nodes := n.Nodes
	if len(nodes) == 0 {
		nodes = slices.Sorted(maps.Keys(pods))
	}
	var errs []error
	for _, node := range nodes {
		if pods[node] == "" {
			errs = append(errs, fmt.Errorf("node %s has no running pod of %s: name a node of `kubectl get nodes`, and see `kubectl -n %s get pods -o wide`",
				node, deploy.NodeDaemonSet, deploy.SystemNamespace))
			continue
		}
		out, err := n.runInPod(ctx, pods[node], slices.Concat([]string{"pelago"}, strings.Fields(command), []string{"--local", "-o", "json"})...)
		if err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", node, err))
			continue
		}
		var some []T
		if err := json.Unmarshal(out, &some); err != nil {
			errs = append(errs, fmt.Errorf("read the answer of node %s: %w (is its pelago of another version?)", node, err))
		}
		rows = append(rows, some...)
	}
	return rows, errors.Join(errs...)
}

// EndpointMatch returns a predicate for the flows in which ADDRESS or ADDRESS:PORT occurs, before or after translation.
func EndpointMatch(text string) (func(Flow) bool, error) {
	port, err := netip.ParseAddrPort(text)
	matches := func(e netip.AddrPort) bool { return e == port }
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%q is no address and no address:port", text)
		}
		matches = func(e netip.AddrPort) bool { return e.Addr() == a }
	}
	return func(f Flow) bool {
		return slices.ContainsFunc([]netip.AddrPort{f.Opening.Source, f.Opening.Destination, f.Translated.Source, f.Translated.Destination}, matches)
	}, nil
}

// PrintFlows writes a table of flows.
func PrintFlows(w io.Writer, output string, flows []Flow) error {
	t := Table{
		Header: []string{"NODE", "ROLE", "PROTO", "SOURCE", "DESTINATION", "SOURCE AFTER", "DESTINATION AFTER", "STATE", "IDLE"},
		Wide:   []string{"POD", "CLUSTER INDEX", "FAR NODE INDEX"}, Empty: "No flows.",
	}
	for _, f := range flows {
		t.Rows = append(t.Rows, Row{
			Cells: []string{f.NodeName, string(f.Role), f.Protocol, f.Opening.Source.String(), f.Opening.Destination.String(),
				f.Translated.Source.String(), f.Translated.Destination.String(), f.State, f.Idle.Round(time.Second).String()},
			Wide:   []string{f.Pod.String(), fmt.Sprint(f.Cluster), fmt.Sprint(f.Node)},
			Object: f,
		})
	}
	return PrintTables(w, output, t)
}

// PrintServices writes a table of exported ports.
func PrintServices(w io.Writer, output string, services []Service) error {
	t := Table{Header: []string{"NODE", "PROTO", "ADDRESS", "LOCAL BACKENDS", "NODE WEIGHTS"}, Wide: []string{"AFFINITY"}, Empty: "No exported services."}
	for _, s := range services {
		var backends, weights []string
		for _, b := range s.Backends {
			backends = append(backends, b.String())
		}
		for _, n := range s.Weights {
			weights = append(weights, fmt.Sprintf("%d: %.0f %%", n.Node, 100*n.Share))
		}
		affinity := "none"
		if s.ClientIP {
			affinity = "ClientIP"
		}
		t.Rows = append(t.Rows, Row{
			Cells: []string{s.NodeName, s.Protocol, s.Address.String(), cmp.Or(strings.Join(backends, ", "), "-"), cmp.Or(strings.Join(weights, ", "), "-")},
			Wide:  []string{affinity}, Object: s,
		})
	}
	return PrintTables(w, output, t)
}

// PrintCounters writes a table of counters.
func PrintCounters(w io.Writer, output string, counters []Counter) error {
	t := Table{Header: []string{"NODE", "HOOK", "VERDICT", "PACKETS", "BYTES"}, Empty: "No packets."}
	for _, c := range counters {
		cells := []string{c.NodeName, c.Hook, c.Verdict, fmt.Sprint(c.Packets), fmt.Sprint(c.Bytes)}
		t.Rows = append(t.Rows, Row{Cells: cells, Object: c})
	}
	return PrintTables(w, output, t)
}

// runInPod runs a command in the container pelago-node of a pod and returns its standard output. The error holds its standard
// error.
func (m Member) runInPod(ctx context.Context, pod string, command ...string) ([]byte, error) {
	cfg := rest.CopyConfig(m.Config)
	cfg.Timeout = 0 // ctx bounds the command
	url := m.Typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(deploy.SystemNamespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: deploy.NodeDaemonSet, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	spdy, errSPDY := remotecommand.NewSPDYExecutor(cfg, "POST", url)
	websocket, errWebSocket := remotecommand.NewWebSocketExecutor(cfg, "GET", url.String())
	// API servers before 1.30 do not speak the newer protocol.
	executor, err := remotecommand.NewFallbackExecutor(websocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err := errors.Join(errSPDY, errWebSocket, err); err != nil {
		return nil, fmt.Errorf("run %q in pod %s: %w", command, pod, err)
	}
	var stdout, stderr bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr}); err != nil {
		return nil, fmt.Errorf("run %q in pod %s: %w: %s", command, pod, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// daemonPods are the running pods of pelago-node, by node.
func (m Member) daemonPods(ctx context.Context) (map[string]string, error) {
	pods, err := m.Typed.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + deploy.NodeDaemonSet})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", deploy.NodeDaemonSet, err)
	}
	out := map[string]string{}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			out[pod.Spec.NodeName] = pod.Name
		}
	}
	return out, nil
}
