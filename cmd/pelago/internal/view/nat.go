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
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// NAT is a source of translated flows and packet counters: the maps of this machine, or those of
// nodes of a member, read by this program in the pods of pelago-node.
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
	dump.Flow
}

// Counter is a packet counter with its node.
type Counter struct {
	NodeName string `json:"nodeName"`
	dump.Counter
}

// Service is an exported port with the node whose maps hold it.
type Service struct {
	NodeName string `json:"nodeName"`
	dump.Service
}

// Flows are sorted by node, protocol and addresses.
func (n NAT) Flows(ctx context.Context) ([]Flow, error) {
	flows, err := gather(ctx, n, "nat list", nodeMaps.Flows, func(node string, f dump.Flow) Flow { return Flow{node, f} })
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Protocol, b.Protocol),
			a.Opening.Source.Compare(b.Opening.Source), a.Opening.Destination.Compare(b.Opening.Destination))
	})
	return flows, err
}

// Counters leaves out those that are zero.
func (n NAT) Counters(ctx context.Context) ([]Counter, error) {
	return gather(ctx, n, "nat stats", nodeMaps.Counters, func(node string, c dump.Counter) Counter { return Counter{node, c} })
}

// Services are sorted by node, address, port and protocol.
func (n NAT) Services(ctx context.Context) ([]Service, error) {
	services, err := gather(ctx, n, "service list", nodeMaps.Services, func(node string, s dump.Service) Service { return Service{node, s} })
	slices.SortFunc(services, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	return services, err
}

// Flush selects flows: those of a local address, of a far cluster by its index, or all.
type Flush struct {
	Pod     netip.Addr
	Cluster uint16
	All     bool
}

// Validate requires exactly one selection.
func (f Flush) Validate() error {
	n := 0
	for _, set := range []bool{f.Pod.IsValid(), f.Cluster != 0, f.All} {
		if set {
			n++
		}
	}
	if n != 1 {
		return errors.New("select the flows by one of --pod, --far-cluster and --all")
	}
	return nil
}

func (f Flush) String() string {
	switch {
	case f.Pod.IsValid():
		return "pod " + f.Pod.String()
	case f.Cluster != 0:
		return fmt.Sprintf("the cluster with index %d", f.Cluster)
	}
	return "all flows"
}

func (f Flush) args() string {
	switch {
	case f.Pod.IsValid():
		return "--pod " + f.Pod.String()
	case f.Cluster != 0:
		return fmt.Sprintf("--far-cluster %d", f.Cluster)
	}
	return "--all"
}

func (f Flush) match(local netip.Addr, cluster uint16) bool {
	return f.All || f.Pod.IsValid() && local == f.Pod || f.Cluster != 0 && cluster == f.Cluster
}

// Flushed is the number of flows that were removed from a node.
type Flushed struct {
	NodeName string `json:"nodeName"`
	Removed  int    `json:"removed"`
}

// Flush removes flows.
func (n NAT) Flush(ctx context.Context, f Flush) ([]Flushed, error) {
	return gather(ctx, n, "nat flush --yes "+f.args(), func(nodeMaps) ([]int, error) {
		removed, err := flushHere(n.Pins, f.match)
		return []int{removed}, err
	}, func(node string, removed int) Flushed { return Flushed{node, removed} })
}

// PrintFlushed writes a table of what was removed.
func PrintFlushed(w io.Writer, output string, flushed []Flushed) error {
	t := Table{Header: []string{"NODE", "REMOVED"}, Empty: "No node."}
	for _, f := range flushed {
		t.Rows = append(t.Rows, Row{Cells: []string{f.NodeName, fmt.Sprint(f.Removed)}, Object: f})
	}
	return PrintTables(w, output, t)
}

// Map is a map with its node.
type Map struct {
	NodeName string `json:"nodeName"`
	dump.Map
}

// MapRow is an entry of a map with its node.
type MapRow struct {
	NodeName string `json:"nodeName"`
	dump.Row
}

// Maps lists the maps that can be dumped.
func (n NAT) Maps(ctx context.Context) ([]Map, error) {
	return gather(ctx, n, "map list", nodeMaps.Maps, func(node string, m dump.Map) Map { return Map{node, m} })
}

// Dump decodes a map.
func (n NAT) Dump(ctx context.Context, name string) ([]MapRow, error) {
	if err := dump.CheckName(name); err != nil {
		return nil, err
	}
	read := func(l nodeMaps) ([]dump.Row, error) { return l.Dump(name) }
	return gather(ctx, n, "map dump "+name, read, func(node string, r dump.Row) MapRow { return MapRow{node, r} })
}

// PrintMaps writes a table of maps.
func PrintMaps(w io.Writer, output string, maps []Map) error {
	t := Table{Header: []string{"NODE", "MAP", "ENTRIES", "CONTENT"}, Empty: "No maps."}
	for _, m := range maps {
		t.Rows = append(t.Rows, Row{Cells: []string{m.NodeName, m.Name, fmt.Sprint(m.Entries), m.Content}, Object: m})
	}
	return PrintTables(w, output, t)
}

// PrintDump writes a table of entries, their values as JSON.
func PrintDump(w io.Writer, output string, rows []MapRow) error {
	t := Table{Header: []string{"NODE", "KEY", "VALUE"}, Empty: "No entries."}
	for _, r := range rows {
		value, err := json.Marshal(r.Value)
		if err != nil {
			return fmt.Errorf("print entry %s: %w", r.Key, err)
		}
		t.Rows = append(t.Rows, Row{Cells: []string{r.NodeName, r.Key, string(value)}, Object: r})
	}
	return PrintTables(w, output, t)
}

// nodeMaps reads the maps of this machine. On Linux *loader.Loader implements it.
type nodeMaps interface {
	Flows() ([]dump.Flow, error)
	Counters() ([]dump.Counter, error)
	Services() ([]dump.Service, error)
	Maps() ([]dump.Map, error)
	Dump(name string) ([]dump.Row, error)
	Close() error
}

const (
	// nodeTimeout bounds the time for one node: the pods of a node that is down count as running.
	nodeTimeout = 10 * time.Second
	// maxNodes bounds the nodes that are read at once.
	maxNodes = 16
)

// gather reads rows from this machine's maps, or runs the same command on every node. Each node
// that cannot be reached is an error beside the rows of the others: a partial list of flows looks
// like a complete one.
func gather[R, T any](
	ctx context.Context, n NAT, command string, read func(nodeMaps) ([]R, error), row func(node string, r R) T,
) ([]T, error) {
	rows := []T{}
	if n.Local {
		l, err := openHere(n.Pins)
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
	pods, err := n.DaemonPods(ctx)
	if err != nil {
		return nil, err
	}
	nodes := n.Nodes
	if len(nodes) == 0 {
		nodes = slices.Sorted(maps.Keys(pods))
	}
	return eachNode(ctx, nodes, nodeTimeout, func(ctx context.Context, node string) (some []T, err error) {
		if pods[node] == "" {
			return nil, NoDaemon(node)
		}
		var out bytes.Buffer
		err = n.Run(ctx, pods[node], nil, &out, slices.Concat([]string{"pelago"}, strings.Fields(command), []string{"--local", "-o", "json"})...)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", node, err)
		}
		if err := json.Unmarshal(out.Bytes(), &some); err != nil {
			return some, fmt.Errorf("read the answer of node %s: %w (is its pelago of another version?)", node, err)
		}
		return some, nil
	})
}

// eachNode reads rows of nodes in parallel, each for at most timeout, and returns them in the order
// of the nodes with one error for each node that failed.
func eachNode[T any](ctx context.Context, nodes []string, timeout time.Duration, read func(ctx context.Context, node string) ([]T, error)) ([]T, error) {
	type answer struct {
		rows []T
		err  error
	}
	answers := make([]answer, len(nodes))
	var group errgroup.Group
	group.SetLimit(maxNodes)
	for i, node := range nodes {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			done := make(chan answer, 1)
			go func() {
				rows, err := read(ctx, node)
				done <- answer{rows, err}
			}()
			select {
			case answers[i] = <-done:
			case <-ctx.Done(): // dialling may ignore the context
				answers[i].err = ctx.Err()
			}
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && answers[i].err != nil {
				answers[i].err = fmt.Errorf("node %s: no answer within %s: does its kubelet run? --node leaves it out", node, timeout)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil
	rows, errs := []T{}, []error{}
	for _, a := range answers {
		rows, errs = append(rows, a.rows...), append(errs, a.err)
	}
	return rows, errors.Join(errs...)
}

// EndpointMatch returns a predicate for the flows in which ADDRESS or ADDRESS:PORT occurs, before
// or after translation.
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
			Cells: []string{f.NodeName, string(f.Role), f.Protocol, f.Opening.Source.String(), remote(f.Opening.Destination),
				f.Translated.Source.String(), remote(f.Translated.Destination), f.State, f.Idle.Round(time.Second).String()},
			Wide:   []string{f.Pod.String(), fmt.Sprint(f.Cluster), fmt.Sprint(f.Node)},
			Object: f,
		})
	}
	return PrintTables(w, output, t)
}

