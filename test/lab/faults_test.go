package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/lab"
)

// reaches reports whether a ping from a member to an address is answered.
func reaches(l *lab.Lab, from string, to netip.Addr) bool {
	_, err := l.Exec(context.Background(), from, "busybox", "ping", "-c", "1", "-W", "1", to.String())
	return err == nil
}

func checkLinks(t *testing.T, l *lab.Lab) {
	g1, err := l.Plan().Cluster("g1")
	if err != nil {
		t.Fatal(err)
	}
	g2, err := l.Plan().Cluster("g2")
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, want bool, to netip.Addr) {
		t.Helper()
		eventually(t, func() error {
			if reaches(l, "g1-n1", to) != want {
				return fmt.Errorf("%s: g1-n1 reaches %s: %v, want %v", what, to, !want, want)
			}
			return nil
		})
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	neighbour, other := g1.Nodes[1].Address, g2.Nodes[0].Address
	expect("at first", true, neighbour)
	expect("at first", true, other)
	for _, unplug := range []bool{false, true} {
		do(l.CutLink("g1-n2", unplug))
		expect("node cut", false, neighbour)
		carrier, err := l.Exec(t.Context(), "g1-n2", "cat", "/sys/class/net/eth0/carrier")
		if up := strings.TrimSpace(carrier) == "1"; err != nil || up == unplug {
			t.Errorf("cut with unplug=%v: carrier %q, %v", unplug, carrier, err)
		}
		do(l.HealLink("g1-n2"))
		expect("node healed", true, neighbour)
	}
	do(l.CutLink("g2", false))
	expect("cluster cut", false, other)
	expect("cluster cut", true, neighbour)
	do(l.HealLink("g2"))
	expect("cluster healed", true, other)

	do(l.ShapeLink("g1-n2", lab.Shape{Rate: 2_500_000, Burst: 64 << 10, Queue: 128 << 10}))
	if _, err := l.Exec(t.Context(), "g1-n2", "sh", "-c", "iperf3 --server --one-off --daemon >/dev/null && until ss -Hltn sport = :5201 | grep -q .; do sleep 0.1; done"); err != nil {
		t.Fatal(err)
	}
	out, err := l.Exec(t.Context(), "g1-n1", "sh", "-c", "iperf3 --client "+neighbour.String()+" --time 2 --json | grep -A9 sum_received | grep bits_per_second")
	var rate float64
	if _, scanErr := fmt.Sscanf(strings.TrimSpace(out), `"bits_per_second": %f`, &rate); err != nil || scanErr != nil || rate > 30e6 {
		t.Errorf("throughput over a link shaped to 20 Mbit/s: %q, %v, %v, want at most 30", out, err, scanErr)
	}
	do(l.HealLink("g1-n2"))
	if out, err := l.Exec(t.Context(), "g1-n2", "tc", "qdisc", "show", "dev", "eth0"); err != nil || strings.Contains(out, "tbf") {
		t.Errorf("after heal: %q, %v", out, err)
	}
	if err := l.CutLink("g9", false); err == nil || !strings.Contains(err.Error(), `"g9"`) {
		t.Errorf("cut of an unknown link: %v", err)
	}
}

// checkPaths: the path between two members is cut, delayed and made to lose packets, and no other
// path is affected.
func checkPaths(t *testing.T, l *lab.Lab) {
	g1, err := l.Plan().Cluster("g1")
	if err != nil {
		t.Fatal(err)
	}
	g2, err := l.Plan().Cluster("g2")
	if err != nil {
		t.Fatal(err)
	}
	neighbour, plane, other, another := g1.Nodes[1].Address, g1.ControlPlane, g2.Nodes[0].Address, g2.Nodes[1].Address
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, want bool, to netip.Addr) {
		t.Helper()
		eventually(t, func() error {
			if reaches(l, "g1-n1", to) != want {
				return fmt.Errorf("%s: g1-n1 reaches %s: %v, want %v", what, to, !want, want)
			}
			return nil
		})
	}
	do(l.CutPath("g1-n1", "g1-n2"))
	expect("nodes cut", false, neighbour)
	expect("nodes cut", true, plane)
	expect("nodes cut", true, other)
	if err := l.CutPath("g1-n2", "g1-n1"); err == nil || !strings.Contains(err.Error(), "path heal") {
		t.Errorf("a second cut in a cluster: %v", err)
	}
	do(l.HealPaths())
	expect("nodes healed", true, neighbour)

	do(l.CutPath("g1-n1", "g2-n1"))
	expect("cut across", false, other)
	expect("cut across", true, another)
	do(l.CutPath("g2", "g1-n1"))
	expect("cut from a cluster", false, another)
	do(l.HealPaths())
	expect("healed", true, other)
	expect("healed", true, another)

	do(l.ImpairPath(t.Context(), "g1", "g2", lab.Impairment{Delay: 50 * time.Millisecond}))
	out, err := l.Exec(t.Context(), "g1-n1", "busybox", "ping", "-c", "3", "-i", "0.2", other.String())
	var low float64
	if _, text, ok := strings.Cut(out, "min/avg/max = "); !ok || err != nil {
		t.Errorf("ping over a slow path: %v\n%s", err, out)
	} else if _, err := fmt.Sscanf(text, "%f/", &low); err != nil || low < 100 {
		t.Errorf("round-trip time with 50 ms each way: %g ms, %v, want 100 or more", low, err)
	}
	do(l.ImpairPath(t.Context(), "g1", "g2", lab.Impairment{Loss: 1}))
	expect("all is lost", false, other)
	expect("all is lost", true, neighbour)
	do(l.HealPaths())
	expect("healed again", true, other)
	if out, err := l.Exec(t.Context(), "router", "ip", "-o", "link"); err != nil || strings.Contains(out, "relay") {
		t.Errorf("devices of the router after heal: %v\n%s", err, out)
	}
}

