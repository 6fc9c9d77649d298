package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// traced are the flags of trace.
type traced struct {
	access         Access
	output         string
	from, node, to string
	protocol       string
	remote         []string
	size           int
	live           bool
	wait           time.Duration
	members        []member // the first is that of the source
	source         netip.Addr
	sourceNode     string
}

func traceCommand(open func() Access) *cobra.Command {
	t := traced{access: open()}
	cmd := &cobra.Command{
		Use:   "trace --from [NAMESPACE/]POD --to NAME|IP[:PORT]",
		Short: "Trace the path of a packet to another cluster, or the reason why it is dropped",
		Long: `trace resolves the name as the cluster's name server does, and has every node on the path evaluate the first packet of a
connection against the tables in its kernel: one line each, with the entry that decided. It sends nothing. With --live it also sends such a
packet, as if the pod had sent it, and shows where it and its answer were seen; nothing runs in the pod.

Nodes of the other cluster are read in a context of --remote-context; without it the trace ends at the own gateway.

It does not take into account quotas, session affinity, and firewall rules other than NetworkPolicies; --live shows their effect. It
needs the right to list NodeIndexes, Peers, Services, NetworkPolicies, and to create pods/exec in namespace pelago-system.

Exit status: 0 the packet is delivered, 2 it is dropped, 1 undetermined. The reasons are listed in docs/cli.md.`,
		Example: `  pelago trace --context g1 --from default/client --to sample/web --remote-context g2
  pelago trace --context g1 --from client --to web.sample.svc.clusterset.local:80 --remote-context g2 --live
  pelago trace --context g1 --from-node g1-n2 --to 120.2.0.20:53 --protocol udp --size 1400 -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (t.from == "") == (t.node == "") {
				return fmt.Errorf("name the source: --from [NAMESPACE/]POD, or --from-node NODE for a process in a node's own network")
			}
			if t.size != 0 && (t.size < 28 || t.size > 65535) {
				return fmt.Errorf("--size %d: a packet has 28 to 65535 bytes", t.size)
			}
			found, err := t.run(cmd.Context())
			if err != nil {
				return err
			}
			if err := t.print(cmd.OutOrStdout(), found); err != nil {
				return err
			}
			return found.status()
		},
	}
	f := cmd.Flags()
	t.access.AddFlags(f)
	f.StringVar(&t.from, "from", "", "pod that sends; its namespace is the context's if it has none")
	f.StringVar(&t.node, "from-node", "", "node whose own network sends, instead of --from")
	f.StringVar(&t.to, "to", "", "address, NAMESPACE/SERVICE or DNS name, with its port (default: the service's first)")
	view.AddChoice(f, &t.protocol, "protocol", "tcp", "tcp, udp or icmp", "tcp", "udp", "icmp")
	f.StringSliceVar(&t.remote, "remote-context", nil, "contexts of the other clusters in the kubeconfig")
	f.IntVar(&t.size, "size", 0, "length of the packet in bytes (default: one that opens a connection, which always fits)")
	f.BoolVar(&t.live, "live", false, "also send a packet")
	f.DurationVar(&t.wait, "wait", 2*time.Second, "with --live: time to wait for the answer")
	view.AddOutputFlag(f, &t.output)
	_ = cmd.MarkFlagRequired("to") // fails only without such a flag
	complete(cmd, t.access, "from", func(ctx context.Context, m view.Member, namespace, begun string) (out []string) {
		prefix := ""
		if before, _, ok := strings.Cut(begun, "/"); ok {
			namespace, prefix = before, before+"/"
		}
		pods, err := m.Typed.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil
		}
		for _, p := range pods.Items {
			out = append(out, prefix+p.Name)
		}
		return out
	})
	complete(cmd, t.access, "from-node", daemonNodes)
	complete(cmd, t.access, "to", func(ctx context.Context, m view.Member, _, _ string) (out []string) {
		table, err := member{Member: m}.table(ctx)
		if err != nil {
			return nil
		}
		for _, s := range table.Services {
			out = append(out, s.Namespace+"/"+s.Name)
		}
		return out
	})
	return cmd
}

// completionTimeout bounds the time for one completion.
const completionTimeout = 3 * time.Second

// complete has a flag completed by what list finds in the cluster. Errors complete nothing, since a
// shell cannot show them.
func complete(cmd *cobra.Command, access Access, flag string, list func(ctx context.Context, m view.Member, namespace, begun string) []string) {
	// Fails only without such a flag.
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		m, namespace, err := access.Open("")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		return list(ctx, m, namespace, begun), cobra.ShellCompDirectiveNoFileComp
	})
}

// daemonNodes completes the nodes that run pelago-node; of several, separated by commas, the last.
func daemonNodes(ctx context.Context, m view.Member, _, begun string) (out []string) {
	pods, err := m.DaemonPods(ctx)
	if err != nil {
		return nil
	}
	return view.CompleteLast(begun, slices.Sorted(maps.Keys(pods)))
}

// status is the exit status.
func (t Trace) status() error {
	switch t.Outcome {
	case Delivered:
		return nil
	case Dropped:
		return Status{2, "the packet is dropped: " + t.Reason}
	}
	return Status{1, "it could not be told whether the packet arrives: " + t.Reason}
}

func (t *traced) run(ctx context.Context) (*Trace, error) {
	namespace, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	own := t.members[0]
	to, err := parseDestination(t.to, t.protocol, zonesOf(own.config))
	if err != nil {
		return nil, err
	}
	found := &Trace{From: cmp.Or(t.from, "node "+t.node), To: t.to, Hops: []Hop{}}
	end, err := t.findSource(ctx, namespace)
	if err == nil && end == nil && !to.address.IsValid() {
		var table, resolveErr = own.table(ctx)
		if err = resolveErr; err == nil {
			end, err = resolve(table, own.services, &to)
		}
	}
	if err != nil {
		return nil, err
	}
	if end != nil {
		found.End = *end
		return found, nil
	}
	request := trace.Request{Size: t.size, Packet: trace.Packet{
		Protocol: protocols[t.protocol], Source: netip.AddrPortFrom(t.source, uint16(32768+rand.N(28000))),
		Destination: netip.AddrPortFrom(to.address, to.port),
	}}
	sites := map[uint16]*Site{}
	for _, m := range t.members {
		sites[m.config.ClusterIndex] = m.site()
	}
	at := trace.Place{Cluster: own.config.ClusterIndex}
	for _, n := range own.indexes {
		if n.Name == t.sourceNode {
			at.Node = uint16(n.Spec.Index)
		}
	}
	Follow(ctx, sites, at, request, found)
	if t.live {
		return found, t.follow(ctx, found)
	}
	return found, nil
}

// follow sends the packet.
func (t *traced) follow(ctx context.Context, found *Trace) error {
	own := t.members[0]
	if !found.Packet.Source.Addr().IsValid() {
		return fmt.Errorf("send a packet: %s: %s", found.Message, found.Remedy)
	}
	p := trace.Probe{Packet: found.Packet, Marker: rand.Uint32()}
	live, err := sendAndWatch(ctx, t.members, own, t.sourceNode, p, t.wait)
	if err != nil {
		return err
	}
	found.Live = live
	end := live.end(nodeName{own.config.ClusterID, t.sourceNode}, found.Packet, !t.source.IsValid())
	unseen := end.Reason == "not-seen" && len(t.members) == 1
	if end.Outcome == Delivered || found.Outcome != Dropped && !unseen {
		found.End = end
	}
	return nil
}

// open reads the clusters and returns the namespace of the first one's context.
func (t *traced) open(ctx context.Context) (namespace string, err error) {
	for i, name := range append([]string{""}, t.remote...) {
		m, space, err := t.access.Open(name)
		if err != nil {
			return "", err
		}
		found, err := readMember(ctx, m)
		if err != nil {
			return "", err
		}
		if i == 0 {
			namespace = space
		}
		for _, other := range t.members {
			if other.config.ClusterIndex == found.config.ClusterIndex {
				return "", fmt.Errorf("--remote-context %s is cluster %s, which another context already is: name contexts of other clusters",
					name, found.config.ClusterID)
			}
		}
		t.members = append(t.members, found)
	}
	return namespace, nil
}

// findSource finds node and address of the source. The end is not nil if it cannot send.
func (t *traced) findSource(ctx context.Context, namespace string) (*End, error) {
	own := t.members[0]
	t.sourceNode = t.node
	if t.from != "" {
		name := t.from
		if before, after, ok := strings.Cut(t.from, "/"); ok {
			namespace, name = before, after
		}
		pod, err := own.Typed.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("find the pod of --from: %w", err)
		}
		address, err := netip.ParseAddr(pod.Status.PodIP)
		if pod.Status.Phase != corev1.PodRunning || err != nil {
			end := endOf(Dropped, "pod-not-ready", fmt.Sprintf("%s/%s is %s", namespace, name, pod.Status.Phase))
			return &end, nil
		}
		t.sourceNode = pod.Spec.NodeName
		if !pod.Spec.HostNetwork { // else the node's route knows the address
			t.source = address
		}
	}
	if !slices.ContainsFunc(own.site().names(), func(n string) bool { return n == t.sourceNode }) {
		return nil, fmt.Errorf("node %q has no NodeIndex in cluster %s: name one of %s", t.sourceNode, own.config.ClusterID,
			strings.Join(own.site().names(), ", "))
	}
	return nil, nil
}

// names are those of the nodes, sorted.
func (s *Site) names() (out []string) {
	for _, n := range s.Nodes {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

func (t *traced) print(out io.Writer, found *Trace) error {
	if t.output == "json" || t.output == "yaml" {
		return view.Encode(out, t.output, found)
	}
	return printTrace(out, t.output == "wide", found)
}

func printTrace(out io.Writer, wide bool, found *Trace) error {
	fmt.Fprintf(out, "%s to %s\n\n", found.From, found.To)
	hops := view.Table{
		Header: []string{"CLUSTER", "NODE", "HOOK", "VERDICT", "PACKET AFTER", "TO", "DECIDED BY"}, Empty: "No node decides about it.",
	}
	for _, h := range found.Hops {
		to, entries := "-", []string{}
		if h.Header != nil {
			to = fmt.Sprintf("%s (path %s)", h.Header.Destination, h.Path)
		}
		for _, e := range h.Used {
			entries = append(entries, e.String())
		}
		if n := len(entries); n > 1 && !wide {
			entries = entries[n-1:]
		}
		hops.Add(h.Cluster, h.Node, h.Hook, h.Verdict, packetText(h.Packet), to, cmp.Or(strings.Join(entries, "; "), "-"))
	}
	if err := hops.Print(out, wide); err != nil {
		return err
	}
	if found.Live != nil {
		seen := view.Table{Title: "Seen of the packet that was sent:", Header: []string{"CLUSTER", "NODE", "DEVICE", "", "WHAT", "PACKET", "OUTER"}, Empty: "Nothing."}
		for _, s := range found.Live.Sightings {
			way, what, outer := "in", "packet", "-"
			if s.Out {
				way = "out"
			}
			if s.Answer {
				what = "answer"
			}
			if s.From != nil {
				outer = fmt.Sprintf("%s > %s", s.From, s.To)
			}
			seen.Add(s.Cluster, s.Node, s.Device, way, what, packetText(s.Packet), outer)
		}
		drops := view.Table{Title: "Dropped meanwhile, other packets among them:", Header: []string{"CLUSTER", "NODE", "HOOK", "VERDICT", "PACKETS"}}
		for _, d := range found.Live.Drops {
			drops.Add(d.Cluster, d.Node, d.Hook, d.Verdict, fmt.Sprint(d.Packets))
		}
		if err := seen.Print(out, wide); err != nil {
			return err
		}
		if len(drops.Rows) > 0 {
			if err := drops.Print(out, wide); err != nil {
				return err
			}
		}
	}
	text := string(found.Outcome)
	if found.Reason != "" {
		text += ", " + found.Reason
	}
	fmt.Fprintf(out, "Verdict: %s: %s\n", text, found.Message)
	if found.Remedy != "" {
		fmt.Fprintf(out, "Remedy:  %s\n", found.Remedy)
	}
	return nil
}

func packetText(p trace.Packet) string {
	return fmt.Sprintf("%s %s > %s", protocolName(p.Protocol), p.Source, p.Destination)
}
