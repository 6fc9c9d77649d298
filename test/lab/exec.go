package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/lab/machine"
)

// Streams are the standard streams of a command; nil ones are /dev/null.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exec runs a command on a member of the lab and returns its standard output.
// A node is entered with its network, mount, pid and uts namespaces; of a
// cluster's control plane, the hub and the "router" the network namespace is.
// The error of a command that fails wraps *exec.ExitError and shows what it
// wrote to its standard error.
func (l *Lab) Exec(ctx context.Context, member string, argv ...string) (string, error) {
	var out, errOut bytes.Buffer
	err := l.ExecStreams(ctx, member, Streams{Out: &out, Err: &errOut}, argv...)
	if err != nil && errOut.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), err
}

// ExecStreams is Exec with the command's streams given.
func (l *Lab) ExecStreams(ctx context.Context, member string, streams Streams, argv ...string) error {
	if len(argv) == 0 {
		return errors.New("run a command: none is given")
	}
	// env(1) looks the command up in the member's own file system and PATH.
	cmd := exec.CommandContext(ctx, "/usr/bin/env", argv...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + nodePath, "HOME=/root", "TERM=" + os.Getenv("TERM"), "LANG=C.UTF-8", idVariable + "=" + l.record.ID}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = streams.In, streams.Out, streams.Err
	if err := l.startIn(member, cmd); err != nil {
		return fmt.Errorf("run %s on %s: %w", argv[0], member, err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("run %s on %s: %w", strings.Join(argv, " "), member, err)
	}
	return nil
}

// startIn starts cmd in the namespaces of a member.
func (l *Lab) startIn(member string, cmd *exec.Cmd) error {
	plan := l.record.Plan
	if _, err := plan.Node(member); err == nil {
		return l.enterNode(member, cmd.Start)
	}
	if _, err := plan.Cluster(member); err != nil && member != routerName {
		return fmt.Errorf("lab %s has no node, cluster or router of this name (pelago-lab status lists them)", plan.Name)
	}
	return inNamespace(plan.Namespace(member), cmd.Start)
}

// enterNode runs f on a thread that is in the network, mount and uts namespaces
// of a node; processes that f starts are in its pid namespace too.
func (l *Lab) enterNode(node string, f func() error) error {
	init := l.recorded(nodeProcess(node))
	fd, err := unix.PidfdOpen(init.PID, 0)
	if err != nil || !init.alive() {
		if err == nil {
			unix.Close(fd)
		}
		return fmt.Errorf("node %s is off (pelago-lab heal %s starts it)", node, node)
	}
	defer unix.Close(fd)
	return onThread(func() error {
		// A thread may change its mount namespace only if it shares its root and
		// working directory with no other thread.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("enter node %s: %w", node, err)
		}
		if err := unix.Setns(fd, unix.CLONE_NEWNET|unix.CLONE_NEWNS|unix.CLONE_NEWPID|unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("enter node %s: %w", node, err)
		}
		return f()
	})
}

// LoadImage imports an image archive into the nodes of the named clusters, all
// clusters if none is named.
func (l *Lab) LoadImage(ctx context.Context, archive string, clusters ...string) error {
	nodes, err := l.nodesOf(clusters)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.NumCPU()) // unpacking is work for the processor
	for _, n := range nodes {
		group.Go(func() error { return l.loadImage(ctx, n, archive) })
	}
	return group.Wait()
}

func (l *Lab) loadImage(ctx context.Context, n Node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load image: %w", err)
	}
	defer f.Close()
	var output bytes.Buffer
	err = l.ExecStreams(ctx, n.Name, Streams{In: f, Out: &output, Err: &output},
		"ctr", "--address="+machine.Socket, "--namespace=k8s.io", "images", "import", "-")
	if err != nil {
		return fmt.Errorf("load image %s into %s: %w: %s", archive, n.Name, err, strings.TrimSpace(output.String()))
	}
	l.report("%s: %s is loaded", n.Name, archive)
	return nil
}

// nodesOf lists the nodes of clusters, of all clusters if none is named.
func (l *Lab) nodesOf(clusters []string) ([]Node, error) {
	if len(clusters) == 0 {
		clusters = l.clusterNames()
	}
	var nodes []Node
	for _, name := range clusters {
		c, err := l.record.Plan.Cluster(name)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, c.Nodes...)
	}
	return nodes, nil
}
