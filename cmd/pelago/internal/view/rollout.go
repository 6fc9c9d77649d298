package view

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Rollout is the rollout of a template, and its form in -o json and -o yaml.
type Rollout struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Revision is the newest, Passed the newest that all clusters have had.
	Revision string `json:"revision,omitempty"`
	Passed   string `json:"passed,omitempty"`
	// Reason and Message are those of the condition Rollout; empty: all clusters have Revision.
	Reason   string           `json:"reason,omitempty"`
	Message  string           `json:"message,omitempty"`
	Clusters []rolloutCluster `json:"clusters,omitempty"`
}

type rolloutCluster struct {
	Cluster  string `json:"cluster"`
	Wave     int    `json:"wave"`
	Revision string `json:"revision"`
	State    string `json:"state"`
	Failed   string `json:"failed,omitempty"`
}

// Rollout makes it; without a rollout it has no revision.
func (f *Subject) Rollout() Rollout {
	t := f.template
	out := Rollout{Kind: t.GetKind(), Namespace: t.GetNamespace(), Name: t.GetName()}
	if !f.binding.Exists() {
		return out
	}
	r := workv1alpha2.ReadRollout(f.binding.GetAnnotations())
	of, err := policyv1alpha1.RolloutOf(f.binding.GetAnnotations())
	if r == nil || of == nil || err != nil {
		return out
	}
	out.Revision, out.Passed, out.Reason, out.Message = r.Revision, r.Passed, r.Reason, r.Message
	for _, c := range f.binding.Spec.Clusters {
		row := rolloutCluster{Cluster: c.Name, Wave: of.Wave(nil), Failed: r.Clusters[c.Name].Failed}
		if i := slices.IndexFunc(f.clusters, func(of clusterv1alpha1.Cluster) bool { return of.Name == c.Name }); i >= 0 {
			row.Wave = of.Wave(f.clusters[i].Labels)
		}
		row.Revision, row.State = r.In(c.Name)
		out.Clusters = append(out.Clusters, row)
	}
	return out
}

// PrintRollout writes a line for each cluster.
func PrintRollout(out io.Writer, r Rollout, wide bool) error {
	if r.Revision == "" {
		_, err := fmt.Fprintln(out, noRollout(r.Kind, r.Name))
		return err
	}
	state := "all clusters have revision " + r.Revision
	if r.Reason != "" {
		state = r.Reason + ": " + r.Message
	}
	t := Table{Title: state, Header: []string{"CLUSTER", "WAVE", "REVISION", "STATE"}, Wide: []string{"WHY"},
		Empty: "It runs in no cluster."}
	for _, c := range r.Clusters {
		cells := []string{c.Cluster, strconv.Itoa(c.Wave), c.Revision, c.State}
		t.Rows = append(t.Rows, Row{Cells: cells, Wide: []string{c.Failed}})
	}
	return t.Print(out, wide)
}

func noRollout(kind, name string) string {
	return fmt.Sprintf("%s %s has no rollout: set annotation %s of its policy, which must be valid", kind, name,
		policyv1alpha1.AnnotationRollout)
}

// ChangeRollout changes the state of the rollout at the hub, with the version that was read.
func (f *Subject) ChangeRollout(ctx context.Context, c client.Client, change func(*workv1alpha2.Rollout) error) error {
	var r *workv1alpha2.Rollout
	if f.binding.Exists() {
		r = workv1alpha2.ReadRollout(f.binding.GetAnnotations())
	}
	if r == nil {
		return errors.New(noRollout(f.template.GetKind(), f.template.GetName()))
	}
	if err := change(r); err != nil {
		return err
	}
	text, err := r.Encode()
	if err != nil {
		return err
	}
	after := f.binding.Copy()
	after.GetAnnotations()[workv1alpha2.AnnotationRollout] = text
	patch := client.MergeFromWithOptions(f.binding.Object, client.MergeFromWithOptimisticLock{})
	return c.Patch(ctx, after.Object, patch)
}