func stateOf(t *testing.T, l *lab.Lab, node string) string {
	t.Helper()
	for _, c := range l.Status(t.Context()).Clusters {
		for _, n := range c.Nodes {
			if n.Name == node {
				return n.State
			}
		}
	}
	t.Fatalf("no node %s", node)
	return ""
}

// checkPause: the processes of a paused node are stopped, its kernel forwards packets.
func checkPause(t *testing.T, l *lab.Lab) {
	n, err := l.Plan().Node("g1-n2")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Pause(t.Context(), n.Name); err != nil {
		t.Fatal(err)
	}
	if state := stateOf(t, l, n.Name); state != "paused" {
		t.Errorf("state = %s, want paused", state)
	}
	out, err := l.Exec(t.Context(), n.Name, "ps", "-eo", "stat=,comm=")
	if err != nil || !strings.Contains(out, "kubelet") || !strings.Contains(out, "whereami") {
		t.Errorf("processes of the node: %v, want the kubelet and the pods' among\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if state, comm, _ := strings.Cut(strings.TrimSpace(line), " "); state[0] != 'T' && strings.TrimSpace(comm) != "ps" {
			t.Errorf("a process of a paused node runs: %s", line)
		}
	}
	eventually(t, func() error {
		if !reaches(l, "g1-n1", n.Address) {
			return errors.New("a paused node's kernel does not answer pings")
		}
		return nil
	})
	if err := l.Heal(t.Context(), n.Name); err != nil {
		t.Fatal(err)
	}
	if state := stateOf(t, l, n.Name); state != "running" {
		t.Errorf("state = %s, want running", state)
	}
}

// checkKill: a killed node sends nothing any more, and boots again with its images.
func checkKill(t *testing.T, l *lab.Lab, pod string) {
	n, err := l.Plan().Node("g1-n2")
	if err != nil {
		t.Fatal(err)
	}
	before, err := l.Exec(t.Context(), n.Name, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Kill(t.Context(), n.Name); err != nil {
		t.Fatal(err)
	}
	if state := stateOf(t, l, n.Name); state != "off" {
		t.Errorf("state = %s, want off", state)
	}
	if reaches(l, "g1-n1", n.Address) {
		t.Error("a killed node answers pings")
	}
	if _, err := l.Exec(t.Context(), n.Name, "true"); err == nil || !strings.Contains(err.Error(), "g1-n2 is off") {
		t.Errorf("a command on a killed node: %v, want an error that says so", err)
	}
	if err := l.Heal(t.Context(), n.Name); err != nil {
		t.Fatal(err)
	}
	after, err := l.Exec(t.Context(), n.Name, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil || after == before {
		t.Errorf("boot id %q after %q, %v", after, before, err)
	}
	eventually(t, func() error {
		out, err := tryKubectl(l, "--context", "g1", "-n", "sample", "get", "pods", "--field-selector", "spec.nodeName=g1-n2",
			"-o", `jsonpath={range .items[*]}{.status.containerStatuses[0].restartCount}{.status.containerStatuses[0].ready}{"\n"}{end}`)
		if err != nil || strings.Contains(out, "0true") || strings.Contains(out, "false") {
			return fmt.Errorf("pods of the node (restarts, ready) after its boot: %s %w", out, err)
		}
		return nil
	})
	checkServices(t, l, pod)
}
