package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// tried is what `whereami try` prints for each target (test/images/README.md).
type tried struct {
	To       string         `json:"to"`
	Outcomes map[string]int `json:"outcomes"`
	BestMs   float64        `json:"bestMs"`
}

// quickMs bounds the best of five refusals; a SYN without an answer is sent again after a second.
const quickMs = 100

const (
	edgesNamespace = "edges"
	edgesSpace     = `apiVersion: v1
kind: Namespace
metadata: {name: edges}
`
	// leaving is a service whose backend leaves, exported with a ClusterSetIP.
	leaving = edgesSpace + `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: leaving, namespace: edges}
spec:
  selector: {matchLabels: {app: leaving}}
  template:
    metadata: {labels: {app: leaving}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: web, image: localhost/whereami:dev, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: leaving, namespace: edges}
spec: {selector: {app: leaving}, ports: [{name: http, port: 80}, {name: echo, port: 7, protocol: UDP}]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: leaving, namespace: edges, annotations: {lighthouse.submariner.io/use-clusterset-ip: "true"}}
`
	// starting takes number, node, and the addresses of web and sink of the load.
	starting = `---
apiVersion: v1
kind: Pod
metadata: {name: starting-%d, namespace: edges, labels: {app: starting}}
spec:
  nodeName: %s
  restartPolicy: Never
  containers:
  - name: client
    image: localhost/whereami:dev
    imagePullPolicy: Never
    command: [whereami, try, -after, 50ms, "tcp://%s:80", "udp://%s:7"]
`
)

// needEdges makes the namespace of a part, with objects in g1 and g2.
func (s *clusterset) needEdges(t *testing.T, one, two string) {
	t.Helper()
	t.Cleanup(func() {
		for _, cluster := range []string{"g1", "g2"} {
			if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", cluster,
				"delete", "namespace", edgesNamespace, "--ignore-not-found"); err != nil {
				t.Error(err)
			}
		}
	})
	s.applyQuietly(t, "g1", one)
	s.applyQuietly(t, "g2", two)
}

// testRefused: a service of the other cluster refuses what has no backend, and ports that it lacks,
// at its global IP and its ClusterSetIP, to a pod and to a process of the node.
func testRefused(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	s.needEdges(t, edgesSpace, leaving)
	var addresses []string
	within(t, func() error {
		addresses = nil
		for _, of := range [][]string{
			{"g2", "globalingressip", ".status.allocatedIP"}, {"g1", "serviceimport", ".spec.ips[0]"},
		} {
			out, err := s.Quietly(t.Context(), s.Lab.Kubectl(), "--context", of[0], "-n", edgesNamespace,
				"get", of[1], "leaving", "-o", "jsonpath={"+of[2]+"}")
			address, parseErr := netip.ParseAddr(strings.TrimSpace(out))
			if err != nil || parseErr != nil {
				return fmt.Errorf("%s of the service: %w, %w", of[1], err, parseErr)
			}
			addresses = append(addresses, address.String())
		}
		return nil
	})
	clients := []walk.Pod{l.client, l.host}
	for _, client := range clients {
		for _, address := range addresses {
			within(t, func() error { _, err := s.Ask(t.Context(), client, address); return err })
		}
	}
	targets := func(tcp, udp int) (out []string) {
		for _, address := range addresses {
			out = append(out, fmt.Sprintf("tcp://%s:%d", address, tcp), fmt.Sprintf("udp://%s:%d", address, udp))
		}
		return out
	}
	try := func(client walk.Pod, times int, targets []string) []tried {
		t.Helper()
		argv := append([]string{"whereami", "try", "-times", fmt.Sprint(times), "-patience", "2s"}, targets...)
		out, err := s.In(t.Context(), client, argv...)
		must(t, err)
		return decode[[]tried](t, out)
	}
	refused := func(what string, targets []string) {
		t.Helper()
		const times = 5
		for _, client := range clients {
			within(t, func() error { // until the tables of all gateways are those of the service
				for _, o := range try(client, times, targets) {
					if o.Outcomes["refused"] != times {
						return fmt.Errorf("%s, from pod %s: %+v; want refusals", what, client.Name, o)
					}
				}
				return nil
			})
			for _, o := range try(client, times, targets) {
				t.Logf("%s, from pod %s: %+v", what, client.Name, o)
				if o.Outcomes["refused"] != times || o.BestMs > quickMs {
					t.Errorf("%s, from pod %s: %+v; want five refusals, the best of them within %d ms", what, client.Name, o, quickMs)
				}
			}
		}
	}
	refused("no such port", targets(81, 9))
	s.kubectl(t, "g2", "-n", edgesNamespace, "scale", "deployment/leaving", "--replicas=0")
	refused("no backend", targets(80, 7))
}

