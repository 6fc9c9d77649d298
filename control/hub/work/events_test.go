package work

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// With AllEvents written Works have an Event on binding and template, as in Karmada.
func TestEventsOnSuccess(t *testing.T) {
	w := &workv1alpha1.Work{}
	w.Namespace, w.Name = "karmada-es-m1", "web"
	w.Annotations = map[string]string{policyv1alpha1.AnnotationAppliedOverrides: "[]"}
	const overrides = "Normal ApplyOverridePolicySucceed Other overrides than before apply in m1: see policy.karmada.io/applied-overrides and " +
		"policy.karmada.io/applied-cluster-overrides of the Works"
	const written = "Normal SyncWorkSucceed The Works of m1 are written"
	for name, tt := range map[string]struct {
		all  bool
		want []string
	}{
		"default": {false, []string{overrides}},
		"all":     {true, []string{overrides, overrides, written, written}},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			r := &reconciler{BindingOptions: BindingOptions{AllEvents: tt.all}, recorder: events}
			b, in := binding.New(client.ObjectKey{Namespace: "shop", Name: "web"}), &BindingInput{Template: &unstructured.Unstructured{}}
			r.recordWritten(b, in, BindingPlan{Writes: Writes{Create: []*workv1alpha1.Work{w}}})
			r.recordWritten(b, in, BindingPlan{}) // nothing was written
			close(events.Events)
			var got []string
			for e := range events.Events {
				got = append(got, e)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
