package propagate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// Successes are one Event on the template; with AllEvents one for each step, as Karmada emits them.
func TestEventsOnSuccess(t *testing.T) {
	p := policyOf(&policyv1alpha1.PropagationPolicy{})
	p.SetNamespace("shop")
	p.SetName("all")
	p.SetLabels(map[string]string{policyv1alpha1.LabelPropagationPolicyID: "id-all"})
	template := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apps/v1", "kind": "Deployment"}}
	template.SetNamespace("shop")
	template.SetName("web")
	template.SetUID(types.UID("u"))
	b := binding.New(client.ObjectKey{Namespace: "shop", Name: "web-deployment"})
	mark(b, p)
	b.Spec.Clusters = []workv1alpha2.TargetCluster{{Name: "m1", Replicas: 1}}
	setAnnotation(b, workv1alpha2.AnnotationDependencies, `[{"apiVersion":"v1","kind":"ConfigMap","namespace":"shop","name":"c"}]`)
	d := decision{written: true, moved: true, clusters: b.Spec.Clusters, record: &workv1alpha2.Decision{Reason: workv1alpha2.ReasonSuccess}}
	dependent := binding.New(client.ObjectKey{Namespace: "shop", Name: "c-configmap"})
	requireBy(dependent, []binding.Binding{b})
	for name, tt := range map[string]struct {
		all  bool
		want []string
	}{
		"default": {false, []string{"Normal ScheduleBindingSucceed it runs in m1 (1); it follows PropagationPolicy shop/all; it depends on 1 objects"}},
		"all": {true, []string{"Normal GetDependenciesSucceed it depends on 1 objects", "Normal ApplyPolicySucceed it follows PropagationPolicy shop/all",
			"Normal ScheduleBindingSucceed it runs in m1 (1)", "Normal ScheduleBindingSucceed it runs in m1 (1)",
			"Normal SyncScheduleResultToDependenciesSucceed it goes where the templates of 1 bindings go that depend on it"}},
	} {
		t.Run(name, func(t *testing.T) {
			events := record.NewFakeRecorder(10)
			r := &reconciler{Options: Options{AllEvents: tt.all}, events: events}
			r.recordEvents(inputs{template: template, policy: p}, placed{binding: b, decision: d})
			w := inputs{template: template, parents: []binding.Binding{b}}
			r.recordEvents(w, placed{binding: dependent})
			w.have = dependent // as before
			r.recordEvents(w, placed{binding: dependent})
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
