package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/test/cni"
	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
	"github.com/pelago-net/pelago/test/need"
	"github.com/pelago-net/pelago/test/resultfile"
)

var (
	cniCell = flag.String("cni", "", "the only cell that TestCNI runs, such as flannel,host-gw; empty: all")
	cniOut  = flag.String("cni-out", "../../out/cni", "directory of TestCNI's result files")
)

// TestCNI runs the steps of cni.Steps with each CNI, and writes what they gave: docs/cni.md is made
// of it. A step that fails does not end its cell.
func TestCNI(t *testing.T) {
	need.Clusters(t)
	cells := cni.Cells
	if *cniCell != "" {
		cells = []string{*cniCell}
	}
	for _, name := range cells {
		t.Run(name, func(t *testing.T) { runCell(t, name) })
	}
}

// cell is a clusterset with one CNI.
type cell struct {
	*clusterset
	name    string
	results []cni.Result
	sample  walk.Pod // the client of the walk-through in g1
	traffic load
}

// step returns figures; errNoMeaning if it does not apply to the CNI.
type step func(ctx context.Context, c *cell) (detail string, err error)

// errNoMeaning: the step does not apply to this CNI.
var errNoMeaning = errors.New("does not apply to this CNI")

func runCell(t *testing.T, name string) {
	c := &cell{name: name}
	about, err := resultfile.New("cni", nil)
	must(t, err)
	start := time.Now()
	record := func(step string, begin time.Time, detail string, err error) {
		r := cni.Result{Cell: name, Step: step, Verdict: cni.Passed, Detail: detail, Seconds: time.Since(begin).Seconds(),
			Kernel: about.Kernel, Commit: about.Commit, Date: start.UTC().Format(time.DateOnly)}
		if c.clusterset != nil {
			r.Version = c.Lab.NetworkVersion()
		}
		switch {
		case errors.Is(err, errNoMeaning):
			r.Verdict = cni.None
		case err != nil:
			r.Verdict, r.Detail = cni.Failed, err.Error()
			t.Errorf("%s: %s: %v", name, step, err)
		default:
			t.Logf("%s: %s: passed after %.1f s %s", name, step, r.Seconds, detail)
		}
		c.results = append(c.results, r)
		// after each step: what a killed run found stays
		must(t, cni.Write(filepath.Join(*cniOut, strings.ReplaceAll(name, ",", "-")+".json"), c.results))
	}
	installed := false
	defer func() {
		if !installed { // the reason is in the log above
			record("install", start, "", errors.New("the clusters or the installation did not come up"))
		}
	}()
	c.clusterset = bringUp(t, lab.Options{Name: *labName + "cni", Nodes: 2, CNI: name}, walk.Walk{Gateways: 1, Wire: "vxlan"})
	begin := time.Now()
	if !*keep || !c.joined(t) {
		must(t, c.Install(t.Context()))
	}
	must(t, c.Connected(t.Context()))
	c.traffic = c.needLoad(t)
	installed = true
	record("install", begin, "", nil)
	for _, s := range []struct {
		name string
		run  step
	}{
		{"exec", stepExec}, {"service", stepService}, {"headless", stepHeadless}, {"udp", stepUDP}, {"large", stepLarge},
		{"local vip", stepLocalVIP}, {"remote vip", stepRemoteVIP},
		{"policy strict", stepPolicy("strict")}, {"policy hybrid", stepPolicy("hybrid")}, {"policy fast", stepPolicy("fast")},
		{"policy auto", stepPolicy("auto")},
		{"datapaths", stepDatapaths}, {"agent of the CNI", stepNetworkAgent}, {"pelago-node", stepNodeAgent},
		{"verify", stepVerify}, {"reboot", stepReboot}, {"reboot, CNI late", stepLateNetwork}, {"uninstall", stepUninstall},
	} {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
		detail, err := s.run(ctx, c)
		cancel()
		record(s.name, begin, detail, err)
	}
}

const (
	// stepLimit ends a step that fails; soon is for what takes seconds.
	stepLimit = 4 * time.Minute
	soon      = time.Minute
)

// ask runs kubectl and returns what it prints.
func (c *cell) ask(ctx context.Context, cluster string, args ...string) (string, error) {
	out, err := c.Quietly(ctx, c.Lab.Kubectl(), append([]string{"--context", cluster}, args...)...)
	return strings.TrimSpace(out), err
}