// testFirstPackets: of pods on all nodes, what they send 50 ms after their start arrives, with no
// SYN sent again and the first datagram answered.
func testFirstPackets(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	const pods = 9
	manifest := edgesSpace
	nodes := s.nodes(t, "g1")
	for i := range pods {
		manifest += fmt.Sprintf(starting, i, nodes[i%len(nodes)], l.web, l.sink)
	}
	s.needEdges(t, manifest, edgesSpace)
	s.kubectl(t, "g1", "-n", edgesNamespace, "wait", "pod", "-l", "app=starting",
		"--for=jsonpath={.status.phase}=Succeeded", walk.WaitFlag)
	logs := strings.Split(s.kubectl(t, "g1", "-n", edgesNamespace, "logs", "-l", "app=starting", "--tail=-1",
		fmt.Sprintf("--max-log-requests=%d", pods)), "\n")
	if len(logs) != pods {
		t.Fatalf("%d pods have logged %q", pods, logs)
	}
	slowest := 0.0
	for _, line := range logs {
		for _, o := range decode[[]tried](t, line) {
			slowest = max(slowest, o.BestMs)
			if o.Outcomes["answered"] != 1 {
				t.Errorf("the first packet to %s: %v", o.To, o.Outcomes)
			}
		}
	}
	t.Logf("%d pods: the slowest answer after %.1f ms", pods, slowest)
}

// damage removes the rule and the routes every 50 ms for 8 s, and prints how often the rule was
// there.
const damage = `there=0
for i in $(seq 160); do
	ip rule del lookup 4800 2>/dev/null && there=$((there + 1))
	ip route flush table 4800 2>/dev/null
	sleep 0.05
done
echo $there`

// testRulesRemoved: something on the client's node removes what is not its own, again and again
// under traffic of a pod and of the node. Nothing for the other cluster leaves in the clear, traffic
// goes on, and the node reports it.
func testRulesRemoved(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	const table = "ip e2e-clear"
	nft := func(arguments string) string {
		t.Helper()
		return s.node(t, "router", "nft", arguments)
	}
	remote := strings.Join(append(s.Shown("g2"), "243.0.0.0/8"), ", ")
	nft("table " + table + ` { counter seen { }
		chain leaving { type filter hook prerouting priority -400; ip daddr { ` + remote + ` } counter name seen; }
	}`)
	t.Cleanup(func() {
		if _, err := s.Lab.Exec(context.Background(), "router", "nft", "delete table "+table); err != nil {
			t.Error(err)
		}
	})
	seen := func() string { return nft("list counter " + table + " seen") }
	// Without Pelago a packet takes the default route, as this one of the control plane.
	s.node(t, "g1", "sh", "-c", "busybox ping -c 1 -W 1 "+l.sink.String()+" || true")
	if strings.Contains(seen(), "packets 0 ") {
		t.Fatal("a packet in the clear is not seen: the test proves nothing")
	}
	nft("reset counter " + table + " seen")

	var datagrams, connections []*traffic
	for _, from := range []walk.Pod{l.client, l.host} {
		datagrams = append(datagrams, s.ping(t, from, 200, l.sink.String()+":7"))
		connections = append(connections, s.hold(t, from, 5, l.web.String()+":80"))
	}
	restored := strings.TrimSpace(s.node(t, l.clientNode, "sh", "-c", damage))
	t.Logf("of 160 times the rule was there, as restored, %s times", restored)
	for _, tr := range datagrams {
		p := finish[pings](t, tr)
		t.Logf("%d datagrams, %d lost, longest gap %.0f ms", p.Sent, p.Lost, p.LongestGapMs)
		if p.Lost == 0 || p.Lost == p.Sent {
			t.Errorf("%d of %d datagrams lost; want some, and not all", p.Lost, p.Sent)
		}
	}
	for _, tr := range connections {
		onlyBrokenOf(t, tr)
	}
	if out := seen(); !strings.Contains(out, "packets 0 ") {
		t.Errorf("packets for %s have left %s in the clear:\n%s", remote, l.clientNode, out)
	}
	for _, from := range []walk.Pod{l.client, l.host} {
		within(t, func() error { _, err := s.Ask(t.Context(), from, l.web.String()); return err })
	}
	within(t, func() error {
		m := s.nodeCondition(t, l.clientNode, "HostNetwork")
		if !strings.HasPrefix(m, "False ") || !strings.Contains(m, "removes Pelago's routing rule or routes") {
			return fmt.Errorf("condition HostNetwork of %s: %q", l.clientNode, m)
		}
		return nil
	})
}

