package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// unapprovedTaint keeps workloads away from a cluster until an administrator of the hub accepts it.
var unapprovedTaint = clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnapproved, Effect: corev1.TaintEffectNoSchedule}

func clustersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Accept or reject clusters as members for workloads",
		Long: `clusters decides which clusters get workloads. A cluster that joins with
broker-info.subm gets none before an administrator of the hub accepts it, unless
the hub was set up with deploy-broker --auto-accept. See pelago get clusters.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(acceptCommand(), rejectCommand())
	return cmd
}

func acceptCommand() *cobra.Command {
	var flags hubFlags
	var p place
	var labels map[string]string
	cmd := &cobra.Command{
		Use:   "accept CLUSTER",
		Short: "Let workloads come to a cluster",
		Long: `accept removes the taint ` + clusterv1alpha1.TaintUnapproved + ` from a cluster and sets the labels and
the place by which policies select it. Run it again to change those.`,
		Example: "  pelago clusters accept c1 --label env=prod --region eu",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: flags.completeCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkLabels(labels); err != nil {
				return err
			}
			h, err := flags.open()
			if err != nil {
				return err
			}
			if _, err := h.change(cmd.Context(), args[0], func(c *clusterv1alpha1.Cluster) error {
				c.Spec.Taints = slices.DeleteFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool { return t.Key == unapprovedTaint.Key })
				if c.Labels == nil {
					c.Labels = map[string]string{}
				}
				maps.Copy(c.Labels, labels)
				p.apply(&c.Spec)
				return nil
			}); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Cluster %s is accepted\n", args[0])
			return nil
		},
	}
	f := cmd.Flags()
	flags.add(cmd)
	f.StringToStringVar(&labels, "label", nil, "label by which policies select the cluster; may be repeated")
	f.StringVar(&p.provider, "provider", "", "provider of the cluster, by which workloads are spread")
	f.StringVar(&p.region, "region", "", "region of the cluster, by which workloads are spread")
	f.StringSliceVar(&p.zones, "zone", nil, "zone of the cluster, by which workloads are spread; may be repeated")
	return cmd
}

func rejectCommand() *cobra.Command {
	var flags hubFlags
	cmd := &cobra.Command{
		Use:   "reject CLUSTER",
		Short: "Keep workloads away from a cluster, whatever its policies tolerate",
		Long: `reject puts the taint ` + clusterv1alpha1.TaintUnapproved + `:NoSchedule on a cluster: nothing new is sent
there. What was sent stays; pelago unjoin removes it with the cluster.`,
		Example: "  pelago clusters reject c1",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: flags.completeCluster,
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := flags.open()
			if err != nil {
				return err
			}
			if _, err := h.change(cmd.Context(), args[0], func(c *clusterv1alpha1.Cluster) error {
				if c.Accepted() {
					c.Spec.Taints = append(c.Spec.Taints, unapprovedTaint)
				}
				return nil
			}); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Cluster %s is rejected\n", args[0])
			return nil
		},
	}
	flags.add(cmd)
	return cmd
}

func checkLabels(labels map[string]string) error {
	for key, value := range labels {
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			return fmt.Errorf("--label %s=%s: %s", key, value, strings.Join(errs, "; "))
		}
	}
	return nil
}

// change writes a change of a Cluster; changed reports whether there was one.
func (h *hub) change(ctx context.Context, name string, edit func(*clusterv1alpha1.Cluster) error) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cluster := &clusterv1alpha1.Cluster{}
		if err := h.client.Get(ctx, client.ObjectKey{Name: name}, cluster); err != nil {
			return err
		}
		before := cluster.DeepCopy()
		if err := edit(cluster); err != nil {
			return err
		}
		if changed = !equality.Semantic.DeepEqual(before, cluster); !changed {
			return nil
		}
		return h.client.Patch(ctx, cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if apierrors.IsNotFound(err) {
		all, listErr := h.clusters(ctx)
		if listErr != nil {
			return false, listErr
		}
		return false, unknownCluster(name, all)
	}
	if err != nil {
		return false, fmt.Errorf("change Cluster %s: %w", name, err)
	}
	return changed, nil
}
