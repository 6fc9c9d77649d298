package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/member"
)

func clustersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "Accept or reject clusters as members",
		Long: `clusters decides which clusters take part. One that joins with broker-info.subm is
connected to no other cluster, and gets neither workloads nor namespaces, before an
administrator of the hub accepts it, unless the hub was set up with deploy-broker
--auto-accept. See pelago get clusters and pelago status.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(acceptCommand(), rejectCommand(), evictCommand())
	return cmd
}

// clusterCommand completes a command whose first argument is the name of a cluster of the hub.
func clusterCommand(cmd *cobra.Command, do action) *cobra.Command {
	var a access
	a.addFlags(cmd.Flags())
	if cmd.Args == nil {
		cmd.Args = cobra.ExactArgs(1)
	}
	cmd.ValidArgsFunction = a.complete(clusterNames)
	cmd.RunE = a.run(do)
	return cmd
}

// decisionCommand completes a command that accepts or rejects clusters, for the network and for
// workloads. The labels are set for both.
func decisionCommand(cmd *cobra.Command, accept bool, edit func(*clusterv1alpha1.Cluster), labels *map[string]string) *cobra.Command {
	cmd.Args = cobra.MinimumNArgs(1)
	done := map[bool]string{true: "accepted", false: "rejected"}[accept]
	return clusterCommand(cmd, func(ctx context.Context, h *cluster, args []string, out io.Writer) error {
		for _, name := range args {
			network, err := broker.Approve(ctx, h.Client, name, accept, *labels)
			if err != nil {
				return err
			}
			err = h.Client.Get(ctx, client.ObjectKey{Name: name}, &clusterv1alpha1.Cluster{})
			if network && (apierrors.IsNotFound(err) || meta.IsNoMatchError(err)) {
				fmt.Fprintf(out, "Cluster %s is %s; it takes part in the network only\n", name, done)
				continue
			}
			if _, err := h.change(ctx, name, func(c *clusterv1alpha1.Cluster) error {
				edit(c)
				return nil
			}); err != nil {
				return err
			}
			fmt.Fprintf(out, "Cluster %s is %s\n", name, done)
		}
		return nil
	})
}

func acceptCommand() *cobra.Command {
	var p member.Place
	var labels map[string]string
	cmd := decisionCommand(&cobra.Command{
		Use:   "accept CLUSTER...",
		Short: "Accept clusters as members",
		Long: `accept lets other clusters connect to a cluster, and the hub send it workloads: it removes
` + clusterv1alpha1.TaintUnapproved + `, an annotation and a taint, from its two Cluster objects. It also sets
the labels and the place by which policies select it. Run it again to change those.`,
		Example: `  pelago clusters accept c1 c2
  pelago clusters accept c1 --label env=prod --region eu`,
		PreRunE: func(*cobra.Command, []string) error { return checkLabels(labels) },
	}, true, func(c *clusterv1alpha1.Cluster) {
		c.Spec.Taints = slices.DeleteFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool { return t.Key == clusterv1alpha1.TaintUnapproved })
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		maps.Copy(c.Labels, labels)
		p.Apply(&c.Spec)
	}, &labels)
	f := cmd.Flags()
	f.StringToStringVar(&labels, "label", nil, "label by which policies, and exports with annotation pelago.io/export-to, select the cluster; may be repeated")
	f.StringVar(&p.Provider, "provider", "", "provider of the cluster, for spread constraints")
	f.StringVar(&p.Region, "region", "", "region of the cluster, for spread constraints")
	f.StringSliceVar(&p.Zones, "zone", nil, "zone of the cluster, for spread constraints; may be repeated")
	return cmd
}

func rejectCommand() *cobra.Command {
	return decisionCommand(&cobra.Command{
		Use:   "reject CLUSTER...",
		Short: "Disconnect clusters and stop scheduling to them, regardless of tolerations",
		Long: `reject makes the other clusters drop their connections to a cluster and its services, and
