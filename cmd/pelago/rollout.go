package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

func rolloutCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Show and control how a revision of a workload reaches clusters",
		Long: `rollout is about workloads whose policy has the annotation pelago.io/rollout: a new revision
reaches clusters in waves, and stops where it is unhealthy.`,
		Args: cobra.NoArgs,
	}
	cmd.AddCommand(
		aboutCommand(&cobra.Command{
			Use:   "status KIND NAME",
			Short: "Show the wave, the revision and the state of each cluster",
			Long: `status shows a line for each cluster: its wave, the revision that it has, and its state: waiting,
applying, soaking, done or unhealthy.`,
			Example: `  pelago rollout status deployment nginx
  pelago rollout status deploy/nginx -n shop -o json`,
		}, func(f *view.Subject) any { return f.Rollout() },
			func(w io.Writer, f *view.Subject, wide bool, _ time.Time) error {
				return view.PrintRollout(w, f.Rollout(), wide)
			}),
		rolloutChange(&cobra.Command{
			Use:   "pause KIND NAME",
			Short: "Give the revision to no further cluster",
			Long: `pause keeps the revision from further clusters until resume. Clusters that have it keep it. Without
a rollout in progress it holds the next one.`,
			Example: "  pelago rollout pause deployment nginx -n shop",
		}, "paused", func(r *workv1alpha2.Rollout) error {
			r.Hold = workv1alpha2.RolloutPaused
			return nil
		}),
		rolloutChange(&cobra.Command{
			Use:   "resume KIND NAME",
			Short: "Continue after pause, after abort, or after a stop",
			Long: `resume continues a rollout. After a stop the clusters where the revision is unhealthy count as done,
after abort the rollout begins with the first wave.`,
			Example: "  pelago rollout resume deployment nginx -n shop",
		}, "resumed", func(r *workv1alpha2.Rollout) error {
			r.Resume()
			return nil
		}),
		rolloutChange(&cobra.Command{
			Use:   "abort KIND NAME",
			Short: "Return all clusters to the revision that has passed",
			Long: `abort returns the clusters that have the revision to the one that has passed, at once. They keep
that until the template changes, or until resume.`,
			Example: "  pelago rollout abort deployment nginx -n shop",
		}, "aborted", func(r *workv1alpha2.Rollout) error {
			if !r.InProgress() {
				return errors.New("no rollout is in progress: all clusters have revision " + r.Revision)
			}
			r.Hold = workv1alpha2.RolloutAborted
			return nil
		}))
	return cmd
}

// rolloutChange completes a command that changes the state of a rollout.
func rolloutChange(cmd *cobra.Command, done string, change func(*workv1alpha2.Rollout) error) *cobra.Command {
	var a access
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.ValidArgsFunction = a.complete(objectNames)
	cmd.RunE = a.run(func(ctx context.Context, h *cluster, args []string, out io.Writer) error {
		kindName, name, err := kindAndName(args)
		if err != nil {
			return err
		}
		mapping, err := h.kind(kindName)
		if err != nil {
			return err
		}
		title := mapping.GroupVersionKind.Kind + " " + name
		err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			f, err := view.ReadSubject(ctx, h.Client, nil, mapping, client.ObjectKey{Namespace: h.namespace, Name: name})
			if err != nil {
				return err
			}
			return f.ChangeRollout(ctx, h.Client, change)
		})
		if err != nil {
			return fmt.Errorf("change the rollout of %s: %w", title, err)
		}
		_, err = fmt.Fprintf(out, "the rollout of %s is %s; see `pelago rollout status`\n", title, done)
		return err
	})
	a.addFlags(cmd.Flags())
	a.addNamespace(cmd.Flags())
	return cmd
}
