package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/cmd/top"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// topCommand is kubectl's top for one, several or all members of the hub.
func topCommand(streams genericiooptions.IOStreams) *cobra.Command {
	t := topMembers{flags: genericclioptions.NewConfigFlags(true), streams: streams}
	factory := cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(t.flags)) // completes names of the hub
	pods, nodes := &top.TopPodOptions{UseProtocolBuffers: true}, &top.TopNodeOptions{UseProtocolBuffers: true}
	cmd := &cobra.Command{
		Use: "top", Short: "Show the processor time and memory that pods and nodes use",
		Long: `top asks the metrics API of the clusters that -C names, or of all, and prints one table; of a single
named cluster it prints that of kubectl. A cluster that cannot be asked is a warning, one that is named an
error.`, Args: cobra.NoArgs,
	}
	cmd.AddCommand(
		t.command(top.NewCmdTopPod(factory, pods, streams), &pods.NoHeaders, &pods.Sum,
			func(f cmdutil.Factory, c *cobra.Command, args []string, to genericiooptions.IOStreams) error {
				o := *pods
				o.IOStreams = to
				if err := errors.Join(o.Complete(f, c, args), o.Validate()); err != nil {
					return err
				}
				return o.RunTopPod()
			}),
		t.command(top.NewCmdTopNode(factory, nodes, streams), &nodes.NoHeaders, new(bool),
			func(f cmdutil.Factory, c *cobra.Command, args []string, to genericiooptions.IOStreams) error {
				o := *nodes
				o.IOStreams = to
				if err := errors.Join(o.Complete(f, c, args), o.Validate()); err != nil {
					return err
				}
				return o.RunTopNode()
			}))
	cmd.Example = "  pelago top pod -n shop\n  pelago top node -C m1,m2 --sort-by cpu\n  pelago top pod -C m1 --containers"
	t.flags.AddFlags(cmd.PersistentFlags())
	cmd.PersistentFlags().StringSliceVarP(&t.named, "clusters", "C", nil, "the clusters, by their names at the hub (default: all)")
	return cmd
}

// topMembers are the flags of top that pods and nodes share.
type topMembers struct {
	flags   *genericclioptions.ConfigFlags
	streams genericiooptions.IOStreams
	named   []string
}

// usage writes kubectl's table of one cluster.
type usage func(f cmdutil.Factory, c *cobra.Command, args []string, to genericiooptions.IOStreams) error

// command gives a command of kubectl the clusters; noHeaders and sum are its flags.
func (t *topMembers) command(kubectl *cobra.Command, noHeaders, sum *bool, of usage) *cobra.Command {
	kubectl.Example = strings.ReplaceAll(kubectl.Example, "kubectl top", "pelago top")
	kubectl.Long += throughHub
	kubectl.Run = nil
	kubectl.RunE = func(cmd *cobra.Command, args []string) error {
		// kubectl's commands do not end with their context
		signal.Reset(os.Interrupt, syscall.SIGTERM)
		hub, err := t.flags.ToRawKubeConfigLoader().ClientConfig()
		if err != nil {
			return err
		}
		if err := checkHub(hub); err != nil {
			return err
		}
		if len(t.named) == 1 {
			return of(t.factory(t.named[0]), cmd, args, t.streams)
		}
		if *sum {
			return errors.New("--sum adds up the pods of one cluster: name it with -C")
		}
		hidden := *noHeaders
		*noHeaders = false // the columns of the clusters are matched by them
		return t.all(cmd.Context(), hub, hidden, func(cluster string, to genericiooptions.IOStreams) error {
			return of(t.factory(cluster), cmd, args, to)
		})
	}
	return kubectl
}

// throughMember is access to the hub that leads to a member; its discovery client is the hub's, and
// top has one of its own.
type throughMember struct {
	genericclioptions.RESTClientGetter
	cluster string
}

// ToRESTConfig is that of the member.
func (m throughMember) ToRESTConfig() (*rest.Config, error) {
	hub, err := m.RESTClientGetter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	return Through(hub, m.cluster), nil
}

// factory is the access of kubectl's commands to a member.
func (t *topMembers) factory(cluster string) cmdutil.Factory {
	return cmdutil.NewFactory(throughMember{t.flags, cluster})
}

// all asks the named clusters, or those of the hub, at the same time, and prints one table.
func (t *topMembers) all(ctx context.Context, hub *rest.Config, hidden bool, of func(string, genericiooptions.IOStreams) error) error {
	clusters := t.named
	if len(clusters) == 0 {
		c, err := manifests.Open(hub)
		if err != nil {
			return err
		}
		var list clusterv1alpha1.ClusterList
		if err := c.Client.List(ctx, &list); err != nil {
			return fmt.Errorf("list Clusters: %w", err)
		}
		for i := range list.Items {
			clusters = append(clusters, list.Items[i].Name)
		}
		slices.Sort(clusters)
	}
	tables, errs := make([]bytes.Buffer, len(clusters)), make([]error, len(clusters))
	var group errgroup.Group
	group.SetLimit(view.MaxMembers)
	for i, cluster := range clusters {
		group.Go(func() error {
			// kubectl writes there that a cluster has none
			if err := of(cluster, genericiooptions.IOStreams{In: t.streams.In, Out: &tables[i], ErrOut: io.Discard}); err != nil {
				errs[i] = fmt.Errorf("cluster %s: %w", cluster, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := t.print(clusters, tables, hidden); err != nil {
		return err
	}
	failed := slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(t.named) > 0 || len(failed) > 0 && len(failed) == len(clusters) {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		fmt.Fprintln(t.streams.ErrOut, "warning:", err)
	}
	return nil
}

// print joins kubectl's tables of the clusters into one with the column CLUSTER; hidden: without
// the header.
func (t *topMembers) print(clusters []string, tables []bytes.Buffer, hidden bool) error {
	w := printers.GetNewTabWriter(t.streams.Out)
	rows := 0
	for i, cluster := range clusters {
		for n, line := range strings.Split(strings.TrimSpace(tables[i].String()), "\n") {
			cells := strings.Fields(line)
			if len(cells) == 0 || n == 0 && (hidden || rows > 0) {
				continue
			}
			name := cluster
			if n == 0 {
				name = "CLUSTER"
			}
			rows++
			fmt.Fprintln(w, strings.Join(slices.Insert(cells, 0, name), "\t"))
		}
	}
	if rows == 0 {
		fmt.Fprintln(t.streams.ErrOut, "No resources found.")
	}
	return w.Flush()
}
