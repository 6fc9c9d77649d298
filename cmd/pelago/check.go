package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/verify"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// checkTimeout bounds the time for one cluster, so that one that hangs does not hide the others.
	checkTimeout = 20 * time.Second
	// checkInterval is the time between two rounds of --wait.
	checkInterval = 5 * time.Second
	// statusUnknown is the exit status if nothing is wrong as far as could be read, and something
	// could not.
	statusUnknown = 3
)

// checks are the flags of check and diagnose.
type checks struct {
	access
	named         []string
	hubKubeconfig string
	selected      check.Selection
	pre, wait     bool
	hub, nodePods bool
	image         string
	timeout       time.Duration
	explain       string
}

func checkCommand() *cobra.Command {
	var c checks
	cmd := &cobra.Command{
		Use:   "check [broker-info.subm]",
		Short: "Find out what is wrong, and what to do about it",
		Long: `check reads the objects of every member and hub of the kubeconfig, in parallel, and reports
what is wrong: a stable code, the object, the reason and the remedy. --explain CODE has more
about a code. It writes nothing and needs no access to nodes.

With --pre it checks a cluster before it joins; with a broker-info.subm also whether the
cluster fits that clusterset. With --pre --hub it checks an API server before it becomes a hub.

Exit status: 0 nothing is wrong, or only warnings; 1 errors; 3 no errors, but something
could not be read.`,
		Example: `  pelago check
  pelago check --contexts g1,g2 --hub-kubeconfig hub.kubeconfig --wait
  pelago check --only N,D -o wide
  pelago check -o junit > check.xml
  pelago check --pre broker-info.subm --context c3
  pelago check --pre --node-pods --context c3
  pelago check --pre --hub --context hub
  pelago check --explain PLG-N013`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if c.explain != "" {
				return explainCheck(cmd.OutOrStdout(), c.explain)
			}
			if len(args) > 0 && !c.pre {
				return errors.New("a broker-info.subm has an effect with --pre only")
			}
			if c.nodePods && (!c.pre || c.hub) {
				return errors.New("--node-pods: give --pre, without --hub")
			}
			if c.hub && (!c.pre || len(args) > 0) {
				return errors.New("--hub: give --pre, and no broker-info.subm")
			}
			return c.run(cmd.Context(), args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	c.addCheckFlags(f)
	f.StringSliceVar(&c.selected.Only, "only", nil, "areas (N network, D discovery, H hub, P before a join) or codes")
	f.BoolVar(&c.pre, "pre", false, "check a cluster before it joins")
	f.BoolVar(&c.hub, "hub", false, "with --pre: check an API server before it becomes a hub")
	f.BoolVar(&c.nodePods, "node-pods", false, "with --pre: also look at MTUs and UDP ports, by a pod in the network of each node, which is removed")
	f.StringVar(&c.image, "image", manifests.DefaultImage, "image of these pods")
	f.StringVar(&c.explain, "explain", "", "print what a code means, and exit")
	cmd.MarkFlagsMutuallyExclusive("pre", "wait")
	return cmd
}

// addTargetFlags adds the flags that name clusters.
func (c *checks) addTargetFlags(f *pflag.FlagSet) {
	c.addFlags(f)
	f.StringSliceVar(&c.named, "contexts", nil, "contexts of the kubeconfig (default: all)")
	f.StringVar(&c.hubKubeconfig, "hub-kubeconfig", "", "another kubeconfig, whose current context is the hub")
}

func (c *checks) addCheckFlags(f *pflag.FlagSet) {
	c.addTargetFlags(f)
	view.AddOutputFlag(f, &c.output, "junit")
	f.BoolVar(&c.wait, "wait", false, "wait until nothing is wrong, except warnings")
	f.DurationVar(&c.timeout, "timeout", 5*time.Minute, "how long --wait waits")
}

// topics are the words of diagnose, those of Submariner's tool.
var topics = []struct{ name, alias, short string }{
	{"all", "", "Everything"},
	{"cni", "", "CNI plugin, its mode, and whether packets of pods reach Pelago"},
	{"connections", "", "Gateways, their connections, and paths from nodes"},
	{"firewall", "", "Firewalls, rules and programs of others on nodes"},
	{"kube-proxy-mode", "", "Mode of kube-proxy"},
	{"service-discovery", "", "DNS, exports and imports"},
	{"deployment", "", "Components, definitions, ranges, credentials, clusters, workloads"},
	{"versions", "k8s-version", "Versions of Kubernetes and of the components"},
}

func diagnoseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "diagnose",
		Short: "Run the checks of one topic",
		Long:  "diagnose runs the checks of `pelago check` that belong to one topic. The topics are those of Submariner's tool.",
		Example: `  pelago diagnose all
  pelago diagnose connections --contexts g1,g2`,
		Args: cobra.NoArgs,
	}
	for _, t := range topics {
		var c checks
		sub := &cobra.Command{
			Use: t.name, Short: t.short, Args: cobra.NoArgs,
			Example: "  pelago diagnose " + t.name + " --contexts g1,g2",
			RunE: func(cmd *cobra.Command, _ []string) error {
				if t.name != "all" {
					c.selected.Topic = t.name
				}
				return c.run(cmd.Context(), nil, cmd.OutOrStdout(), cmd.ErrOrStderr())
			},
		}
		if t.alias != "" {
			sub.Aliases = []string{t.alias}
		}
		c.addCheckFlags(sub.Flags())
		cmd.AddCommand(sub)
	}
	return cmd
}

