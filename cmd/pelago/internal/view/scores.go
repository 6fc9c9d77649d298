package view

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/scheduler"
)

// explainedScore is what the PlacementScores that a policy weighs (annotation pelago.io/scores) are
// worth for one cluster now.
type explainedScore struct {
	Cluster string `json:"cluster"`
	// Sum of weight × value; absent: a score has no valid value.
	Sum *int64 `json:"sum,omitempty"`
	// Parts are the scores in words.
	Parts []string `json:"parts"`
}

// readScores is empty if no scores bear on the binding; the best cluster is first.
func readScores(ctx context.Context, c client.Client, clusters []clusterv1alpha1.Cluster, b binding.Binding) ([]explainedScore, error) {
	if !b.Exists() {
		return nil, nil
	}
	weights, err := policyv1alpha1.ScoresOf(b.GetAnnotations())
	if weights == nil || err != nil {
		return nil, err
	}
	var list pelagov1alpha1.PlacementScoreList
	if err := c.List(ctx, &list); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("list PlacementScores: %w", err)
	}
	return explainScores(scheduler.ScoresAt(weights, list.Items, time.Now()), clusters), nil
}

func explainScores(scores []scheduler.Score, clusters []clusterv1alpha1.Cluster) (out []explainedScore) {
	for i := range clusters {
		e := explainedScore{Cluster: clusters[i].Name}
		if sum, ok := scheduler.ScoreOf(scores, e.Cluster); ok {
			e.Sum = &sum
		}
		for _, s := range scores {
			part := fmt.Sprintf("%s %d × %d", s.Name, s.Weight, s.Of[e.Cluster])
			if _, ok := s.Of[e.Cluster]; !ok {
				part = s.Name + " no valid value"
			}
			e.Parts = append(e.Parts, part)
		}
		out = append(out, e)
	}
	rank := func(e explainedScore) int64 { return ptr.Deref(e.Sum, math.MinInt64) }
	slices.SortStableFunc(out, func(a, b explainedScore) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), strings.Compare(a.Cluster, b.Cluster))
	})
	return out
}

func printScores(w io.Writer, all []explainedScore) {
	for i, e := range all {
		title := ""
		if i == 0 {
			title = "Scores:"
		}
		sum := "last"
		if e.Sum != nil {
			sum = fmt.Sprint(*e.Sum)
		}
		fmt.Fprintf(w, "%-10s %s: %s (%s)\n", title, e.Cluster, sum, strings.Join(e.Parts, ", "))
	}
}
