// Package walk is the walk-through for users, step by step, with the commands that they type: it
// runs the product's CLI and kubectl as programs and checks their output. The demo shows it, the
// end-to-end tests assert with it.
package walk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/lab"
)

// Walk is a lab with the product in it.
type Walk struct {
	Lab *lab.Lab
	// Clusters is the number of members, g1 to g3; 0: two.
	Clusters int
	// Gateways is the number of nodes that join makes gateways in each cluster; 0 leaves the choice
	// to it.
	Gateways int
	// Plain is without globalnet: the clusters have ranges of their own.
	Plain bool
	// Mode is deploy-broker's --mode; empty: its own choice, submariner.
	Mode string
	// Propagation makes the hub propagate workloads: g1 and g3 take them themselves (Pull), the hub
	// writes g2 (Push).
	Propagation bool
	// Wire is join's --cable-driver; empty: join's own choice, wireguard.
	Wire string
	// Datapath is join's --datapath; empty: join's own choice, strict.
	Datapath string
	// Bin is the directory of the product's programs, Images that of the image archives.
	Bin, Images string
	// Dir takes broker-info.subm.
	Dir string
	// Out receives the commands, their output and their times.
	Out io.Writer
}

// Members are the names of the clusters that are joined.
func (w *Walk) Members() []string {
	return []string{"g1", "g2", "g3"}[:max(2, w.Clusters)]
}

// Step prints the title, runs f and prints how long it took.
func (w *Walk) Step(title string, f func() error) error {
	fmt.Fprintf(w.Out, "\n== %s\n", title)
	begin := time.Now()
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", title, err)
	}
	fmt.Fprintf(w.Out, "   (%.1f s)\n", time.Since(begin).Seconds())
	return nil
}

// Pelago runs the product's CLI and shows the command and its output.
func (w *Walk) Pelago(ctx context.Context, args ...string) (string, error) {
	return w.show(ctx, "", filepath.Join(w.Bin, "pelago"), args...)
}

// Kubectl runs kubectl and shows the command and its output.
func (w *Walk) Kubectl(ctx context.Context, args ...string) (string, error) {
	return w.show(ctx, "", w.Lab.Kubectl(), args...)
}

// Apply applies a manifest without showing all of it.
func (w *Walk) Apply(ctx context.Context, cluster, manifest string) error {
	_, err := w.show(ctx, manifest, w.Lab.Kubectl(), "--context", cluster, "apply", "-f", "-")
	return err
}

// show runs a command, printing it as a user types it.
func (w *Walk) show(ctx context.Context, stdin, program string, args ...string) (string, error) {
	fmt.Fprintf(w.Out, "$ %s %s\n", filepath.Base(program), strings.Join(args, " "))
	out, err := w.run(ctx, stdin, program, args...)
	for line := range strings.Lines(out) {
		fmt.Fprintf(w.Out, "  %s\n", strings.TrimRight(line, "\n"))
	}
	return out, err
}

func (w *Walk) run(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = w.Dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.Lab.Kubeconfig())
	return run(cmd, stdin)
}

func run(cmd *exec.Cmd, stdin string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(cmd.Path), strings.Join(cmd.Args[1:], " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Quietly runs a program with the lab's kubeconfig and returns what it prints; it shows nothing.
func (w *Walk) Quietly(ctx context.Context, program string, args ...string) (string, error) {
	return w.run(ctx, "", program, args...)
}

// Patience ends a step that fails; it is far above what a busy machine needs. WaitFlag is the same
// for `kubectl wait` and `kubectl rollout status`.
const (
	Patience = 5 * time.Minute
	WaitFlag = "--timeout=5m"
)

// Eventually repeats f until it succeeds; the error of the last try is returned when the time is
// up.
func Eventually(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not within %s", limit), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
