package lab

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// Pause stops every process of a node (SIGSTOP): its kernel still forwards,
// nothing in it runs.
func (l *Lab) Pause(ctx context.Context, node string) error {
	return l.signalNode(ctx, node, syscall.SIGSTOP)
}

// signalNode sends SIGSTOP or SIGCONT to all processes in a node's pid
// namespace, those of containers included. Its first process, which would
// restart things, is stopped first and continued last.
func (l *Lab) signalNode(ctx context.Context, node string, sig syscall.Signal) error {
	if _, err := l.record.Plan.Node(node); err != nil {
		return err
	}
	init := l.recorded(nodeProcess(node))
	if !init.alive() {
		return fmt.Errorf("node %s is off (pelago-lab heal %s starts it)", node, node)
	}
	name := map[syscall.Signal]string{syscall.SIGSTOP: "STOP", syscall.SIGCONT: "CONT"}[sig]
	all := func() error {
		// kill(-1) reaches every process of the pid namespace but the first one
		// and the caller; the kernel does it in one go, so no new process escapes.
		_, err := l.Exec(ctx, node, "sh", "-c", "kill -s "+name+" -- -1")
		return err
	}
	if sig == syscall.SIGSTOP {
		if err := init.signal(sig); err != nil {
			return err
		}
		return all()
	}
	if err := all(); err != nil {
		return err
	}
	return init.signal(sig)
}

// Kill is a power failure: the node's cable is gone and all of its processes
// are dead in the same moment, nothing is shut down. Its disk stays.
func (l *Lab) Kill(ctx context.Context, node string) error {
	n, err := l.record.Plan.Node(node)
	if err != nil {
		return err
	}
	unlock, err := lockState(ctx, l.Name(), false)
	if err != nil {
		return err
	}
	defer unlock()
	sw, err := openNetspace(l.record.Plan.switchNamespace(n.Cluster))
	if err != nil {
		return err
	}
	defer sw.close()
	if port, err := sw.LinkByName(n.port()); err == nil {
		if err := sw.LinkDel(port); err != nil {
			return fmt.Errorf("pull the cable of node %s: %w", node, err)
		}
	}
	if err := kill([]process{l.recorded(nodeProcess(node))}); err != nil {
		return fmt.Errorf("kill node %s: %w", node, err)
	}
	if err := deleteNamespace(l.record.Plan.Namespace(node)); err != nil {
		return err
	}
	return machine.RemoveCgroup(l.cgroup(node), endLimit)
}

// Heal brings a node back that was paused, killed or cut off, and returns when
// it is Ready. A killed node boots again with its disk as it was.
func (l *Lab) Heal(ctx context.Context, node string) error {
	n, err := l.record.Plan.Node(node)
	if err != nil {
		return err
	}
	c, err := l.record.Plan.Cluster(n.Cluster)
	if err != nil {
		return err
	}
	if err := l.switchOn(ctx, c, n); err != nil {
		return fmt.Errorf("heal node %s: %w", node, err)
	}
	if err := l.HealLink(node); err != nil {
		return err
	}
	client, err := l.Clientset(c.Name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	start := time.Now()
	if err := l.awaitNodes(ctx, client, []Node{n}); err != nil {
		return err
	}
	l.report("node %s is Ready after %s", node, time.Since(start).Round(100*time.Millisecond))
	return nil
}

// switchOn is ensureNode under the lab's lock.
func (l *Lab) switchOn(ctx context.Context, c Cluster, n Node) error {
	unlock, err := lockState(ctx, l.Name(), false)
	if err != nil {
		return err
	}
	defer unlock()
	return l.ensureNode(ctx, c, n)
}

// ensureNode boots a node that is off and continues one that is paused.
func (l *Lab) ensureNode(ctx context.Context, c Cluster, n Node) error {
	if l.recorded(nodeProcess(n.Name)).state() == 'T' {
		return l.signalNode(ctx, n.Name, syscall.SIGCONT)
	}
	return l.startNode(c, n)
}
