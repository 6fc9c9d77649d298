package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// step is something that is done to the clusters on account of a victim, a gateway node.
type step func(ctx context.Context, s *stage, victim string) error

// fault is one thing that happens to a gateway under load. The steps, of which any but strike may
// be nil:
//
//	prepare   before the load starts
//	between   when all connections are open
//	strike    the fault itself; for planned work all of it
//	heal      some seconds later, under the load
//	restore   when the load has ended
type fault struct {
	name, title                             string
	prepare, between, strike, heal, restore step

	victims []string
	// rtt is that of the path between the clusters.
	rtt time.Duration
	// planned work is to lose nothing.
	planned bool
	// patience with an echo until its connection counts as broken; 0: that of all others.
	patience time.Duration
}

var (
	// kill is a power failure: the cable is gone and all processes are dead.
	kill step = func(ctx context.Context, s *stage, victim string) error { return s.Lab.Kill(ctx, victim) }
	heal step = func(ctx context.Context, s *stage, victim string) error { return s.Lab.Heal(ctx, victim) }

	healPaths step = func(_ context.Context, s *stage, _ string) error { return s.Lab.HealPaths() }
)

// steps does several, one after the other.
func steps(all ...step) step {
	return func(ctx context.Context, s *stage, victim string) error {
		for _, do := range all {
			if err := do(ctx, s, victim); err != nil {
				return err
			}
		}
		return nil
	}
}

// nothing is a run without a fault: it shows the noise of the machine itself.
const nothing = "nothing"

// lossyPatience: with 20 % loss each way, one line in a few thousand has to be retransmitted so
// often that it exceeds the patience of the other faults, even without any fault.
const lossyPatience = 20 * time.Second

func faults() []fault {
	return []fault{
		{name: nothing, title: "nothing happens: what the busy machine does by itself", strike: func(context.Context, *stage, string) error { return nil }},
		{name: "gateway-killed", title: "power failure of a gateway", strike: kill, heal: heal},
		{name: "uplink-cut", title: "a gateway's uplink is cut", strike: func(_ context.Context, s *stage, victim string) error {
			return s.Lab.CutLink(victim, false)
		}, heal: heal},
		{name: "wire-cut", title: "a gateway is cut from the other cluster", strike: func(_ context.Context, s *stage, victim string) error {
			return s.Lab.CutPath(victim, otherCluster(victim))
		}, heal: healPaths},
		{name: "node-link-cut", title: "a gateway is cut from the client's node only", strike: func(_ context.Context, s *stage, victim string) error {
			return s.Lab.CutPath(victim, clientNode)
		}, heal: healPaths, victims: []string{"g1-n1", "g1-n2"}},
		{name: "hub-and-agents-down", title: "power failure while hub and agents are down",
			prepare: withoutControl, strike: kill, heal: steps(withControl, heal)},
		{name: "client-daemon-dead", title: "power failure, pelago-node of the client's node is dead",
			between: withoutDaemon, strike: kill, heal: steps(withDaemon, heal)},
		{name: "backend-added", title: "power failure, a backend was added after the connections were made",
			between: func(ctx context.Context, s *stage, victim string) error {
				return s.addBackend(ctx, sibling("g2", victim))
			},
			strike: kill, heal: heal, restore: func(ctx context.Context, s *stage, _ string) error { return s.removeBackend(ctx) }},
		{name: "cores-loaded", title: "power failure, both processors are busy", between: loadCores, strike: kill, heal: steps(unloadCores, heal)},
		{name: "rtt-80ms", title: "power failure, 80 ms between the clusters", rtt: 80 * time.Millisecond,
			prepare: func(ctx context.Context, s *stage, _ string) error {
				return s.Lab.ImpairPath(ctx, "g1", "g2", lab.Impairment{Delay: 40 * time.Millisecond})
			},
			strike: kill, heal: heal, restore: healPaths},
		{name: "wire-loss-20", title: "power failure, one of the remaining wires loses 20 %", patience: lossyPatience,
			prepare: func(ctx context.Context, s *stage, victim string) error {
				return s.Lab.ImpairPath(ctx, sibling("g1", victim), sibling("g2", victim), lab.Impairment{Loss: 0.2})
			},
			strike: kill, heal: heal, restore: healPaths},
		{name: "gateway-drained", title: "a gateway loses its label, half a minute later its power", planned: true,
			strike: steps(unlabel, drained, kill, pause), heal: steps(heal, relabel)},
		{name: "node-cordoned", title: "a gateway node is cordoned, half a minute later without power", planned: true,
			strike: steps(cordon, drained, kill, pause), heal: steps(heal, uncordon)},
		{name: "daemons-restarted", title: "rolling restart of pelago-node in both clusters", planned: true, strike: rollingRestart},
	}
}

// otherCluster is where a node's wires lead.
func otherCluster(node string) string {
	if strings.HasPrefix(node, "g1-") {
		return "g2"
	}
	return "g1"
}