// nodeCondition is status and message of a condition of a node's NodeIndex.
func (s *clusterset) nodeCondition(t *testing.T, node, name string) string {
	t.Helper()
	cluster, _, _ := strings.Cut(node, "-")
	condition := fmt.Sprintf(".status.conditions[?(@.type==%q)]", name)
	return s.kubectl(t, cluster, "get", "nodeindices.pelago.io", node,
		"-o", "jsonpath={"+condition+".status} {"+condition+".message}")
}

// zoned takes a table's name: rules as firewalld has them, base chains that end in a rejection of
// what no zone accepts.
const zoned = `table inet %s {
	chain filter_IN_public {
		tcp dport 22 accept
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname "lo" accept
		meta l4proto icmp accept
		goto filter_IN_public
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ip saddr { ` + walk.PodCIDR + ` } accept
		reject with icmpx admin-prohibited
	}
}`

// rejecting ends the chains of iptables in a rejection, with Pelago's jumps behind it; accepting
// reverts that.
const (
	rejecting = `set -e
for chain in INPUT FORWARD; do
	iptables -I $chain -m conntrack --ctstate RELATED,ESTABLISHED -m comment --comment e2e-edges -j ACCEPT
	iptables -I $chain -s ` + walk.PodCIDR + ` -m comment --comment e2e-edges -j ACCEPT
	iptables -D $chain -j PELAGO-$chain
	iptables -A $chain -m comment --comment e2e-edges -j REJECT --reject-with icmp-host-prohibited
	iptables -A $chain -j PELAGO-$chain
done
iptables -I INPUT -i lo -m comment --comment e2e-edges -j ACCEPT`
	accepting = `for chain in INPUT FORWARD; do
	iptables -S $chain | sed -n '/e2e-edges/s/^-A/iptables -D/p' | sh -e
done`
)

