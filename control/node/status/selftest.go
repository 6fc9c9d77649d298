package status

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane/observe"
)

// SelfTestMessages are the findings of a self-test, the worst first, bounded.
func SelfTestMessages(r observe.SelftestReport) []string {
	var out []string
	for _, outcome := range slices.Backward(observe.SelftestOutcomes) {
		for _, f := range r.Findings {
			if f.Outcome == outcome {
				out = append(out, f.Message)
			}
		}
	}
	return out[:min(len(out), namedErrors)]
}

// SelfTestDiffers reports whether two results differ in what is reported of them.
func SelfTestDiffers(a, b observe.SelftestReport) bool {
	return !maps.Equal(a.Paths, b.Paths) || !slices.Equal(a.Findings, b.Findings)
}

// setSelfTest sets the condition of the paths of pods through the node; a node without pods has
// none.
func setSelfTest(conditions *[]metav1.Condition, r observe.SelftestReport) {
	c := metav1.Condition{
		Type: pelagov1alpha1.NodeSelfTest, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonSelfTestPassed,
		Message: strings.Join(SelfTestMessages(r), "; "),
	}
	switch {
	case len(r.Paths) == 0:
		meta.RemoveStatusCondition(conditions, pelagov1alpha1.NodeSelfTest)
		return
	case r.Paths[observe.SelftestDiverted] > 0:
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonSelfTestDiverted
	case r.Paths[observe.SelftestBypassed] > 0:
		c.Status, c.Reason = metav1.ConditionFalse, pelagov1alpha1.ReasonSelfTestBypassed
	case r.Paths[observe.SelftestLost] > 0:
		c.Status, c.Reason = metav1.ConditionUnknown, pelagov1alpha1.ReasonSelfTestLost
	}
	setCondition(conditions, c)
}