// sibling is a gateway of a cluster that is not the victim.
func sibling(cluster, victim string) string {
	if node := cluster + "-n1"; node != victim {
		return node
	}
	return cluster + "-n2"
}

// withoutControl cuts the hub off and ends the agents of both clusters.
func withoutControl(ctx context.Context, s *stage, _ string) error {
	for _, cluster := range []string{"g1", "g2"} {
		if _, err := s.kubectl(ctx, cluster, "-n", system, "scale", "deployment/pelago-agent", "--replicas=0"); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, cluster, "-n", system, "wait", "--for=delete", "pod", "-l", "app=pelago-agent", "--timeout=60s"); err != nil {
			return err
		}
	}
	return s.Lab.CutLink("hub", false)
}

func withControl(ctx context.Context, s *stage, _ string) error {
	errs := []error{s.Lab.HealLink("hub")}
	for _, cluster := range []string{"g1", "g2"} {
		_, err := s.kubectl(ctx, cluster, "-n", system, "scale", "deployment/pelago-agent", "--replicas=2")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withoutDaemon kills pelago-node on the client's node. The kubelet, which would start it again,
// stands still until the node is healed; the load's output waits for it as well.
func withoutDaemon(ctx context.Context, s *stage, _ string) error {
	if _, err := s.Lab.Exec(ctx, clientNode, "pkill", "-STOP", "-x", "kubelet"); err != nil {
		return fmt.Errorf("stop the kubelet: %w", err)
	}
	if _, err := s.Lab.Exec(ctx, clientNode, "pkill", "-KILL", "-x", "pelago-node"); err != nil {
		return fmt.Errorf("kill pelago-node: %w", err)
	}
	return walk.Eventually(ctx, 10*time.Second, func() error {
		// pgrep fails when none exists
		if _, err := s.Lab.Exec(ctx, clientNode, "pgrep", "-x", "pelago-node"); err == nil {
			return errors.New("pelago-node is still there")
		}
		return nil
	})
}

// withDaemon also replaces the pod: kubelet would wait longer each time before it starts the same
// one again.
func withDaemon(ctx context.Context, s *stage, _ string) error {
	if err := s.continueKubelet(ctx); err != nil {
		return err
	}
	_, err := s.kubectl(ctx, "g1", "-n", system, "delete", "pod", "-l", "app=pelago-node", "--field-selector", "spec.nodeName="+clientNode, "--wait")
	return err
}

func (s *stage) continueKubelet(ctx context.Context) error {
	if _, err := s.Lab.Exec(ctx, clientNode, "pkill", "-CONT", "-x", "kubelet"); err != nil {
		return fmt.Errorf("continue the kubelet: %w", err)
	}
	return nil
}

func loadCores(_ context.Context, s *stage, _ string) (err error) {
	s.busy, err = startBusy()
	return err
}

func unloadCores(_ context.Context, s *stage, _ string) error {
	endBusy(s.busy)
	s.busy = nil
	return nil
}

func (s *stage) label(ctx context.Context, node string, is bool) error {
	label := gatewayName + "=true"
	if !is {
		label = gatewayName + "-"
	}
	_, err := s.kubectl(ctx, node[:2], "label", "node", node, label, "--overwrite")
	return err
}

func unlabel(ctx context.Context, s *stage, victim string) error { return s.label(ctx, victim, false) }
func relabel(ctx context.Context, s *stage, victim string) error { return s.label(ctx, victim, true) }

func cordon(ctx context.Context, s *stage, victim string) error {
	_, err := s.kubectl(ctx, victim[:2], "cordon", victim)
	return err
}

func uncordon(ctx context.Context, s *stage, victim string) error { return s.uncordon(ctx, victim) }

func (s *stage) uncordon(ctx context.Context, node string) error {
	_, err := s.kubectl(ctx, node[:2], "uncordon", node)
	return err
}

// drainTime is how long a gateway continues switching for those who have not been notified yet that
// it leaves.
const drainTime = 33 * time.Second

// drained waits until the gateway may be switched off.
func drained(ctx context.Context, _ *stage, _ string) error { return sleep(ctx, drainTime) }

func pause(ctx context.Context, _ *stage, _ string) error { return sleep(ctx, aftermath) }

// rollingRestart is what an upgrade does: the pods are replaced one by one.
func rollingRestart(ctx context.Context, s *stage, _ string) error {
	for _, cluster := range []string{"g1", "g2"} {
		if _, err := s.kubectl(ctx, cluster, "-n", system, "rollout", "restart", "daemonset/pelago-node"); err != nil {
			return err
		}
		if _, err := s.kubectl(ctx, cluster, "-n", system, "rollout", "status", "daemonset/pelago-node", "--timeout=120s"); err != nil {
			return err
		}
	}
	return nil
}
