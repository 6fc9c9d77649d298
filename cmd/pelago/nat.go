package main

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

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/deploy"
)

// nodeFlow is a translated flow with the node that translates it.
type nodeFlow struct {
	NodeName string `json:"nodeName"`
	loader.Flow
}

// nodeCounter is a counter with its node.
type nodeCounter struct {
	NodeName string `json:"nodeName"`
	loader.Counter
}

// natOptions are the common flags of the nat verbs.
type natOptions struct {
	access access
	nodes  []string
	local  bool
	pins   string
	output string
}

func natCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nat",
		Short: "Show address translation on the nodes",
		Long: `Addresses are translated on the nodes where the pods run, with eBPF maps. These verbs read the
maps of all nodes (through the pods of pelago-node), of those named by --node, or with --local of this machine.`,
	}
	cmd.AddCommand(natListCommand(), natGetCommand(), natStatsCommand())
	return cmd
}

func (o *natOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.access.addFlags(f)
	f.StringSliceVar(&o.nodes, "node", nil, "only these nodes (default: all that run pelago-node)")
	f.BoolVar(&o.local, "local", false, "read the maps of this machine; needs root and no API server")
	f.StringVar(&o.pins, "pin-path", loader.DefaultPinPath, "with --local: directory of the pinned maps")
	view.AddOutputFlag(cmd, &o.output)
}