// allNodes are the nodes of both clusters.
func (c *cell) allNodes() (names []string) {
	for _, cluster := range c.Lab.Plan().Clusters {
		for _, n := range cluster.Nodes {
			names = append(names, n.Name)
		}
	}
	return names
}

// stepVerify runs the commands by which a user checks clusters.
func stepVerify(ctx context.Context, c *cell) (string, error) {
	err := walk.Eventually(ctx, soon, func() error {
		all, err := c.findings(ctx)
		all = slices.DeleteFunc(all, func(f found) bool { return f.Code == "PLG-N011" })
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("findings: %+v", all)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	begin := time.Now()
	text, err := c.Quietly(ctx, c.Bin+"/pelago", "verify", "--contexts", strings.Join(c.Members(), ","), "-o", "json")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	var outcomes []struct{ Verdict string }
	if err := json.Unmarshal([]byte(text), &outcomes); err != nil || len(outcomes) == 0 {
		return "", fmt.Errorf("pelago verify: %.300q: %w", text, err)
	}
	return fmt.Sprintf("%d outcomes passed in %.0f s", len(outcomes), time.Since(begin).Seconds()), nil
}

func stepExec(ctx context.Context, c *cell) (string, error) {
	for _, cluster := range c.Members() {
		pods, err := c.ask(ctx, cluster, "-n", "pelago-system", "get", "pods", "-l", "app=pelago-node", "-o", "jsonpath={.items[*].metadata.name}")
		if err != nil {
			return "", err
		}
		for _, pod := range strings.Fields(pods) {
			if _, err := c.ask(ctx, cluster, "-n", "pelago-system", "exec", pod, "--", "sh", "-c", ":"); err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

func stepService(ctx context.Context, c *cell) (string, error) {
	err := c.Workload(ctx, "g2")
	if err == nil {
		c.sample, err = c.Client(ctx, "g1")
	}
	if err == nil {
		err = c.Export(ctx, "g2", walk.ServiceName, walk.HeadlessName)
	}
	if err == nil {
		err = c.FromFirst(ctx, c.sample)
	}
	if err == nil {
		_, err = c.Reverse(ctx)
	}
	return "", err
}

func stepHeadless(ctx context.Context, c *cell) (string, error) {
	name := "g2." + walk.HeadlessName + "." + walk.Namespace + ".svc.clusterset.local"
	addresses, err := c.Resolve(ctx, c.sample, name, 3, c.ShownPods("g2"))
	if err != nil {
		return "", err
	}
	for i := range addresses {
		pod := fmt.Sprintf("whereami-%d", i)
		if err := c.ReachesPod(ctx, c.sample, pod+"."+name, pod); err != nil {
			return "", err
		}
	}
	for _, a := range addresses {
		if _, err := c.In(ctx, c.sample, "ping", "-c", "3", "-W", "5", "-s", "1372", a.String()); err != nil {
			return "", err
		}
	}
	return "", nil
}

func stepUDP(ctx context.Context, c *cell) (string, error) {
	out, err := c.In(ctx, c.traffic.client, "whereami", "ping", "-rate", "200", "-duration", "5s", c.traffic.sink.String()+":7")
	if err != nil {
		return "", err
	}
	return datagrams(out)
}

// datagrams reads what `whereami ping` prints; lost ones are an error.
func datagrams(out string) (string, error) {
	var p pings
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		return "", fmt.Errorf("read %.200q: %w", out, err)
	}
	text := fmt.Sprintf("%d of %d datagrams lost, longest gap %.0f ms, %.0f ms of it without a processor", p.Lost, p.Sent, p.LongestGapMs, p.GapUnscheduledMs)
	if p.Lost > 0 || p.Sent == 0 {
		return "", errors.New(text)
	}
	return text, nil
}

func stepLarge(ctx context.Context, c *cell) (string, error) {
	var figures []string
	for _, direction := range []string{"", "--reverse"} {
		argv := []string{"iperf3", "--client", c.traffic.sink.String(), "--bytes", "40M", "--json"}
		if direction != "" {
			argv = append(argv, direction)
		}
		out, err := c.In(ctx, c.traffic.client, argv...)
		if err != nil {
			return "", err
		}
		var result struct {
			Start struct {
				MSS int `json:"tcp_mss_default"`
			} `json:"start"`
			End struct {
				Received struct {
					Bytes         int     `json:"bytes"`
					BitsPerSecond float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			return "", err
		}
		// the receiver does not count what is in its buffers when the sender is done
		if result.End.Received.Bytes < 20e6 {
			return "", fmt.Errorf("iperf3 %s transferred %d bytes, want 20 MB", direction, result.End.Received.Bytes)
		}
		figures = append(figures, fmt.Sprintf("%.0f Mbit/s, MSS %d", result.End.Received.BitsPerSecond/1e6, result.Start.MSS))
	}
	return strings.Join(figures, "; back "), nil
}

// answeredBy waits until three requests in a row from a pod are answered by pods of a cluster.
func (c *cell) answeredBy(ctx context.Context, from walk.Pod, host, cluster string) error {
	return walk.Eventually(ctx, soon, func() error {
		for range 3 {
			a, err := c.Ask(ctx, from, host)
			if of, _, _ := strings.Cut(a.Node, "-"); err != nil || of != cluster {
				return fmt.Errorf("a request from pod %s of %s to %s is answered by %q (%w), want %s", from.Name, from.Cluster, host, of, err, cluster)
			}
		}
		return nil
	})
}

func vipPod(cluster, name string) walk.Pod {
	return walk.Pod{Cluster: cluster, Namespace: vipNamespace, Name: name}
}

const vipName = "web." + vipNamespace + ".svc.clusterset.local"

func stepLocalVIP(ctx context.Context, c *cell) (string, error) {
	for _, cluster := range c.Members() {
		if err := c.Apply(ctx, cluster, vipWorkload); err != nil {
			return "", err
		}
	}
	for _, cluster := range c.Members() {
		if _, err := c.ask(ctx, cluster, "-n", vipNamespace, "rollout", "status", "deployment/web", "--timeout=2m"); err != nil {
			return "", err
		}
		if _, err := c.ask(ctx, cluster, "-n", vipNamespace, "wait", "--for=condition=Ready", "pod/client", "pod/host", "--timeout=2m"); err != nil {
			return "", err
		}
	}
	var errs []error
	for _, cluster := range c.Members() {
		if _, err := c.Resolve(ctx, vipPod(cluster, "client"), vipName, 1, "243.0.0.0/8"); err != nil {
			return "", err
		}
		vip, err := c.vip(ctx, cluster)
		if err != nil {
			return "", err
		}
		errs = append(errs, c.answeredBy(ctx, vipPod(cluster, "client"), vip, cluster), c.answeredBy(ctx, vipPod(cluster, "host"), vip, cluster))
	}
	return "", errors.Join(errs...)
}

// vip is the ClusterSetIP of the service web; pods in the network of their node do not ask CoreDNS.
func (c *cell) vip(ctx context.Context, cluster string) (string, error) {
	return c.ask(ctx, cluster, "-n", vipNamespace, "get", "serviceimport", "web", "-o", "jsonpath={.spec.ips[0]}")
}

func stepRemoteVIP(ctx context.Context, c *cell) (string, error) {
	vip, err := c.vip(ctx, "g1")
	if err != nil {
		return "", err
	}
	scale := func(replicas int) error {
		_, err := c.ask(ctx, "g1", "-n", vipNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
		return err
	}
	if err := scale(0); err != nil {
		return "", err
	}
	err = errors.Join(c.answeredBy(ctx, vipPod("g1", "client"), vipName, "g2"), c.answeredBy(ctx, vipPod("g1", "host"), vip, "g2"))
	return "", errors.Join(err, scale(2), c.answeredBy(ctx, vipPod("g1", "client"), vipName, "g1"))
}

// ingressFrom takes the CIDR that reaches the pods web of the load; toNothing keeps the clients
// from sending anything but DNS.
const (
	ingressFrom = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: e2e-cni, namespace: ` + loadNamespace + `}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{from: [{ipBlock: {cidr: %s}}]}]
`
	egressTo = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: e2e-cni, namespace: ` + loadNamespace + `}
spec:
  podSelector: {}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: %s}}]}]
`
)

// ciliumPolicies are the same in Cilium's own kind, for the datapath auto.
var ciliumPolicies = map[string]string{
	ingressFrom: `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: e2e-cni, namespace: ` + loadNamespace + `}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress: [{fromCIDR: [%s]}]
`,
	egressTo: `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: e2e-cni, namespace: ` + loadNamespace + `}
spec:
  endpointSelector: {}
  egress: [{toCIDR: [%s]}]
`,
}

// setDatapath sets the datapath of the load's namespace in both clusters.
func (c *cell) setDatapath(ctx context.Context, datapath string) error {
	for _, cluster := range c.Members() {
		if _, err := c.ask(ctx, cluster, "label", "--overwrite", "namespace", loadNamespace, pelagov1alpha1.LabelDatapath+"="+datapath); err != nil {
			return err
		}
	}
	return nil
}

// stepPolicy: the server's cluster lets in the client's egress IPs or another range only, then the
// client's cluster lets out to the servers' range or to another one.
func stepPolicy(datapath string) step {
	return func(ctx context.Context, c *cell) (string, error) {
		if !c.Lab.EnforcesPolicies() {
			return "", errNoMeaning
		}
		kind, manifest := "networkpolicy", func(of string) string { return of }
		if datapath == "auto" && strings.HasPrefix(c.name, "cilium") {
			kind, manifest = "ciliumnetworkpolicy", func(of string) string { return ciliumPolicies[of] }
		}
		defer func() {
			clean := context.WithoutCancel(ctx)
			for _, cluster := range c.Members() {
				_, _ = c.ask(clean, cluster, "-n", loadNamespace, "delete", kind, "e2e-cni", "--ignore-not-found") // what remains fails the next step
			}
			_ = c.setDatapath(clean, "strict") // likewise
		}()
		if err := c.setDatapath(ctx, datapath); err != nil {
			return "", err
		}
		web := c.traffic.web.String()
		passes := func() error { return c.ReachesAll(ctx, c.traffic.client, web, 4) }
		blocked := func() error {
			return walk.Eventually(ctx, soon, func() error {
				for range 3 {
					if a, err := c.Ask(ctx, c.traffic.client, web); err == nil {
						return fmt.Errorf("a request that a policy denies is answered by %s", a.Pod)
					}
				}
				return nil
			})
		}
		for _, p := range []struct{ cluster, policy, allowed, other string }{
			{"g2", ingressFrom, walk.GlobalCIDR1, "192.0.2.0/24"},
			{"g1", egressTo, walk.GlobalCIDR2, "192.0.2.0/24"},
		} {
			for _, of := range []struct {
				cidr  string
				check func() error
			}{{p.other, blocked}, {p.allowed, passes}} {
				err := c.Apply(ctx, p.cluster, fmt.Sprintf(manifest(p.policy), of.cidr))
				if err == nil {
					err = of.check()
				}
				if err != nil {
					return "", fmt.Errorf("policy of %s with %s: %w", p.cluster, of.cidr, err)
				}
			}
			if _, err := c.ask(ctx, p.cluster, "-n", loadNamespace, "delete", kind, "e2e-cni"); err != nil {
				return "", err
			}
			if err := passes(); err != nil {
				return "", fmt.Errorf("without the policy of %s: %w", p.cluster, err)
			}
		}
		return "", nil
	}
}

// underTraffic runs f while a client uses 20 connections and 200 datagrams a second, and returns
// what became of them; broken connections and lost datagrams are an error.
func (c *cell) underTraffic(ctx context.Context, f func() (string, error)) (string, error) {
	type outcome struct {
		text string
		err  error
	}
	begin := func(argv ...string) (func(), <-chan outcome, error) {
		cmd, err := c.Command(ctx, c.traffic.client, argv...)
		if err != nil {
			return nil, nil, err
		}
		input, err := cmd.StdinPipe()
		if err != nil {
			return nil, nil, err
		}
		done := make(chan outcome, 1)
		go func() {
			text, err := cmd.Output()
			done <- outcome{string(text), err}
		}()
		return func() { _ = input.Close() }, done, nil // what cannot be closed has ended, done has its error
	}
	endHold, connections, err := begin("whereami", "hold", "-connections", "20", c.traffic.web.String()+":80")
	if err != nil {
		return "", err
	}
	endPing, echoes, err := begin("whereami", "ping", "-rate", "200", c.traffic.sink.String()+":7")
	if err != nil {
		endHold()
		return "", err
	}
	var detail string
	if _, _, err = c.awaitSent(ctx, 1000); err == nil {
		if detail, err = f(); err == nil {
			_, _, err = c.awaitSent(ctx, 1000)
		}
	}
	endHold()
	endPing()
	first, second := <-connections, <-echoes
	if err = errors.Join(err, first.err, second.err); err != nil {
		return "", err
	}
	var h held
	if err := json.Unmarshal([]byte(first.text), &h); err != nil {
		return "", fmt.Errorf("read %.200q: %w", first.text, err)
	}
	lost, err := datagrams(second.text)
	if len(h.Broken) > 0 || h.Opened == 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d connections broke, the first: %v", len(h.Broken), h.Opened, slices.Concat(h.Broken)[:min(1, len(h.Broken))]))
	}
	text := fmt.Sprintf("%d requests on %d connections, slowest %.0f ms, 0 broken; %s", h.Requests, h.Opened, h.SlowestMs, lost)
	if detail != "" {
		text = detail + "; " + text
	}
	return text, err
}

// packets counts what the client's node sent past its stack and through it.
func (c *cell) packets(ctx context.Context) (past, through uint64, err error) {
	out, err := c.Quietly(ctx, c.Bin+"/pelago", "nat", "stats", "--context", "g1", "--node", c.traffic.clientNode, "-o", "json")
	if err != nil {
		return 0, 0, err
	}
	var rows []struct {
		Hook    string `json:"hook"`
		Verdict string `json:"verdict"`
		Packets uint64 `json:"packets"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		return 0, 0, err
	}
	for _, r := range rows {
		if r.Verdict == "sent" && r.Hook == "pod-out" {
			past += r.Packets
		}
		if r.Verdict == "sent" && r.Hook == "edge-out" {
			through += r.Packets
		}
	}
	return past, through, nil
}

// awaitSent waits until the client's node has sent so many packets more, and returns how many of
// them passed its stack by, and how many went through it.
func (c *cell) awaitSent(ctx context.Context, packets uint64) (past, through uint64, err error) {
	var basePast, baseThrough uint64
	known := false
	err = walk.Eventually(ctx, soon, func() error {
		nowPast, nowThrough, err := c.packets(ctx)
		if err != nil {
			return err
		}
		if !known {
			basePast, baseThrough, known = nowPast, nowThrough, true
		}
		if past, through = nowPast-basePast, nowThrough-baseThrough; past+through < packets {
			return fmt.Errorf("%s has sent %d packets to other clusters, want %d", c.traffic.clientNode, past+through, packets)
		}
		return nil
	})
	return past, through, err
}

func stepDatapaths(ctx context.Context, c *cell) (string, error) {
	return c.underTraffic(ctx, func() (string, error) {
		var figures []string
		for _, datapath := range []string{"strict", "hybrid", "fast", "auto", "strict"} {
			if err := c.setDatapath(ctx, datapath); err != nil {
				return "", err
			}
			// the first ones until the node has the datapath
			if _, _, err := c.awaitSent(ctx, 2000); err != nil {
				return "", fmt.Errorf("datapath %s: %w", datapath, err)
			}
			past, through, err := c.awaitSent(ctx, 2000)
			if err != nil {
				return "", fmt.Errorf("datapath %s: %w", datapath, err)
			}
			figures = append(figures, fmt.Sprintf("%s: %d %% past the stack", datapath, 100*past/(past+through)))
		}
		return strings.Join(figures, ", "), nil
	})
}

// killed kills a program on every node, and waits until another one runs.
func (c *cell) killed(ctx context.Context, program string) error {
	running := func(node string) string {
		out, _ := c.Lab.Exec(ctx, node, "pgrep", "--exact", "--oldest", program) // fails when none runs
		return strings.TrimSpace(out)
	}
	before := map[string]string{}
	for _, node := range c.allNodes() {
		pid := running(node)
		if pid == "" {
			return fmt.Errorf("%s does not run on %s", program, node)
		}
		before[node] = pid
		if _, err := c.Lab.Exec(ctx, node, "kill", "-KILL", pid); err != nil {
			return err
		}
	}
	for node, old := range before {
		if err := walk.Eventually(ctx, soon, func() error {
			if pid := running(node); pid == "" || pid == old {
				return fmt.Errorf("%s does not run again on %s", program, node)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func stepNetworkAgent(ctx context.Context, c *cell) (string, error) {
	daemons := c.Lab.NetworkDaemons()
	if len(daemons) == 0 {
		return "", errNoMeaning
	}
	detail, err := c.underTraffic(ctx, func() (string, error) {
		for _, d := range daemons {
			if err := c.killed(ctx, d); err != nil {
				return "", err
			}
		}
		_, _, err := c.awaitSent(ctx, 6000) // while the daemons restore their state
		return "", err
	})
	return detail, errors.Join(err, c.ReachesAll(ctx, c.traffic.client, c.traffic.web.String(), 4))
}

// booted waits until pelago-node runs on a node that was switched on, and is ready on all: at first
// the API still shows what was before.
func (c *cell) booted(ctx context.Context, node string) error {
	return errors.Join(walk.Eventually(ctx, soon, func() error {
		_, err := c.Lab.Exec(ctx, node, "pgrep", "--exact", "pelago-node")
		return err
	}), c.nodesReady(ctx))
}

// nodesReady waits until pelago-node is ready on every node.
func (c *cell) nodesReady(ctx context.Context) error {
	for _, cluster := range c.Members() {
		if _, err := c.ask(ctx, cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", "--timeout=2m"); err != nil {
			return err
		}
	}
	return nil
}

func stepNodeAgent(ctx context.Context, c *cell) (string, error) {
	detail, err := c.underTraffic(ctx, func() (string, error) {
		return "", errors.Join(c.killed(ctx, "pelago-node"), c.nodesReady(ctx))
	})
	return detail, errors.Join(err, c.ReachesAll(ctx, c.traffic.client, c.traffic.web.String(), 4))
}

// works: names, services and datagrams from g1 to g2, and a service inside of g1.
func (c *cell) works(ctx context.Context) error {
	for _, cluster := range c.Members() {
		if _, err := c.ask(ctx, cluster, "-n", walk.Namespace, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=2m"); err != nil {
			return err
		}
		if _, err := c.ask(ctx, cluster, "-n", loadNamespace, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=2m"); err != nil {
			return err
		}
	}
	// g1 exports a service of the same name
	name := "g2." + walk.ServiceName + "." + walk.Namespace + ".svc.clusterset.local"
	if _, err := c.Resolve(ctx, c.sample, name, 1, c.ShownServices("g2")); err != nil {
		return err
	}
	return errors.Join(c.ReachesAll(ctx, c.sample, name, 3), c.ReachesAll(ctx, c.traffic.client, c.traffic.web.String(), 4),
		walk.Eventually(ctx, soon, func() error {
			_, err := c.Ask(ctx, c.sample, walk.ServiceName+"."+walk.Namespace+".svc.cluster.local")
			return err
		}))
}

func stepReboot(ctx context.Context, c *cell) (string, error) {
	for _, node := range []string{"g2-n1", c.traffic.clientNode} {
		err := errors.Join(c.Lab.Kill(ctx, node), c.Lab.Heal(ctx, node))
		if err == nil {
			err = errors.Join(c.booted(ctx, node), c.works(ctx))
		}
		if err != nil {
			return "", fmt.Errorf("after a power failure of %s: %w", node, err)
		}
	}
	return "", nil
}

func stepLateNetwork(ctx context.Context, c *cell) (string, error) {
	if len(c.Lab.NetworkDaemons()) == 0 {
		return "", errNoMeaning
	}
	const node = "g2-n1"
	if err := errors.Join(c.Lab.Kill(ctx, node), c.Lab.HoldNetwork(node, true), c.Lab.Heal(ctx, node)); err != nil {
		return "", err
	}
	begin := time.Now()
	ready := c.booted(ctx, node)
	held := time.Since(begin)
	if err := errors.Join(c.Lab.HoldNetwork(node, false), ready, c.works(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("pelago-node was ready %.0f s after its Node, without the CNI's daemon", held.Seconds()), nil
}

// traces prints what a node has of the product.
const traces = `ip rule | grep -w 4800
ip route show table 4800
ip -br link | grep pelago
ls /sys/fs/bpf/pelago 2>/dev/null
nft list tables 2>/dev/null | grep pelago
iptables-save 2>/dev/null | grep -i pelago
true`

func stepUninstall(ctx context.Context, c *cell) (string, error) {
	for _, cluster := range c.Members() {
		if _, err := c.Pelago(ctx, "unjoin", "--context", "hub", "--clusterid", cluster); err != nil {
			return "", err
		}
		if _, err := c.Pelago(ctx, "unjoin", "--context", cluster, "--yes"); err != nil {
			return "", err
		}
	}
	for _, node := range c.allNodes() {
		out, err := c.Lab.Exec(ctx, node, "sh", "-c", traces)
		if err == nil && out != "" {
			err = fmt.Errorf("%s has\n%s", node, out)
		}
		if err != nil {
			return "", err
		}
	}
	return "", walk.Eventually(ctx, soon, func() error {
		_, err := c.Ask(ctx, c.sample, walk.ServiceName+"."+walk.Namespace+".svc.cluster.local")
		return err
	})
}
