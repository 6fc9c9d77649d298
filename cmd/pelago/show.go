package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/member"
)

const (
	// clusterTimeout bounds the time for one cluster, so that an unreachable one does not hide the
	// others.
	clusterTimeout = 15 * time.Second
	// connectTimeout bounds the time for one connection to the API server of a context: a
	// kubeconfig may name clusters that are gone.
	connectTimeout = 4 * time.Second
)

// show are the flags of show.
type show struct {
	access
	named []string
}

func showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the state of the clusters",
		Long: `show prints the state of every cluster of the kubeconfig in which Pelago runs;
--context and --contexts narrow it down.`,
		Example: `  pelago show connections
  pelago show all --contexts g1,g2
  pelago show gateways --context g1 -o yaml`,
		Args: cobra.NoArgs,
	}
	for _, v := range view.Views {
		cmd.AddCommand(viewCommand(v.Name, v.Short, []view.View{v}))
	}
	cmd.AddCommand(viewCommand("all", "All of these", view.Views))
	return cmd
}

func viewCommand(name, short string, shown []view.View) *cobra.Command {
	var s show
	cmd := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		Example: fmt.Sprintf("  pelago show %s\n  pelago show %s --contexts g1,g2 -o json", name, name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd.Context(), shown, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.addFlags(cmd.Flags())
	cmd.Flags().StringSliceVar(&s.named, "contexts", nil, "contexts of the kubeconfig (default: all)")
	view.AddOutputFlag(cmd.Flags(), &s.output)
	return cmd
}

func (s *show) run(ctx context.Context, shown []view.View, out, errOut io.Writer) error {
	contexts, err := s.contexts(s.named)
	if err != nil {
		return err
	}
	found, failed, printed := make([]view.State, len(contexts)), make([]error, len(contexts)), make([]bytes.Buffer, len(contexts))
	var group errgroup.Group
	group.SetLimit(view.MaxMembers)
	for i, name := range contexts {
		group.Go(func() error {
			found[i], failed[i] = s.cluster(ctx, name, shown, &printed[i])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	states := []view.State{}
	var errs []error
	for i, name := range contexts {
		switch err := failed[i]; {
		case (errors.Is(err, errNotJoined) || errors.Is(err, errNoNetwork)) && len(contexts) > 1:
			continue
		case err != nil:
			errs = append(errs, fmt.Errorf("context %s: %w", name, err))
			continue
		}
		if _, err := printed[i].WriteTo(out); err != nil {
			return err
		}
		states = append(states, found[i])
	}
	if len(states) == 0 && len(errs) == 0 {
		return fmt.Errorf("none of the contexts %s is a cluster in which Pelago runs: join one with `pelago join`", strings.Join(contexts, ", "))
	}
	if len(s.named) == 0 && len(states) > 0 {
		for _, err := range errs {
			fmt.Fprintln(errOut, "warning:", err)
		}
		errs = nil
	}
	return errors.Join(append(errs, view.Encode(out, s.output, states))...)
}

// errNotJoined: Pelago is not installed in a cluster.
var errNotJoined = errors.New("the cluster has not joined a clusterset: join it with `pelago join`")

// errNoNetwork: a view of the network is asked of a cluster without it.
var errNoNetwork = errors.New("the cluster has joined with --workloads-only and has no part in the network; see `pelago get clusters` at the hub")

// cluster reads one cluster and prints its tables unless the output is JSON or YAML.
func (s *show) cluster(ctx context.Context, name string, shown []view.View, out io.Writer) (view.State, error) {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	cfg, err := s.config(name)
	if err != nil {
		return view.State{}, err
	}
	cfg.Dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	m, err := openCluster(cfg)
	if err != nil {
		return view.State{}, err
	}
	c, err := member.Former(ctx, m.Client)
	if err != nil {
		return view.State{}, err
	}
	if c.ClusterID == "" {
		return view.State{}, errNotJoined
	}
	if c.WorkloadsOnly {
		shown = slices.DeleteFunc(slices.Clone(shown), func(v view.View) bool { return v.Name != "versions" })
	}
	if len(shown) == 0 {
		return view.State{}, errNoNetwork
	}
	return view.Show(ctx, s.output, name, m.Member, c, shown, out)
}