adds the taint ` + clusterv1alpha1.TaintUnapproved + `:NoSchedule: nothing new is scheduled there. Workloads
that run there stay; pelago unjoin removes them with the cluster. To stop scheduling
alone, use pelago cordon.`,
		Example: "  pelago clusters reject c1",
	}, false, func(c *clusterv1alpha1.Cluster) {
		if c.Accepted() {
			c.Spec.Taints = append(c.Spec.Taints, member.UnapprovedTaint)
		}
	}, new(map[string]string))
}

func evictCommand() *cobra.Command {
	var l member.Leaving
	var confirm func(question string) error
	cmd := clusterCommand(&cobra.Command{
		Use:   "evict CLUSTER",
		Short: "Remove a cluster that is not trusted any more, at once",
		Long: `evict removes a cluster from its hub without its help. First it revokes the cluster's
rights, deletes its keys and lets the other clusters drop their connections to it; then
it removes what the hub holds of it. What was propagated to a pull member stays there,
and is listed; a push member is cleaned by the hub, with --now for at most --timeout.
The cluster's tokens end with their ServiceAccount; API servers accept them for up to
10 s more.

The pre-shared key of IPsec, which all clusters have, stays valid. For a cluster that
leaves in good order use pelago unjoin.`,
		Example: `  pelago clusters evict c2
  pelago clusters evict c2 --now --yes`,
	}, func(ctx context.Context, h *cluster, args []string, out io.Writer) error {
		if err := confirm(fmt.Sprintf("Evict cluster %s from the hub at %s?", args[0], h.Config.Host)); err != nil {
			return err
		}
		l.Progress = newProgress(out)
		return member.Evict(ctx, h.Client, args[0], l)
	})
	confirm = view.AddConfirmation(cmd, "skip the confirmation prompt")
	f := cmd.Flags()
	f.BoolVar(&l.Force, "now", false, "give a push member up that the hub cannot clean within --timeout")
	f.BoolVar(&l.IgnoreNotFound, "ignore-not-found", false, "succeed if the hub has no such cluster")
	f.DurationVar(&l.Timeout, "timeout", 2*time.Minute, "how long to wait until the hub has removed what it holds")
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

// change edits a Cluster; changed reports whether the edit made a difference.
func (h *cluster) change(ctx context.Context, name string, edit func(*clusterv1alpha1.Cluster) error) (changed bool, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cluster := &clusterv1alpha1.Cluster{}
		if err := h.Client.Get(ctx, client.ObjectKey{Name: name}, cluster); err != nil {
			return err
		}
		before := cluster.DeepCopy()
		if err := edit(cluster); err != nil {
			return err
		}
		if changed = !equality.Semantic.DeepEqual(before, cluster); !changed {
			return nil
		}
		return h.Client.Patch(ctx, cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		if _, missing := h.clusters(ctx, name); missing != nil {
			return false, missing
		}
		return false, fmt.Errorf("change Cluster %s: %w", name, err)
	}
	return changed, nil
}

// taintChange adds a taint, or removes those of a key (and effect, if there is one).
type taintChange struct {
	taint  clusterv1alpha1.Taint
	remove bool
}

func cordonCommand() *cobra.Command {
	return cordoning(&cobra.Command{
		Use:   "cordon CLUSTER",
		Short: "Mark a cluster as unschedulable",
		Long: `cordon adds the taint ` + clusterv1alpha1.TaintUnschedulable + `:NoSchedule to a cluster: what runs
there stays, nothing new is scheduled there unless its policy tolerates the taint.`,
		Example: "  pelago cordon m1",
	}, false, "cordoned")
}

func uncordonCommand() *cobra.Command {
	return cordoning(&cobra.Command{
		Use:     "uncordon CLUSTER",
		Short:   "Mark a cluster as schedulable",
		Long:    "uncordon removes the taint of cordon from a cluster.",
		Example: "  pelago uncordon m1",
	}, true, "uncordoned")
}

func cordoning(cmd *cobra.Command, remove bool, done string) *cobra.Command {
	taint := clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnschedulable, Effect: corev1.TaintEffectNoSchedule}
	return clusterCommand(cmd, func(ctx context.Context, h *cluster, args []string, out io.Writer) error {
		return h.taint(ctx, args[0], []taintChange{{taint, remove}}, false, done, out)
	})
}

func taintCommand() *cobra.Command {
	var overwrite bool
	var changes []taintChange
	parent := &cobra.Command{Use: "taint", Short: "Change the taints of clusters", Args: cobra.NoArgs}
	cmd := clusterCommand(&cobra.Command{
		Use:     "clusters NAME KEY=VALUE:EFFECT ... | KEY:EFFECT- ... | KEY- ...",
		Aliases: []string{"cluster"},
		Short:   "Add or remove taints of a cluster",
		Long: `taint clusters adds taints to a cluster, or removes those that end with "-". Effects are NoSchedule
