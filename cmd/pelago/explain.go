package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
)

func explainCommand() *cobra.Command {
	return aboutCommand(&cobra.Command{
		Use:   "explain KIND NAME",
		Short: "Say why a workload runs in these clusters and not in others",
		Long: `explain says which policy has claimed an object of the hub and why the others have not, which
clusters were chosen and why the others were not, which overrides there are for each cluster,
and what has become of the object there.`,
		Example: `  pelago explain deployment nginx
  pelago explain deploy/nginx -n shop -o json`,
	}, func(f *subject) any { return f.explain() }, func(w io.Writer, f *subject, wide bool, now time.Time) error {
		return printExplanation(w, f.explain(), wide, now)
	})
}

// aboutCommand is a command about one object of the hub.
func aboutCommand(
	cmd *cobra.Command, object func(*subject) any, text func(io.Writer, *subject, bool, time.Time) error,
) *cobra.Command {
	var flags hubFlags
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.ValidArgsFunction = flags.completeObject
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kindName, name, err := kindAndName(args)
		if err != nil {
			return err
		}
		h, err := flags.open()
		if err != nil {
			return err
		}
		f, err := h.subject(cmd.Context(), kindName, flags.namespace, name)
		if err != nil {
			return err
		}
		switch flags.output {
		case "json", "yaml":
			return encode(cmd.OutOrStdout(), flags.output, object(f))
		}
		return text(cmd.OutOrStdout(), f, flags.output == "wide", time.Now())
	}
	flags.addNamespaced(cmd)
	addOutputFlag(cmd, &flags.output)
	return cmd
}

// printExplanation writes it for people.
func printExplanation(w io.Writer, e explanation, wide bool, now time.Time) error {
	name := e.Name
	if e.Namespace != "" {
		name = e.Namespace + "/" + e.Name
	}
	fmt.Fprintf(w, "%s %s\n\n", e.Kind, name)
	if e.Policy != nil {
		fmt.Fprintf(w, "Policy:    %s, priority %d, selects %s\n", e.Policy.title(), e.Policy.Priority, e.Policy.Selects)
	} else {
		fmt.Fprintln(w, "Policy:    none")
	}
	for _, p := range e.OtherPolicies {
		fmt.Fprintf(w, "  not by   %s, priority %d, selects %s: %s\n", p.title(), p.Priority, p.Selects, p.Why)
	}
	if e.Binding != "" {
		fmt.Fprintf(w, "Binding:   %s\n", e.Binding)
	}
	if d := e.Decision; d != nil {
		fmt.Fprintf(w, "Decision:  %s, %s ago", d.Reason, age(d.Time.Time, now))
		if d.AffinityGroup != "" {
			fmt.Fprintf(w, ", affinity group %q", d.AffinityGroup)
		}
		if !d.Current {
			fmt.Fprint(w, "; the binding has changed since")
		}
		fmt.Fprintln(w)
		if d.Message != "" {
			fmt.Fprintf(w, "           %s\n", d.Message)
		}
	}
	if e.Problem != "" {
		fmt.Fprintf(w, "Problem:   %s\n", e.Problem)
	}
	fmt.Fprintln(w)
	if err := clusterTable(e.Clusters).print(w, wide); err != nil {
		return err
	}
	for _, c := range e.Clusters {
		for _, p := range c.Problems {
			fmt.Fprintf(w, "! %s: %s\n", c.Cluster, p)
		}
	}
	if len(e.Rejected) > 0 {
		fmt.Fprintln(w, "Not chosen:")
	}
	for _, r := range e.Rejected {
		clusters := strings.Join(r.Clusters, ", ")
		if r.More > 0 {
			clusters += fmt.Sprintf(" and %d more", r.More)
		}
		fmt.Fprintf(w, "  %s: %s\n", clusters, r.Why)
	}
	return nil
}

func clusterTable(clusters []explainedCluster) table {
	t := table{
		header: []string{"CLUSTER", "REPLICAS", "STATE", "HEALTH", "OVERRIDES", "WHY"}, wide: []string{"WORK"},
		empty: "In no cluster.",
	}
	for _, c := range clusters {
		t.rows = append(t.rows, row{
			cells: []string{c.Cluster, strconv.Itoa(int(c.Replicas)), c.State, cmp.Or(c.Health, "-"),
				cmp.Or(strings.Join(c.Overrides, ", "), "-"), c.Why},
			wide: []string{cmp.Or(c.Work, "-")},
		})
	}
	return t
}

// age is how long ago something was, as kubectl says it.
func age(then, now time.Time) string { return duration.HumanDuration(now.Sub(then)) }
