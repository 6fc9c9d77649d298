package view

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/scheduler"
)

// The best cluster is first, one without a valid value last.
func TestExplainScores(t *testing.T) {
	var clusters []clusterv1alpha1.Cluster
	for _, name := range []string{"m1", "m2", "m3"} {
		clusters = append(clusters, clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	var out strings.Builder
	printScores(&out, explainScores([]scheduler.Score{
		{Name: "cost", Weight: -2, Of: map[string]int64{"m2": 5, "m3": 1}},
		{Name: "gpu", Weight: 1, Of: map[string]int64{"m1": 8, "m2": 4, "m3": 0}},
	}, clusters))
	want := `Scores:    m3: -2 (cost -2 × 1, gpu 1 × 0)
           m2: -6 (cost -2 × 5, gpu 1 × 4)
           m1: last (cost no valid value, gpu 1 × 8)
`
	if out.String() != want {
		t.Errorf("found\n%s\nwant\n%s", out.String(), want)
	}
}
