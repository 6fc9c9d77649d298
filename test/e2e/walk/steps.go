package walk

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
)

// Numbers of the walk-through.
const (
	PodCIDR       = "10.7.0.0/16"
	ServiceCIDR   = "10.77.0.0/16"
	GlobalRange   = "120.0.0.0/8"
	GlobalCIDR1   = "120.1.0.0/24"
	GlobalCIDR2   = "120.2.0.0/24"
	GlobalCIDR3   = "120.3.0.0/24"
	Namespace     = "sample"
	ServiceName   = "whereami-cs"
	HeadlessName  = "whereami-ss"
	clientName    = "client"
	egressIPCount = 8
)

// Install loads the images, deploys the broker, and joins and accepts the clusters.
func (w *Walk) Install(ctx context.Context) error {
	for _, image := range []string{"pelago.tar", "whereami.tar"} {
		if err := w.Lab.LoadImage(ctx, filepath.Join(w.Images, image)); err != nil {
			return err
		}
	}
	deploy := []string{"deploy-broker", "--context", "hub"}
	if w.Mode != "" {
		deploy = append(deploy, "--mode", w.Mode)
	}
	if !w.Plain {
		deploy = append(deploy, "--globalnet", "--globalnet-cidr-range", GlobalRange)
	}
	if _, err := w.Pelago(ctx, deploy...); err != nil {
		return err
	}
	if w.Propagation {
		if err := w.StartHub(ctx); err != nil {
			return err
		}
	}
	for _, name := range w.Members() {
		var more []string
		if w.Propagation && name == pushed {
			more = []string{"--network-only"}
		}
		if err := w.Join(ctx, name, more...); err != nil {
			return err
		}
	}
	if _, err := w.Pelago(ctx, append([]string{"clusters", "accept", "--context", "hub"}, w.Members()...)...); err != nil {
		return err
	}
	if !w.Propagation {
		return nil
	}
	_, err := w.Pelago(ctx, "join", pushed, "--context", "hub", "--cluster-kubeconfig", w.Lab.ClusterKubeconfig(pushed))
	return err
}

// pushed is the push member.
const pushed = "g2"

// StartHub installs what propagation needs and runs pelago-hub next to the hub's API server, in
// place of one that runs there.
func (w *Walk) StartHub(ctx context.Context) error {
	if _, err := w.Pelago(ctx, "init", "--context", "hub"); err != nil {
		return err
	}
	fmt.Fprintln(w.Out, "$ pelago-hub --kubeconfig pelago-hub.kubeconfig --proxy-address :8443 --proxy-host localhost &")
	return w.Lab.Daemon("hub", "pelago-hub", filepath.Join(w.Bin, "pelago-hub"), "--kubeconfig", filepath.Join(w.Dir, "pelago-hub.kubeconfig"),
		"--proxy-address", ":8443", "--proxy-host", "localhost")
}

// Join joins a cluster, or joins it again, with more flags than those that the walk needs.
func (w *Walk) Join(ctx context.Context, name string, more ...string) error {
	args := []string{"join", "broker-info.subm", "--context", name, "--clusterid", name, "--clustercidr", w.Pods(name)}
	if !w.Plain {
		args = append(args, "--globalnet-cidr", w.ranges(name).global)
	}
	if w.Wire != "" {
		args = append(args, "--cable-driver", w.Wire)
	}
	if w.Datapath != "" {
		args = append(args, "--datapath", w.Datapath)
	}
	for n := range w.Gateways {
		args = append(args, "--gateway-node", fmt.Sprintf("%s-n%d", name, n+1))
	}
	_, err := w.Pelago(ctx, append(args, more...)...)
	return err
}