(nothing new is scheduled there) and NoExecute (what runs there is evicted as well).`,
		Example: `  pelago taint clusters m1 maintenance=true:NoSchedule
  pelago taint clusters m1 maintenance=false:NoSchedule --overwrite
  pelago taint clusters m1 maintenance:NoSchedule-`,
		Args: cobra.MinimumNArgs(2),
		PreRunE: func(_ *cobra.Command, args []string) (err error) {
			changes, err = parseTaints(args[1:])
			return err
		},
	}, func(ctx context.Context, h *cluster, args []string, out io.Writer) error {
		return h.taint(ctx, args[0], changes, overwrite, "tainted as requested", out)
	})
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "change the value of an existing taint")
	parent.AddCommand(cmd)
	return parent
}

// parseTaints reads kubectl's form.
func parseTaints(args []string) ([]taintChange, error) {
	var out []taintChange
	seen := map[clusterv1alpha1.Taint]bool{}
	for _, arg := range args {
		text, remove := strings.CutSuffix(arg, "-")
		pair, effect, hasEffect := strings.Cut(text, ":")
		key, value, _ := strings.Cut(pair, "=")
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			return nil, fmt.Errorf("taint %q: the key %q: %s", arg, key, strings.Join(errs, "; "))
		}
		if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
			return nil, fmt.Errorf("taint %q: the value %q: %s", arg, value, strings.Join(errs, "; "))
		}
		switch e := corev1.TaintEffect(effect); {
		case remove && !hasEffect:
		case e != corev1.TaintEffectNoSchedule && e != corev1.TaintEffectNoExecute:
			return nil, fmt.Errorf("taint %q: write KEY=VALUE:EFFECT, the effect NoSchedule or NoExecute, with \"-\" at the end to remove it",
				arg)
		}
		taint := clusterv1alpha1.Taint{Key: key, Effect: corev1.TaintEffect(effect)}
		if seen[taint] {
			return nil, fmt.Errorf("taint %q: %s is named twice", arg, text)
		}
		seen[taint] = true
		taint.Value = value
		out = append(out, taintChange{taint, remove})
	}
	return out, nil
}

// tainted returns the taints after the changes; it is pure. Taints that evict workloads (NoExecute)
// get now as timeAdded.
func tainted(
	taints []clusterv1alpha1.Taint, changes []taintChange, overwrite bool, now metav1.Time,
) ([]clusterv1alpha1.Taint, error) {
	out := slices.Clone(taints)
	for _, c := range changes {
		if c.remove {
			out = slices.DeleteFunc(out, func(t clusterv1alpha1.Taint) bool {
				return t.Key == c.taint.Key && (c.taint.Effect == "" || t.Effect == c.taint.Effect)
			})
			continue
		}
		add := c.taint
		if add.Effect == corev1.TaintEffectNoExecute {
			add.TimeAdded = ptr.To(now)
		}
		i := slices.IndexFunc(out, func(t clusterv1alpha1.Taint) bool { return t.Key == add.Key && t.Effect == add.Effect })
		switch {
		case i < 0:
			out = append(out, add)
		case out[i].Value == add.Value:
		case !overwrite:
			return nil, fmt.Errorf("it has %s=%s:%s already: use --overwrite", add.Key, out[i].Value, add.Effect)
		default:
			out[i] = add
		}
	}
	return out, nil
}

// taint writes the changes of a cluster's taints.
func (h *cluster) taint(ctx context.Context, name string, changes []taintChange, overwrite bool, done string, out io.Writer) error {
	changed, err := h.change(ctx, name, func(c *clusterv1alpha1.Cluster) (err error) {
		c.Spec.Taints, err = tainted(c.Spec.Taints, changes, overwrite, metav1.NewTime(time.Now()))
		return err
	})
	if err != nil {
		return err
	}
	state := "is"
	if !changed {
		state, done = "was", done+" before"
	}
	fmt.Fprintf(out, "Cluster %s %s %s\n", name, state, done)
	return nil
}