// testFirewalls: tables as of firewalld at the client's and the server's node, and there chains of
// iptables that end in a rejection before Pelago's rules. Pelago moves its rules; the condition
// Firewall names the chains of the tables, and what it prints makes all packets pass.
func testFirewalls(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	site := l.sinkNode // a table of its own; the client's node has firewalld's name
	tables := map[string]string{l.clientNode: "firewalld", site: "site"}
	t.Cleanup(func() {
		for node, table := range tables {
			script := "nft add table inet " + table + "; nft delete table inet " + table + "; " + accepting
			if _, err := s.Lab.Exec(context.Background(), node, "sh", "-c", script); err != nil {
				t.Error(err)
			}
		}
	})
	small := func() error {
		if _, err := s.In(t.Context(), l.client, "nc", "-z", "-w", "3", l.sink.String(), "5201"); err != nil {
			return err
		}
		out, err := s.In(t.Context(), l.client, "whereami", "try", "-patience", "3s", "udp://"+l.sink.String()+":7")
		if o := decode[[]tried](t, out); err == nil && o[0].Outcomes["answered"] != 1 {
			err = fmt.Errorf("%+v", o)
		}
		return err
	}
	large := func(limit string) error { // both ways
		_, err := s.In(t.Context(), l.client,
			"timeout", limit, "iperf3", "--client", l.sink.String(), "--bytes", "20M", "--bidir")
		return err
	}
	passes := func(what string) {
		t.Helper()
		if err := small(); err != nil {
			t.Errorf("%s: small packets: %v", what, err)
		}
		if err := large("60"); err != nil {
			t.Errorf("%s: a large transfer: %v", what, err)
		}
	}
	passes("without firewalls")
	s.node(t, site, "sh", "-c", rejecting)
	if err := small(); err == nil {
		t.Error("behind the REJECT, Pelago's rules accept packets: the test proves nothing")
	}
	for node, table := range tables {
		s.node(t, node, "nft", fmt.Sprintf(zoned, table))
	}
	message := map[string]string{}
	within(t, func() error {
		for _, chain := range []string{"INPUT", "FORWARD"} {
			rules := s.node(t, site, "iptables", "-S", chain)
			if strings.Index(rules, "-j PELAGO-"+chain) > strings.Index(rules, "-j REJECT") {
				return fmt.Errorf("%s of %s:\n%s", chain, site, rules)
			}
		}
		for node, table := range tables {
			message[node] = s.nodeCondition(t, node, "Firewall")
			for _, want := range []string{
				"chain filter_IN_public of table inet " + table + " (nft) rejects UDP 4800",
				"chain filter_FORWARD of table inet " + table + " (nft) rejects connections from other clusters",
			} {
				if !strings.HasPrefix(message[node], "False ") || !strings.Contains(message[node], want) {
					return fmt.Errorf("condition Firewall of %s is %q; want %q", node, message[node], want)
				}
			}
		}
		return nil
	})
	t.Log(message)
	if err := small(); err == nil {
		t.Error("a connection passes FORWARD, which rejects it")
	}
	// firewalld is not there: what its commands do.
	for _, command := range []string{
		"firewall-cmd --permanent --zone=trusted --add-interface=pelago0 && firewall-cmd --reload",
		"firewall-cmd --permanent --add-port=4800/udp && firewall-cmd --reload",
	} {
		if !strings.Contains(message[l.clientNode], command) {
			t.Errorf("no command %q in %q", command, message[l.clientNode])
		}
	}
	remedies := map[string][]string{
		l.clientNode: {
			"nft insert rule inet firewalld filter_FORWARD iifname pelago0 accept",
			"nft insert rule inet firewalld filter_IN_public udp dport 4800 accept",
		},
		site: regexp.MustCompile(`nft insert rule [^,;]+`).FindAllString(message[site], -1),
	}
	apply := func(hook string) {
		for node, commands := range remedies {
			for _, command := range slices.Compact(commands) {
				if strings.Contains(command, hook) {
					s.node(t, node, "sh", "-c", command)
				}
			}
		}
	}
	apply("filter_FORWARD")
	if err := small(); err != nil {
		t.Errorf("with the remedy for FORWARD: small packets: %v", err)
	}
	if err := large("5"); err == nil {
		t.Error("a large transfer passes INPUT, which rejects it")
	}
	apply("filter_IN")
	passes("with all remedies")
	within(t, func() error {
		for node := range tables {
			if c := s.nodeCondition(t, node, "Firewall"); !strings.HasPrefix(c, "True") {
				return fmt.Errorf("condition Firewall of %s with the remedies is %q", node, c)
			}
		}
		return nil
	})
}
