package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// taintChange adds a taint, or removes those of a key (and effect, if there is one).
type taintChange struct {
	taint  clusterv1alpha1.Taint
	remove bool
}

var cordonTaint = clusterv1alpha1.Taint{Key: clusterv1alpha1.TaintUnschedulable, Effect: corev1.TaintEffectNoSchedule}

func cordonCommand() *cobra.Command {
	return taintsCommand(&cobra.Command{
		Use:   "cordon CLUSTER",
		Short: "Keep new workloads away from a cluster",
		Long: `cordon puts the taint ` + clusterv1alpha1.TaintUnschedulable + `:NoSchedule on a cluster: what runs
there stays, nothing new is sent there unless its policy tolerates the taint.`,
		Example: "  pelago cordon m1",
		Args:    cobra.ExactArgs(1),
	}, func([]string) ([]taintChange, error) { return []taintChange{{taint: cordonTaint}}, nil }, "cordoned")
}

func uncordonCommand() *cobra.Command {
	return taintsCommand(&cobra.Command{
		Use:     "uncordon CLUSTER",
		Short:   "Let workloads come to a cluster again",
		Long:    "uncordon takes the taint away that cordon has put on a cluster.",
		Example: "  pelago uncordon m1",
		Args:    cobra.ExactArgs(1),
	}, func([]string) ([]taintChange, error) { return []taintChange{{taint: cordonTaint, remove: true}}, nil }, "uncordoned")
}

func taintCommand() *cobra.Command {
	var overwrite bool
	parent := &cobra.Command{Use: "taint", Short: "Change the taints of clusters", Args: cobra.NoArgs}
	cmd := taintsCommand(&cobra.Command{
		Use:     "clusters NAME KEY=VALUE:EFFECT ... | KEY:EFFECT- ... | KEY- ...",
		Aliases: []string{"cluster"},
		Short:   "Add or remove taints of a cluster",
		Long: `taint clusters adds taints to a cluster, or removes those that end with "-". Effects are NoSchedule
(nothing new is sent there) and NoExecute (what runs there has to leave as well).`,
		Example: `  pelago taint clusters m1 maintenance=true:NoSchedule
  pelago taint clusters m1 maintenance=false:NoSchedule --overwrite
  pelago taint clusters m1 maintenance:NoSchedule-`,
		Args: cobra.MinimumNArgs(2),
	}, parseTaints, "tainted as you say")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "change the value of a taint that is there")
	parent.AddCommand(cmd)
	return parent
}

// taintsCommand changes the taints of the cluster that is the first argument, as the others say.
func taintsCommand(cmd *cobra.Command, parse func([]string) ([]taintChange, error), done string) *cobra.Command {
	var flags hubFlags
	cmd.ValidArgsFunction = flags.completeCluster
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		changes, err := parse(args[1:])
		if err != nil {
			return err
		}
		h, err := flags.open()
		if err != nil {
			return err
		}
		overwrite := cmd.Flags().Lookup("overwrite")
		return h.taint(cmd.Context(), args[0], changes, overwrite != nil && overwrite.Value.String() == "true", done, cmd.OutOrStdout())
	}
	flags.add(cmd)
	return cmd
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
		same := clusterv1alpha1.Taint{Key: key, Effect: corev1.TaintEffect(effect)}
		if seen[same] {
			return nil, fmt.Errorf("taint %q: %s is named twice", arg, text)
		}
		seen[same] = true
		out = append(out, taintChange{clusterv1alpha1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}, remove})
	}
	return out, nil
}

// tainted is the list with the changes; it is pure. The time goes to taints that make workloads leave.
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
func (h *hub) taint(ctx context.Context, name string, changes []taintChange, overwrite bool, done string, out io.Writer) error {
	changed, err := h.change(ctx, name, func(c *clusterv1alpha1.Cluster) (err error) {
		c.Spec.Taints, err = tainted(c.Spec.Taints, changes, overwrite, metav1.NewTime(time.Now()))
		return err
	})
	if err != nil {
		return err
	}
	if !changed {
		fmt.Fprintf(out, "Cluster %s was %s before\n", name, done)
		return nil
	}
	fmt.Fprintf(out, "Cluster %s is %s\n", name, done)
	return nil
}