// remote is a destination; that of a mapping is any.
func remote(a netip.AddrPort) string {
	if !a.IsValid() {
		return "any"
	}
	return a.String()
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

// NoDaemon is the error of a node without a running pod of pelago-node.
func NoDaemon(node string) error {
	return fmt.Errorf("node %s has no running pod of %s: name a node of `kubectl get nodes`, and see `kubectl -n %s get pods -o wide`",
		node, manifests.NodeDaemonSet, manifests.SystemNamespace)
}

// Run runs a command in the container pelago-node of a pod. The error holds its standard error.
func (m Member) Run(ctx context.Context, pod string, stdin io.Reader, stdout io.Writer, command ...string) error {
	url := m.Typed.CoreV1().RESTClient().Post().Resource("pods").Namespace(manifests.SystemNamespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: manifests.NodeDaemonSet, Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	var stderr bytes.Buffer
	if err := m.Stream(ctx, url, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: &stderr}); err != nil {
		return fmt.Errorf("run %q in pod %s: %w: %s", command, pod, err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// Stream connects the streams to the subresource exec or attach of a pod.
func (m Member) Stream(ctx context.Context, url *url.URL, o remotecommand.StreamOptions) error {
	return manifests.Cluster(m).Stream(ctx, url, o)
}

// DaemonPods are the running pods of pelago-node, by node.
func (m Member) DaemonPods(ctx context.Context) (map[string]string, error) {
	pods, err := m.Typed.CoreV1().Pods(manifests.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + manifests.NodeDaemonSet})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", manifests.NodeDaemonSet, err)
	}
	out := map[string]string{}
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			out[pod.Spec.NodeName] = pod.Name
		}
	}
	return out, nil
}
