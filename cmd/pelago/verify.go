package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/verify"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// acceptance are the flags of verify.
type acceptance struct {
	access
	named    []string
	image    string
	failover bool
	cleanup  bool
	timeout  time.Duration
}

func verifyCommand() *cobra.Command {
	var v acceptance
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Try the clusterset with pods of its own, from each cluster to each other",
		Long: `verify makes namespace pelago-verify in each member, with two servers and a client of the
product's image, and exports their services. The client of each cluster then uses those of
all others: by name, by the pods of a headless service, by UDP (64 and 1200 bytes), with
20 MiB each way, and by ClusterSetIP, that of its own cluster too; source addresses
are compared with the clusters' ranges. --failover drains a gateway of each cluster with two, while all clients
hold connections. At the end, also after an interrupt, everything is removed; --cleanup removes
what a run left that was killed.

Pods need no privileges. Exit status: 0 nothing failed; 1 something failed.`,
		Example: `  pelago verify
  pelago verify --contexts g1,g2 --failover
  pelago verify -o junit > verify.xml
  pelago verify --cleanup`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	v.addFlags(f)
	view.AddOutputFlag(f, &v.output, "junit")
	f.StringSliceVar(&v.named, "contexts", nil, "contexts of the kubeconfig (default: all)")
	f.StringVar(&v.image, "image", "", "image of the pods (default: that of pelago-node in each cluster)")
	f.BoolVar(&v.failover, "failover", false, "drain a gateway of each cluster under traffic, and return it to service")
	f.BoolVar(&v.cleanup, "cleanup", false, "only remove what an earlier run has left")
	f.DurationVar(&v.timeout, "timeout", 5*time.Minute, "how long all steps may take together")
	cmd.MarkFlagsMutuallyExclusive("cleanup", "failover")
	cmd.MarkFlagsMutuallyExclusive("cleanup", "image")
	return cmd
}

func (v *acceptance) run(ctx context.Context, out, errOut io.Writer) (err error) {
	progress := newProgress(errOut)
	clusters, err := v.members(ctx)
	if err != nil {
		return err
	}
	if v.cleanup {
		return verify.Cleanup(ctx, clusters, progress)
	}
	a := verify.Acceptance{Clusters: clusters, Failover: v.failover, Exec: verify.InPod, Progress: progress}
	if err := a.Validate(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp(ctx, clusters, progress)) }()
	limited, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	outcomes, err := a.Run(limited)
	if len(outcomes) > 0 {
		err = errors.Join(err, verify.Print(out, v.output, outcomes))
	}
	if failed := verify.Count(outcomes, verify.Failed); failed > 0 && err == nil {
		err = inspect.Status{Code: 1, Text: fmt.Sprintf("%d steps failed: see `pelago check`, and `pelago trace` for the path of a packet", failed)}
	}
	return err
}

// cleanUp removes what a run has made, also after its context has ended.
func cleanUp(ctx context.Context, clusters []*verify.Cluster, progress manifests.Progress) error {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), verify.CleanupWithin)
	defer cancel()
	if err := verify.Cleanup(clean, clusters, progress); err != nil {
		return fmt.Errorf("remove what the run has made: %w: repeat it with `pelago verify --cleanup`", err)
	}
	return nil
}

func benchmarkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "benchmark",
		Short: "Measure throughput or latency between clusters with pods of its own",
		Long: `benchmark makes the pods and services of pelago verify, and has the client of each cluster
measure towards the service of each cluster, its own as a comparison, one pair after the
other. It measures one connection, and what the product's own server and client can do: a
comparison, no limit of the network.`,
		Example: "  pelago benchmark throughput --contexts g1,g2\n  pelago benchmark latency -o json",
		Args:    cobra.NoArgs,
	}
	for _, of := range []struct {
		name, short string
		kind        verify.Kind
	}{
		{"throughput", "Bytes in a time on one connection, down, then up", verify.Throughput},
		{"latency", "Times of requests, one after the other on one connection", verify.Latency},
	} {
		var v acceptance
		var lasting time.Duration
		sub := &cobra.Command{
			Use: of.name, Short: of.short, Args: cobra.NoArgs,
			Example: "  pelago benchmark " + of.name + " --contexts g1,g2 --duration 10s",
			RunE: func(cmd *cobra.Command, _ []string) error {
				return v.benchmark(cmd.Context(), of.kind, lasting, cmd.OutOrStdout(), cmd.ErrOrStderr())
			},
		}
		f := sub.Flags()
		v.addFlags(f)
		view.AddOutputFlag(f, &v.output)
		f.StringSliceVar(&v.named, "contexts", nil, "contexts of the kubeconfig (default: all)")
		f.StringVar(&v.image, "image", "", "image of the pods (default: that of pelago-node in each cluster)")
		f.DurationVar(&lasting, "duration", 5*time.Second, "how long each measurement lasts")
		cmd.AddCommand(sub)
	}
	return cmd
}