func natListCommand() *cobra.Command {
	var o natOptions
	var role, protocol string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List translated flows",
		Example: `  pelago nat list --context g1
  pelago nat list --context g1 --node g1-n2 --protocol tcp -o json
  pelago nat list --local -o wide            # on a node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flows, err := o.flows(cmd.Context())
			if err != nil {
				return err
			}
			flows = slices.DeleteFunc(flows, func(f nodeFlow) bool {
				return role != "" && string(f.Role) != role || protocol != "" && f.Protocol != protocol
			})
			return o.printFlows(cmd.OutOrStdout(), flows)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&role, "role", "", "only flows that a local pod opened (client) or a remote one (server)")
	cmd.Flags().StringVar(&protocol, "protocol", "", "only tcp, udp or icmp")
	return cmd
}

func natGetCommand() *cobra.Command {
	var o natOptions
	cmd := &cobra.Command{
		Use:   "get ADDRESS[:PORT]",
		Short: "Find the flows in which an address occurs, before or after translation",
		Example: `  pelago nat get --context g1 120.1.0.3:1345     # which pod has this egress port?
  pelago nat get --context g2 10.7.2.5           # flows from and to this pod`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			matches, err := parseEndpoint(args[0])
			if err != nil {
				return err
			}
			flows, err := o.flows(cmd.Context())
			if err != nil {
				return err
			}
			flows = slices.DeleteFunc(flows, func(f nodeFlow) bool {
				return !slices.ContainsFunc(f.endpoints(), matches)
			})
			if len(flows) == 0 {
				return fmt.Errorf("no flow with %s on these nodes", args[0])
			}
			return o.printFlows(cmd.OutOrStdout(), flows)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func natStatsCommand() *cobra.Command {
	var o natOptions
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show packet counters by node, hook and verdict",
		Example: `  pelago nat stats --context g1
  pelago nat stats --context g1 -o json | jq '.[] | select(.verdict | startswith("drop"))'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			counters, err := o.counters(cmd.Context())
			if err != nil {
				return err
			}
			t := view.Table{Header: []string{"NODE", "HOOK", "VERDICT", "PACKETS", "BYTES"}, Empty: "No packets."}
			for _, c := range counters {
				t.Rows = append(t.Rows, view.Row{Object: c, Cells: []string{c.NodeName, c.Hook, c.Verdict, fmt.Sprint(c.Packets), fmt.Sprint(c.Bytes)}})
			}
			return view.PrintTables(cmd.OutOrStdout(), o.output, t)
		},
	}
	o.addFlags(cmd)
	return cmd
}

// parseEndpoint makes a predicate of ADDRESS or ADDRESS:PORT.
func parseEndpoint(text string) (func(netip.AddrPort) bool, error) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return func(e netip.AddrPort) bool { return e == ap }, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no address and no address:port", text)
	}
	return func(e netip.AddrPort) bool { return e.Addr() == a }, nil
}

func (f nodeFlow) endpoints() []netip.AddrPort {
	return []netip.AddrPort{f.Opening.Source, f.Opening.Destination, f.Translated.Source, f.Translated.Destination}
}

func (o *natOptions) flows(ctx context.Context) ([]nodeFlow, error) {
	flows, err := gather(ctx, o, "list", func(l *loader.Loader, node string) ([]nodeFlow, error) {
		flows, err := l.Flows()
		out := make([]nodeFlow, len(flows))
		for i, f := range flows {
			out[i] = nodeFlow{node, f}
		}
		return out, err
	})
	slices.SortFunc(flows, func(a, b nodeFlow) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Protocol, b.Protocol),
			a.Opening.Source.Compare(b.Opening.Source), a.Opening.Destination.Compare(b.Opening.Destination))
	})
	return flows, err
}

func (o *natOptions) counters(ctx context.Context) ([]nodeCounter, error) {
	return gather(ctx, o, "stats", func(l *loader.Loader, node string) ([]nodeCounter, error) {
		counters, err := l.Counters()
		out := make([]nodeCounter, len(counters))
		for i, c := range counters {
			out[i] = nodeCounter{node, c}
		}
		return out, err
	})
}

// gather reads rows from this machine's maps, or runs the same verb on every node. A node that cannot be reached is an error: a
// partial list of flows looks like a complete one.
func gather[T any](ctx context.Context, o *natOptions, verb string, read func(*loader.Loader, string) ([]T, error)) ([]T, error) {
	if o.local {
		l, err := loader.OpenMaps(o.pins)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		return read(l, cmp.Or(os.Getenv("NODE_NAME"), "local"))
	}
	c, err := o.access.open()
	if err != nil {
		return nil, err
	}
	pods, err := daemonPods(ctx, c.Typed)
	if err != nil {
		return nil, err
	}
	nodes := o.nodes
	if len(nodes) == 0 {
		nodes = slices.Sorted(maps.Keys(pods))
	}
	rows := []T{}
	var errs []error
	for _, node := range nodes {
		if pods[node] == "" {
			errs = append(errs, fmt.Errorf("node %s has no running pod of %s: name a node of `kubectl get nodes`, and see `kubectl -n %s get pods -o wide`",
				node, deploy.NodeDaemonSet, deploy.SystemNamespace))
			continue
		}
		out, err := runInPod(ctx, c, pods[node], "pelago", "nat", verb, "--local", "-o", "json")
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

func (o *natOptions) printFlows(w io.Writer, flows []nodeFlow) error {
	t := view.Table{
		Header: []string{"NODE", "ROLE", "PROTO", "SOURCE", "DESTINATION", "SOURCE AFTER", "DESTINATION AFTER", "STATE", "IDLE"},
		Wide:   []string{"POD", "CLUSTER INDEX", "FAR NODE INDEX"}, Empty: "No flows.",
	}
	for _, f := range flows {
		t.Rows = append(t.Rows, view.Row{
			Cells: []string{f.NodeName, string(f.Role), f.Protocol, f.Opening.Source.String(), f.Opening.Destination.String(),
				f.Translated.Source.String(), f.Translated.Destination.String(), f.State, f.Idle.Round(time.Second).String()},
			Wide:   []string{f.Pod.String(), fmt.Sprint(f.Cluster), fmt.Sprint(f.Node)},
			Object: f,
		})
	}
	return view.PrintTables(w, o.output, t)
}

// runInPod runs a command in the container pelago-node of a pod and returns its standard output. The error holds its standard
// error.
func runInPod(ctx context.Context, c *cluster, pod string, command ...string) ([]byte, error) {
	cfg := rest.CopyConfig(c.config)
	cfg.Timeout = 0 // ctx bounds the command
	url := c.Typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(deploy.SystemNamespace).Name(pod).SubResource("exec").
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
func daemonPods(ctx context.Context, c kubernetes.Interface) (map[string]string, error) {
	pods, err := c.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + deploy.NodeDaemonSet})
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