// Connected waits until every gateway reports its connections as connected, and shows them.
func (w *Walk) Connected(ctx context.Context) error {
	err := Eventually(ctx, Patience, func() error {
		for _, name := range w.Members() {
			out, err := w.run(ctx, "", w.Lab.Kubectl(), "--context", name, "-n", "pelago-system", "get", "gateways.submariner.io",
				"-o", `jsonpath={range .items[*].status.connections[*]}{.status}{" "}{end}`)
			if err != nil {
				return err
			}
			states := strings.Fields(out)
			if len(states) == 0 || slices.ContainsFunc(states, func(s string) bool { return s != "connected" }) {
				return fmt.Errorf("connections of %s: %q, want all connected", name, states)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = w.Pelago(ctx, "show", "connections", "--contexts", strings.Join(w.Members(), ","))
	return err
}

// Workload makes namespace, Deployment, StatefulSet and both Services in a cluster and waits for
// the pods.
func (w *Walk) Workload(ctx context.Context, cluster string) error {
	if err := w.Apply(ctx, cluster, workload); err != nil {
		return err
	}
	for _, object := range []string{"deployment/whereami", "statefulset/whereami"} {
		if _, err := w.Kubectl(ctx, "--context", cluster, "-n", Namespace, "rollout", "status", object, WaitFlag); err != nil {
			return err
		}
	}
	return nil
}

// Client makes a pod with tools in namespace sample of a cluster, on a node that is no gateway.
func (w *Walk) Client(ctx context.Context, cluster string) (Pod, error) {
	pod := Pod{Cluster: cluster, Namespace: Namespace, Name: clientName}
	node, err := w.NonGateway(ctx, cluster)
	if err != nil {
		return pod, err
	}
	if err := w.Apply(ctx, cluster, fmt.Sprintf(clientPod, node)); err != nil {
		return pod, err
	}
	_, err = w.Kubectl(ctx, "--context", cluster, "-n", Namespace, "wait", "--for=condition=Ready", "pod/"+clientName, WaitFlag)
	return pod, err
}

// NonGateway names a node of the cluster that is no gateway.
func (w *Walk) NonGateway(ctx context.Context, cluster string) (string, error) {
	out, err := w.run(ctx, "", w.Lab.Kubectl(), "--context", cluster, "get", "nodes", "-l", "submariner.io/gateway!=true",
		"-o", "jsonpath={.items[*].metadata.name}")
	if err != nil {
		return "", err
	}
	if nodes := strings.Fields(out); len(nodes) > 0 {
		return nodes[0], nil
	}
	return "", fmt.Errorf("every node of %s is a gateway", cluster)
}

// Export exports a service and waits until its export is Ready, which a user does with `kubectl
// wait`.
func (w *Walk) Export(ctx context.Context, cluster string, services ...string) error {
	for _, s := range services {
		if _, err := w.Pelago(ctx, "export", "service", "--context", cluster, "--namespace", Namespace, s); err != nil {
			return err
		}
	}
	for _, s := range services {
		if _, err := w.Kubectl(ctx, "--context", cluster, "-n", Namespace, "wait", "serviceexport/"+s, "--for=condition=Ready", WaitFlag); err != nil {
			return err
		}
	}
	return nil
}

// Resolve waits until every CoreDNS pod of the client's cluster resolves a name to n addresses and
// returns them. All must lie in cidr. One that was queried too early answers from its cache for
// some seconds that there is no such name, whatever the others answer.
func (w *Walk) Resolve(ctx context.Context, from Pod, name string, n int, cidr string) ([]netip.Addr, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, err
	}
	servers, err := w.run(ctx, "", w.Lab.Kubectl(), "--context", from.Cluster, "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns",
		"-o", "jsonpath={.items[*].status.podIP}")
	if err != nil {
		return nil, err
	}
	if servers == "" {
		return nil, fmt.Errorf("%s has no CoreDNS pod", from.Cluster)
	}
	var found []netip.Addr
	for _, server := range strings.Fields(servers) {
		err := Eventually(ctx, Patience, func() error {
			out, err := w.In(ctx, from, "nslookup", name, server)
			if err != nil {
				return err
			}
			found = answers(out)
			if len(found) != n {
				return fmt.Errorf("%s resolves to %v, want %d addresses", name, found, n)
			}
			for _, a := range found {
				if !prefix.Contains(a) {
					return fmt.Errorf("%s resolves to %s, which is not in %s", name, a, cidr)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("ask CoreDNS at %s: %w", server, err)
		}
	}
	_, err = w.ShowIn(ctx, from, "nslookup", name)
	return found, err
}

// answers are the addresses in nslookup's output after the line with the name.
func answers(out string) []netip.Addr {
	var addrs []netip.Addr
	_, tail, _ := strings.Cut(out, "Name:")
	for line := range strings.Lines(tail) {
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "Address:")
		if !ok {
			continue
		}
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// Answer is what whereami prints: itself, and the request's source.
type Answer struct {
	Pod, Node string
	Source    netip.Addr
}

// Ask sends a request from a pod.
func (w *Walk) Ask(ctx context.Context, from Pod, host string) (Answer, error) {
	out, err := w.In(ctx, from, "curl", "-sS", "--max-time", "3", "http://"+host+"/")
	if err != nil {
		return Answer{}, err
	}
	return parseAnswer(out)
}

func parseAnswer(out string) (Answer, error) {
	var a Answer
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "pod":
			a.Pod = value
		case "node":
			a.Node = value
		case "source":
			ap, err := netip.ParseAddrPort(value)
			if err != nil {
				return a, fmt.Errorf("read the source in %q: %w", out, err)
			}
			a.Source = ap.Addr()
		}
	}
	if a.Pod == "" || !a.Source.IsValid() {
		return a, fmt.Errorf("%q is no answer of whereami", out)
	}
	return a, nil
}

// ReachesAll sends requests until so many different pods have answered, and checks that each saw
// one of the cluster's egress IPs as the source, or without globalnet the client's own. It prints
// the answers.
func (w *Walk) ReachesAll(ctx context.Context, from Pod, host string, pods int) error {
	first, last, err := w.sources(ctx, from)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	fmt.Fprintf(w.Out, "$ curl http://%s/   # from pod %s of %s, again and again\n", host, from.Name, from.Cluster)
	return Eventually(ctx, Patience, func() error {
		a, err := w.Ask(ctx, from, host)
		if err != nil {
			return err
		}
		if a.Source.Less(first) || last.Less(a.Source) {
			return fmt.Errorf("pod %s sees source %s, want one of %s–%s", a.Pod, a.Source, first, last)
		}
		if !seen[a.Pod] {
			seen[a.Pod] = true
			fmt.Fprintf(w.Out, "  answered by pod %s on node %s; the source that it sees: %s\n", a.Pod, a.Node, a.Source)
		}
		if len(seen) < pods {
			return fmt.Errorf("only pods %v have answered, want %d", seen, pods)
		}
		return nil
	})
}

// ReachesPod sends requests to a name that must resolve to exactly one pod.
func (w *Walk) ReachesPod(ctx context.Context, from Pod, host, pod string) error {
	fmt.Fprintf(w.Out, "$ curl http://%s/   # from pod %s of %s\n", host, from.Name, from.Cluster)
	for range 5 {
		a, err := w.Ask(ctx, from, host)
		if err != nil {
			return err
		}
		if a.Pod != pod {
			return fmt.Errorf("%s is answered by pod %s, want %s", host, a.Pod, pod)
		}
	}
	fmt.Fprintf(w.Out, "  answered by pod %s, five times of five\n", pod)
	return nil
}
