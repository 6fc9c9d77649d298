package work

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// tellOverrides makes one Event if overrides apply to Works that were written in another way than before. A Work tells itself
// which.
func (r *reconciler) tellOverrides(b Binding, former []*workv1alpha1.Work, plan BindingPlan) {
	if works := overridden(former, slices.Concat(plan.Create, plan.Update)); len(works) > 0 {
		r.recorder.Event(b.Object, corev1.EventTypeNormal, workv1alpha2.EventApplyOverridePolicySucceed,
			"Other overrides than before apply in "+clusterNames(works)+": see "+policyv1alpha1.AnnotationAppliedOverrides+" and "+
				policyv1alpha1.AnnotationAppliedClusterOverrides+" of the Works")
	}
}

// overridden are the Works that have overrides which they, or a Work that is new, did not have before.
func overridden(former, written []*workv1alpha1.Work) []*workv1alpha1.Work {
	var out []*workv1alpha1.Work
	for _, w := range written {
		before := &workv1alpha1.Work{}
		same := func(f *workv1alpha1.Work) bool { return f.Namespace == w.Namespace && f.Name == w.Name }
		if i := slices.IndexFunc(former, same); i >= 0 {
			before = former[i]
		}
		for _, key := range []string{policyv1alpha1.AnnotationAppliedOverrides, policyv1alpha1.AnnotationAppliedClusterOverrides} {
			if now := w.Annotations[key]; now != "" && now != before.Annotations[key] {
				out = append(out, w)
				break
			}
		}
	}
	return out
}

// namedClusters is how many clusters an Event names.
const namedClusters = 10

func clusterNames(works []*workv1alpha1.Work) string {
	var all []string
	for _, w := range works {
		cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace) // the Works that we write are in execution namespaces
		all = append(all, cluster)
	}
	if more := len(all) - namedClusters; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:namedClusters], ", "), more)
	}
	return strings.Join(all, ", ")
}