// explainCheck prints the page of a code.
func explainCheck(out io.Writer, code string) error {
	c := check.Find(code)
	if c == nil {
		return fmt.Errorf("--explain %s: there is no such code: see docs/checks.md", code)
	}
	_, err := fmt.Fprint(out, c.Text())
	return err
}

func (c *checks) run(ctx context.Context, args []string, out, errOut io.Writer) error {
	if err := c.selected.Validate(); err != nil {
		return err
	}
	targets, err := c.targets(args)
	if err != nil {
		return err
	}
	if c.nodePods {
		if err := c.runNodePods(ctx, targets, errOut); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(c.timeout)
	var result check.Result
	for said := ""; ; {
		if _, result, err = c.read(ctx, targets); err != nil {
			return err
		}
		if !c.wait || result.Count(check.Error)+result.Count(check.Unknown) == 0 || time.Now().Add(checkInterval).After(deadline) {
			break
		}
		if s := result.Summary(); s != said {
			said = s
			fmt.Fprintln(errOut, s)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(checkInterval):
		}
	}
	if err := result.Print(out, c.output); err != nil {
		return err
	}
	return checkStatus(result)
}

// runNodePods adds to the targets what a pod on each node finds.
func (c *checks) runNodePods(ctx context.Context, targets []check.Target, errOut io.Writer) error {
	for i := range targets {
		m, err := targets[i].Open()
		if err != nil {
			return fmt.Errorf("context %s: %w", targets[i].Context, err)
		}
		if targets[i].Nodes, err = verify.Nodes(ctx, m, c.image, newProgress(errOut)); err != nil {
			return fmt.Errorf("context %s: run pods on the nodes: %w", targets[i].Context, err)
		}
	}
	return nil
}

// read reads the clusters once and evaluates the selected checks.
func (c *checks) read(ctx context.Context, targets []check.Target) (*check.Set, check.Result, error) {
	set := check.Read(ctx, targets, checkTimeout, c.pre || len(c.named) > 0, c.selected)
	if len(set.Clusters) == 0 {
		return nil, check.Result{}, errors.New("none of the contexts is a hub or a cluster in which Pelago runs: name them with --contexts, " +
			"or check one before it joins with `pelago check --pre`")
	}
	return set, check.Run(set, c.selected), nil
}

// checkStatus is the error with the exit status of a result; nil for 0.
func checkStatus(r check.Result) error {
	switch errs, unknown := r.Count(check.Error), r.Count(check.Unknown); {
	case errs > 0:
		return inspect.Status{Code: 1, Text: fmt.Sprintf("%d checks found errors", errs)}
	case unknown > 0:
		return inspect.Status{Code: statusUnknown, Text: fmt.Sprintf("%d checks could not be made", unknown)}
	}
	return nil
}

// targets are the clusters of the flags.
func (c *checks) targets(args []string) ([]check.Target, error) {
	var names []string
	var info *broker.Info
	switch {
	case c.pre && len(c.named) == 0:
		names = []string{""} // the current one
	default:
		var err error
		if names, err = c.contexts(c.named); err != nil {
			return nil, err
		}
	}
	if len(args) > 0 {
		read, err := install.ReadInfo(args[0])
		if err != nil {
			return nil, err
		}
		if err := read.CheckExpiry(time.Now()); err != nil {
			return nil, fmt.Errorf("use %s: %w", args[0], err)
		}
		info = &read
	}
	joining := c.pre && !c.hub || slices.Contains([]string{"cni", "kube-proxy-mode"}, c.selected.Topic)
	var out []check.Target
	for _, name := range names {
		out = append(out, check.Target{Context: name, Joining: joining, Hosting: c.pre && c.hub, Info: info, Open: func() (view.Member, error) { return openQuick(&c.access, name) }})
		if name == "" {
			if raw, err := c.loader("").RawConfig(); err == nil {
				out[len(out)-1].Context = raw.CurrentContext
			}
			if at := c.overrides.CurrentContext; at != "" {
				out[len(out)-1].Context = at
			}
		}
	}
	if c.hubKubeconfig != "" {
		hub := &access{kubeconfig: c.hubKubeconfig}
		out = append(out, check.Target{Context: "hub", Open: func() (view.Member, error) { return openQuick(hub, "") }})
	}
	return out, nil
}

// openQuick opens the cluster of a context with short times for connections: a kubeconfig may name
// clusters that are gone.
func openQuick(a *access, name string) (view.Member, error) {
	cfg, err := a.config(name)
	if err != nil {
		return view.Member{}, err
	}
	cfg.Dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	c, err := openCluster(cfg)
	if err != nil {
		return view.Member{}, err
	}
	return c.Member, nil
}

// refuseUnknown makes commands that only have others below them refuse an unknown one, with a
// suggestion: cobra prints their help, with exit status 0.
func refuseUnknown(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		refuseUnknown(sub)
	}
	if !cmd.HasSubCommands() || cmd.Runnable() || !cmd.HasParent() {
		return
	}
	cmd.Args, cmd.SuggestionsMinimumDistance, cmd.DisableFlagsInUseLine = cobra.ArbitraryArgs, 2, true
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		text := fmt.Sprintf("unknown command %q of `%s`", args[0], cmd.CommandPath())
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return fmt.Errorf("%s: did you mean %s?", text, strings.Join(near, " or "))
		}
		return fmt.Errorf("%s: see `%s --help`", text, cmd.CommandPath())
	}
}