func (v *acceptance) benchmark(ctx context.Context, kind verify.Kind, lasting time.Duration, out, errOut io.Writer) (err error) {
	if lasting <= 0 || lasting > time.Minute {
		return fmt.Errorf("--duration %s: give more than 0 and at most a minute", lasting)
	}
	progress := newProgress(errOut)
	clusters, err := v.members(ctx)
	if err != nil {
		return err
	}
	a := verify.Acceptance{Clusters: clusters, Exec: verify.InPod, Progress: progress}
	if err := a.Validate(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp(ctx, clusters, progress)) }()
	all, err := a.Benchmark(ctx, kind, lasting)
	if len(all) == 0 {
		return err
	}
	return errors.Join(err, view.PrintTables(out, v.output, verify.Measurements(kind, all)))
}

// members opens the contexts that are members. Without --contexts others are left out.
func (v *acceptance) members(ctx context.Context) ([]*verify.Cluster, error) {
	contexts, err := v.contexts(v.named)
	if err != nil {
		return nil, err
	}
	found, errs := make([]*verify.Cluster, len(contexts)), make([]error, len(contexts))
	var group errgroup.Group
	group.SetLimit(view.MaxMembers)
	for i, name := range contexts {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
			defer cancel()
			m, err := openQuick(&v.access, name)
			if err == nil {
				found[i], err = verify.Open(ctx, m, v.image)
			}
			if err != nil {
				errs[i] = fmt.Errorf("context %s: %w", name, err)
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil
	var out []*verify.Cluster
	for i, c := range found {
		switch {
		case c != nil:
			out = append(out, c)
		case len(v.named) == 0 && errors.Is(errs[i], verify.ErrNoMember):
			errs[i] = nil
		}
	}
	return out, errors.Join(errs...)
}

// verifyPodCommand is what the pods of verify run.
func verifyPodCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "verify-pod", Short: "Serve and try probes in the pods of `pelago verify`", Hidden: true, Args: cobra.NoArgs,
	}
	var cluster string
	var port uint16
	serve := &cobra.Command{
		Use: "serve", Short: "Answer HTTP requests and UDP datagrams", Args: cobra.NoArgs,
		Example: "  pelago verify-pod serve --cluster g1 --port 8080",
		RunE: func(cmd *cobra.Command, _ []string) error {
			self := verify.Answer{Cluster: cluster, Pod: os.Getenv("POD_NAME")}
			return verify.Serve(cmd.Context(), net.JoinHostPort("", strconv.Itoa(int(port))), self)
		},
	}
	serve.Flags().StringVar(&cluster, "cluster", "", "id of the cluster, which answers name")
	serve.Flags().Uint16Var(&port, "port", 8080, "port of TCP and UDP")
	run := &cobra.Command{
		Use: "run", Short: "Try the probes of the standard input, until it ends, and print the replies as JSON", Args: cobra.NoArgs,
		Example: `  echo '[{"kind": "request", "address": "web-g2.pelago-verify.svc.clusterset.local.:8080"}]' | pelago verify-pod run`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return verify.InClient(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	var output string
	node := &cobra.Command{
		Use: "node", Short: "Write facts about the node in whose network it runs, for `pelago check --pre --node-pods`", Args: cobra.NoArgs,
		Example: "  NODE_NAME=n1 HOST_IP=192.0.2.11 pelago verify-pod node --output /dev/termination-log",
		RunE:    func(*cobra.Command, []string) error { return writeNode(output) },
	}
	node.Flags().StringVar(&output, "output", "/dev/termination-log", "file to write")
	cmd.AddCommand(serve, run, node)
	return cmd
}

// writeNode writes the facts of the node as JSON.
func writeNode(file string) error {
	var tables []io.Reader
	for _, name := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return fmt.Errorf("read the UDP ports of the node: %w", err)
		}
		tables = append(tables, bytes.NewReader(text))
	}
	facts, err := verify.ReadNode(os.Getenv("NODE_NAME"), os.Getenv("HOST_IP"), tables...)
	if err != nil {
		return err
	}
	text, err := json.Marshal(facts)
	if err != nil {
		return fmt.Errorf("encode the facts: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write the facts: %w", err)
	}
	return nil
}
