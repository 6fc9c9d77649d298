package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/inspect"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

func whyCommand() *cobra.Command {
	return reasonsCommand(&cobra.Command{
		Use:   "why KIND NAME",
		Short: "Show why a workload runs in these clusters and not in others",
		Long: `why shows which policy has claimed an object of the hub and why the others have not, which
clusters were chosen and why the others were not, which overrides apply to each cluster, and the
state of the object there.`,
		Example: `  pelago why deployment nginx
  pelago why deploy/nginx -n shop -o json`,
	})
}

func reasonsCommand(cmd *cobra.Command) *cobra.Command {
	return aboutCommand(cmd, func(f *view.Subject) any { return f.Explain() }, func(w io.Writer, f *view.Subject, wide bool, now time.Time) error {
		return view.PrintExplanation(w, f.Explain(), wide, now)
	})
}

// explainCommand is kubectl's, and for one release more, with KIND NAME, the former name of why.
func explainCommand() *cobra.Command {
	cmd := reasonsCommand(&cobra.Command{
		Use:   "explain TYPE[.FIELD]...",
		Short: "Describe the fields of a kind, as kubectl does",
		Long: `explain describes a kind and its fields, as the hub, or with -C a cluster, serves them.

With the kind and the name of an object it is the former name of ` + "`pelago why`" + `, until the next release.`,
		Example: `  pelago explain propagationpolicies.spec.placement
  pelago explain deployments --recursive -C m1`,
	})
	var fields inspect.Fields
	cmd.Flags().StringVarP(&fields.Cluster, "clusters", "C", "", "as this cluster serves it, by its name at the hub")
	cmd.Flags().BoolVar(&fields.Recursive, "recursive", false, "the names of all fields")
	cmd.Flags().StringVar(&fields.APIVersion, "api-version", "", "of this version, group/version")
	reasons := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 && !strings.Contains(args[0], "/") {
			if cmd.Flag("output").Changed {
				return errors.New("--output is of `pelago why`: fields are printed as text")
			}
			return fields.Explain(cmd, args[0])
		}
		if fields != (inspect.Fields{}) {
			return errors.New("--clusters, --recursive and --api-version need a kind alone: `pelago explain deployments`")
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "warning: this is `pelago why` now; `pelago explain` is kubectl's from the next release on")
		return reasons(cmd, args)
	}
	return cmd
}

// aboutCommand is a command about one object of the hub.
func aboutCommand(
	cmd *cobra.Command, object func(*view.Subject) any, text func(io.Writer, *view.Subject, bool, time.Time) error,
) *cobra.Command {
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
		clusters, err := h.clusters(ctx)
		if err != nil {
			return err
		}
		f, err := view.ReadSubject(ctx, h.Client, clusters, mapping, client.ObjectKey{Namespace: h.namespace, Name: name})
		if err != nil {
			return err
		}
		switch a.output {
		case "json", "yaml":
			return view.Encode(out, a.output, object(f))
		}
		return text(out, f, a.output == "wide", time.Now())
	})
	a.addFlags(cmd.Flags())
	a.addNamespace(cmd.Flags())
	view.AddOutputFlag(cmd.Flags(), &a.output)
	return cmd
}

func describeCommand() *cobra.Command {
	cmd := aboutCommand(&cobra.Command{
		Use:   "describe KIND NAME",
		Short: "Show the policy, binding, Works, status and events of a workload",
		Long: `describe shows an object of the hub with the policy that has claimed it, its binding and the
decision, its Works, what each cluster reports, and the latest events. With -C it shows an object of
that cluster as kubectl does.`,
		Example: `  pelago describe deployment nginx
  pelago describe deploy/nginx -n shop -o yaml
  pelago describe pod nginx-0 -n shop -C m1`,
	}, func(f *view.Subject) any { return f.Describe() }, func(w io.Writer, f *view.Subject, wide bool, now time.Time) error {
		return view.PrintDescription(w, f.Describe(), wide, now)
	})
	var member string
	cmd.Flags().StringVarP(&member, "clusters", "C", "", "an object of this cluster, by its name at the hub")
	cmd.MarkFlagsMutuallyExclusive("clusters", "output")
	hub := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if member != "" {
			return inspect.Describe(cmd, member, args)
		}
		return hub(cmd, args)
	}
	return cmd
}

// kindAndName reads `deployment nginx` or `deployment/nginx`.
func kindAndName(args []string) (kind, name string, err error) {
	kind, name, _ = strings.Cut(strings.Join(args, "/"), "/")
	if kind == "" || name == "" {
		return "", "", errors.New("name a kind and an object, for example `deployment nginx`")
	}
	return kind, name, nil
}
