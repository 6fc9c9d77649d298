package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/broker"
)

func exportCommand() *cobra.Command {
	parent := &cobra.Command{Use: "export", Short: "Export services to the other clusters", Args: cobra.NoArgs}
	var vip bool
	var to string
	var flags *pflag.FlagSet
	cmd := serviceCommand("Export a service to the other clusters",
		"services", `export service creates a ServiceExport of the same name. The other clusters reach the
service as NAME.NAMESPACE.svc.clusterset.local; the result is in the
conditions of the ServiceExport.

--to restricts the clusters: the others get no import and no DNS name, and their
packets are dropped (drop-not-exported). Connections of a cluster that is no longer
among them end. Without globalnet, pods of headless services stay reachable under
their own addresses. --to "" lifts the restriction; without the flag it stays.`,
		`  pelago export service whereami-cs --namespace sample
  kubectl -n sample wait serviceexport/whereami-cs --for=condition=Ready
  # with one address for all clusters
  pelago export service whereami-cs --namespace sample --use-clusterset-ip
  # to some clusters: by name, or by the labels of "pelago clusters accept --label"
  pelago export service whereami-cs --namespace sample --to c1,c2
  pelago export service whereami-cs --namespace sample --to 'env=prod'
  # to all clusters again
  pelago export service whereami-cs --namespace sample --to ""`,
		func(ctx context.Context, c client.Client, key client.ObjectKey, out io.Writer) error {
			annotations := map[string]*string{}
			if flags.Changed("use-clusterset-ip") {
				annotations[submarinerv1.AnnotationUseClusterSetIP] = ptr.To(strconv.FormatBool(vip))
			}
			switch {
			case to != "":
				if _, err := topology.ParseAudience(to); err != nil {
					return fmt.Errorf("--to: %w", err)
				}
				annotations[v1alpha1.AnnotationExportTo] = &to
			case flags.Changed("to"):
				annotations[v1alpha1.AnnotationExportTo] = nil
			}
			return broker.Export(ctx, c, key, annotations, out)
		})
	flags = cmd.Flags()
	flags.BoolVar(&vip, "use-clusterset-ip", false, "give the service a ClusterSetIP, one address in all clusters, or with =false none (default: what the cluster joined with)")
	flags.StringVar(&to, "to", "", "clusters to which the service is exported: a list of ids, or a selector of their labels; \"\": all (default: all, or those of before)")
	parent.AddCommand(cmd)
	return parent
}

func unexportCommand() *cobra.Command {
	parent := &cobra.Command{Use: "unexport", Short: "Stop exporting services to the other clusters", Args: cobra.NoArgs}
	parent.AddCommand(serviceCommand("Stop exporting a service to the other clusters",
		"serviceexports.multicluster.x-k8s.io", "unexport service deletes the ServiceExport of the same name; the service itself stays.",
		"  pelago unexport service whereami-cs --namespace sample", broker.Unexport))
	return parent
}

// serviceCommand is a command about a Service, whose name is completed by those of the objects of
// kind.
func serviceCommand(short, kind, long, example string, do func(context.Context, client.Client, client.ObjectKey, io.Writer) error) *cobra.Command {
	var a access
	cmd := &cobra.Command{
		Use: "service NAME", Short: short, Long: long, Example: example, Args: cobra.ExactArgs(1),
		RunE: a.run(func(ctx context.Context, c *cluster, args []string, out io.Writer) error {
			return do(ctx, c.Client, client.ObjectKey{Namespace: c.namespace, Name: args[0]}, out)
		}),
	}
	cmd.ValidArgsFunction = a.complete(func(ctx context.Context, c *cluster, args []string, _ string) []string {
		if len(args) > 0 {
			return nil
		}
		return c.objects(ctx, kind)
	})
	a.addFlags(cmd.Flags())
	a.addNamespace(cmd.Flags())
	return cmd
}
