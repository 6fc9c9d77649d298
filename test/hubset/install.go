package hubset

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Limits of what the CLI does, and of how long a member takes to be Ready.
const (
	commandLimit = 3 * time.Minute
	readyLimit   = 3 * time.Minute
	joinsAtOnce  = 4
)

// Init runs `pelago init` against the hub, which writes the kubeconfig of pelago-hub.
func (s *Set) Init(ctx context.Context) error {
	return s.Pelago(ctx, "init", "--kubeconfig", s.kubeconfig, "--output", s.hubKubeconfig())
}

// Join runs `pelago join` for all members as push members, some at a time.
func (s *Set) Join(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(joinsAtOnce)
	for _, m := range s.Members {
		g.Go(func() error {
			return s.Pelago(ctx, "join", m.Name, "--kubeconfig", s.kubeconfig, "--cluster-kubeconfig", m.kubeconfig)
		})
	}
	return g.Wait()
}

// Pelago runs the CLI. What it says is in the error if it fails.
func (s *Set) Pelago(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.options.Binaries, "pelago"), args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pelago %v: %w: %s", args, errors.Join(err, ctx.Err()), out)
	}
	return nil
}

// Up is the way to a clusterset that works: Init, StartHub, Join, and all members Ready.
func (s *Set) Up(ctx context.Context) (*Process, error) {
	if err := s.Init(ctx); err != nil {
		return nil, err
	}
	hub, err := s.StartHub("pelago-hub")
	if err != nil {
		return nil, err
	}
	if err := s.Join(ctx); err != nil {
		return nil, fmt.Errorf("%w; the hub's last words:\n%s", err, hub.Tail())
	}
	if err := s.AwaitReady(ctx); err != nil {
		return nil, fmt.Errorf("%w; the hub's last words:\n%s", err, hub.Tail())
	}
	return hub, nil
}

var clusters = schema.GroupVersionResource{Group: "cluster.karmada.io", Version: "v1alpha1", Resource: "clusters"}

// AwaitReady waits until the hub reports that all members are Ready.
func (s *Set) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	client, err := dynamic.NewForConfig(s.Server.Config())
	if err != nil {
		return fmt.Errorf("connect to the hub: %w", err)
	}
	for {
		waiting, err := notReady(ctx, client, s.Members)
		if err == nil && len(waiting) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the members %v are Ready: %w", waiting, errors.Join(ctx.Err(), err))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func notReady(ctx context.Context, client dynamic.Interface, members []*Member) (waiting []string, err error) {
	list, err := client.Resource(clusters).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for _, c := range list.Items {
		ready[c.GetName()] = isReady(&c)
	}
	for _, m := range members {
		if !ready[m.Name] {
			waiting = append(waiting, m.Name)
		}
	}
	return waiting, nil
}

func isReady(cluster *unstructured.Unstructured) bool {
	// none exist before the first report
	conditions, _, _ := unstructured.NestedSlice(cluster.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Ready" {
			return c["status"] == "True"
		}
	}
	return false
}
