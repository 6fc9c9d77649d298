package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/control/config"
)

// lookTimeout bounds the time for one cluster, so that an unreachable one does not hide the others.
const lookTimeout = 15 * time.Second

// view makes one table of a member.
type view struct {
	name, short string
	look        func(context.Context, *cluster, config.Config) (table, error)
}

var views = []view{
	{"connections", "Connections to the gateways of other clusters", connections},
	{"endpoints", "Gateways of all clusters, as published to this cluster", endpoints},
	{"networks", "Address ranges", networks},
	{"gateways", "Gateways of this cluster", gateways},
	{"versions", "Running images", versions},
}

// show are the flags of show.
type show struct {
	access   access
	contexts []string
	output   string
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
	for _, v := range views {
		cmd.AddCommand(viewCommand(v.name, v.short, []view{v}))
	}
	cmd.AddCommand(viewCommand("all", "All of these", views))
	return cmd
}

func viewCommand(name, short string, shown []view) *cobra.Command {
	var s show
	cmd := &cobra.Command{
		Use: name, Short: short, Args: cobra.NoArgs,
		Example: fmt.Sprintf("  pelago show %s\n  pelago show %s --contexts g1,g2 -o json", name, name),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.run(cmd.Context(), shown, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.access.addFlags(cmd.Flags())
	cmd.Flags().StringSliceVar(&s.contexts, "contexts", nil, "contexts of the kubeconfig (default: all)")
	addOutputFlag(cmd, &s.output)
	return cmd
}

// clusterState is what -o json and -o yaml print of one cluster.
type clusterState struct {
	Context string           `json:"context"`
	Cluster string           `json:"cluster"`
	Shown   map[string][]any `json:"shown"`
}

func (s *show) run(ctx context.Context, shown []view, out, errOut io.Writer) error {
	contexts, err := s.access.contexts(s.contexts)
	if err != nil {
		return err
	}
	states := []clusterState{}
	var errs []error
	for _, name := range contexts {
		state, err := s.cluster(ctx, name, shown, out)
		if errors.Is(err, errNotJoined) && len(contexts) > 1 {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("context %s: %w", name, err))
			continue
		}
		states = append(states, state)
	}
	if len(states) == 0 && len(errs) == 0 {
		return fmt.Errorf("none of the contexts %s is a cluster in which Pelago runs: join one with `pelago join`", strings.Join(contexts, ", "))
	}
	if len(s.contexts) == 0 && len(states) > 0 {
		for _, err := range errs {
			fmt.Fprintln(errOut, "warning:", err)
		}
		errs = nil
	}
	return errors.Join(append(errs, s.print(out, states))...)
}

// errNotJoined: Pelago is not installed in a cluster.
var errNotJoined = errors.New("the cluster has not joined a clusterset: join it with `pelago join`")

// cluster reads one cluster and prints its tables at once unless the output is JSON or YAML.
func (s *show) cluster(ctx context.Context, name string, shown []view, out io.Writer) (clusterState, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	cfg, err := s.access.config(name)
	if err != nil {
		return clusterState{}, err
	}
	m, err := openCluster(cfg)
	if err != nil {
		return clusterState{}, err
	}
	c, err := m.former(ctx)
	if err != nil {
		return clusterState{}, err
	}
	if c.ClusterID == "" {
		return clusterState{}, errNotJoined
	}
	return s.look(ctx, name, m, c, shown, out)
}

func (s *show) look(ctx context.Context, name string, m *cluster, c config.Config, shown []view, out io.Writer) (clusterState, error) {
	state := clusterState{Context: name, Cluster: c.ClusterID, Shown: map[string][]any{}}
	tables := make([]table, len(shown))
	for i, v := range shown {
		var err error
		if tables[i], err = v.look(ctx, m, c); err != nil {
			return clusterState{}, err
		}
		state.Shown[v.name] = tables[i].objects()
	}
	if s.output == "table" || s.output == "wide" {
		fmt.Fprintf(out, "Cluster %q\n", c.ClusterID)
		for _, t := range tables {
			if err := t.print(out, s.output == "wide"); err != nil {
				return state, err
			}
		}
	}
	return state, nil
}

// print writes JSON or YAML; tables are printed per cluster.
func (s *show) print(out io.Writer, states []clusterState) error {
	if s.output == "json" || s.output == "yaml" {
		return encode(out, s.output, states)
	}
	return nil
}
