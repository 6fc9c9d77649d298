package autoscale_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/autoscale"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// The template follows the members' autoscalers only once every cluster has rolled the present
// template out, only with the label, and only where replicas are divided.
func TestReplicasFollowMembers(t *testing.T) {
	f := newFleet(t)
	var meanwhile atomic.Bool
	newClient := func(config *rest.Config, o client.Options) (client.Client, error) {
		c, err := client.NewWithWatch(config, o)
		if err != nil {
			return nil, err
		}
		return interceptor.NewClient(c, interceptor.Funcs{
			SubResourceGet: func(ctx context.Context, c client.Client, sub string, o, got client.Object, opts ...client.SubResourceGetOption) (err error) {
				// another controller writes the template, of which the binding has no event
				if meanwhile.CompareAndSwap(true, false) {
					d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}}
					err = c.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"written":"meanwhile"}}}`)))
				}
				return errors.Join(err, c.SubResource(sub).Get(ctx, o, got, opts...))
			},
		}), nil
	}
	apiserver.Manager{Scheme: f.Scheme(), NewClient: newClient, Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
		return autoscale.Setup(m, autoscale.Options{SyncReplicas: true})
	}}}.Run(t, f.Config)
	type member struct{ replicas, updated, generation int }
	report := func(name string, m1, m2 member) {
		t.Helper()
		await.True(t, "the status is written", func() bool {
			b := &workv1alpha2.ResourceBinding{}
			f.see(client.ObjectKey{Namespace: "default", Name: name + "-deployment"}, b)
			b.Status.AggregatedStatus = nil
			for i, m := range []member{m1, m2} {
				b.Status.AggregatedStatus = append(b.Status.AggregatedStatus, workv1alpha2.AggregatedStatusItem{ClusterName: fmt.Sprint("m", i+1), Applied: true,
					Status: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"replicas":%d,"updatedReplicas":%d,"generation":3,"observedGeneration":3,"resourceTemplateGeneration":%d}`,
						m.replicas, m.updated, m.generation)}})
			}
			return f.Cluster.Status().Update(t.Context(), b) == nil
		})
	}
	place := func(name string, labels map[string]string, kind policyv1alpha1.ReplicaSchedulingType) {
		t.Helper()
		d := deployment(name, 4)
		d.Labels = labels
		b := &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name + "-deployment"}, Spec: workv1alpha2.ResourceBindingSpec{
			Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: name}, Replicas: 4,
			Clusters:  []workv1alpha2.TargetCluster{{Name: "m1", Replicas: 2}, {Name: "m2", Replicas: 2}},
			Placement: &policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{ReplicaSchedulingType: kind}}}}
		f.Make(d, b)
	}
	retain := map[string]string{workv1alpha2.LabelRetainReplicas: "true"}
	place("scaled", retain, policyv1alpha1.ReplicaSchedulingTypeDivided)
	place("unlabelled", nil, policyv1alpha1.ReplicaSchedulingTypeDivided)
	place("duplicated", retain, policyv1alpha1.ReplicaSchedulingTypeDuplicated)
	report("unlabelled", member{5, 5, 1}, member{2, 2, 1})
	report("duplicated", member{5, 5, 1}, member{2, 2, 1})
	for name, m := range map[string][2]member{
		"a roll-out has more pods":               {{3, 2, 1}, {2, 2, 1}},
		"a cluster has created no pods yet":      {{5, 5, 1}, {0, 0, 1}},
		"a cluster has another template":         {{2, 2, 1}, {3, 3, 2}},
		"both have a template that is no longer": {{2, 2, 9}, {3, 3, 9}},
	} {
		report("scaled", m[0], m[1])
		await.Never(t, 300*time.Millisecond, name, func() bool { return f.replicas("scaled")() != 4 })
	}
	meanwhile.Store(true)
	report("scaled", member{5, 5, 1}, member{2, 2, 1})
	await.Equal(t, int32(7), f.replicas("scaled"))
	for _, name := range []string{"unlabelled", "duplicated"} {
		if n := f.replicas(name)(); n != 4 {
			t.Errorf("%s: %d replicas, want 4", name, n)
		}
	}
}

// The target of a propagated autoscaler has the label as long as there is one; a label that a user
// has set stays.
func TestTargetsRetainReplicas(t *testing.T) {
	f := newFleet(t)
	apiserver.Manager{Scheme: f.Scheme(), Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
		return autoscale.Setup(m, autoscale.Options{SyncReplicas: true})
	}}}.Run(t, f.Config)
	binding := func(apiVersion, kind, name string) *workv1alpha2.ResourceBinding {
		ref := workv1alpha2.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: "default", Name: name}
		return &workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: workv1alpha2.BindingName(ref)},
			Spec: workv1alpha2.ResourceBindingSpec{Resource: ref, Replicas: 4}}
	}
	hpa := func(name, target string) *autoscalingv2.HorizontalPodAutoscaler {
		return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			MaxReplicas: 9, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: target}}}
	}
	is := func(name, label, by string) {
		t.Helper()
		await.Equal(t, label+" "+by, func() string {
			d := &appsv1.Deployment{}
			f.see(client.ObjectKey{Namespace: "default", Name: name}, d)
			return d.Labels[workv1alpha2.LabelRetainReplicas] + " " + d.Annotations[workv1alpha2.AnnotationRetainReplicasBy]
		})
	}
	for _, name := range []string{"target", "next", "labelled"} {
		d := deployment(name, 4)
		if name == "labelled" {
			d.Labels = map[string]string{workv1alpha2.LabelRetainReplicas: "false"}
		}
		f.Make(d, binding("apps/v1", "Deployment", name))
	}
	scaler, propagated := hpa("target-scaler", "target"), binding("autoscaling/v2", "HorizontalPodAutoscaler", "target-scaler")
	f.Make(scaler, hpa("labelled-scaler", "labelled"), binding("autoscaling/v2", "HorizontalPodAutoscaler", "labelled-scaler"))
	await.Never(t, 300*time.Millisecond, "a label before the autoscaler is propagated", func() bool {
		d := &appsv1.Deployment{}
		f.see(client.ObjectKey{Namespace: "default", Name: "target"}, d)
		return len(d.Labels) > 0
	})
	f.Make(propagated)
	is("target", "true", "target-scaler")
	scaler.Spec.ScaleTargetRef.Name = "next"
	if err := f.Cluster.Update(t.Context(), scaler); err != nil {
		t.Fatal(err)
	}
	is("next", "true", "target-scaler")
	is("target", "", "")
	if err := f.Cluster.Delete(t.Context(), propagated); err != nil {
		t.Fatal(err)
	}
	is("next", "", "")
	f.Make(binding("autoscaling/v2", "HorizontalPodAutoscaler", "target-scaler"))
	is("next", "true", "target-scaler")
	shop := &appsv1.Deployment{}
	f.see(client.ObjectKey{Namespace: "default", Name: "next"}, shop)
	delete(shop.Labels, workv1alpha2.LabelRetainReplicas)
	if err := f.Cluster.Update(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	// the next event of the autoscaler restores a label that was removed
	scaler.Spec.MaxReplicas = 8
	if err := f.Cluster.Update(t.Context(), scaler); err != nil {
		t.Fatal(err)
	}
	is("next", "true", "target-scaler")
	if err := f.Cluster.Delete(t.Context(), scaler); err != nil {
		t.Fatal(err)
	}
	is("next", "", "")
	is("labelled", "false", "")

	// Where a kind of another group has the name of the binding, the template and the autoscaler
	// have another one.
	beside := func(apiVersion, kind, name string) {
		t.Helper()
		b, other := binding(apiVersion, kind, name), binding("example.com/v1", kind, name)
		other.Spec.Replicas = 0
		f.Make(other)
		b.Name = workv1alpha2.AlternateBindingName(b.Spec.Resource)
		f.Make(b)
	}
	f.Make(deployment("beside", 4))
	beside("apps/v1", "Deployment", "beside")
	beside("autoscaling/v2", "HorizontalPodAutoscaler", "beside-scaler")
	scaler = hpa("beside-scaler", "beside")
	f.Make(scaler)
	is("beside", "true", "beside-scaler")
	if err := f.Cluster.Delete(t.Context(), scaler); err != nil {
		t.Fatal(err)
	}
	is("beside", "", "")
}

// A change of the template while its label is written is not overwritten.
func TestTargetChangesMeanwhile(t *testing.T) {
	f := newFleet(t)
	var meanwhile atomic.Bool
	meanwhile.Store(true)
	newClient := func(config *rest.Config, o client.Options) (client.Client, error) {
		c, err := client.NewWithWatch(config, o)
		if err != nil {
			return nil, err
		}
		return interceptor.NewClient(c, interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				// a user sets the label
				if o.GetName() == "contested" && meanwhile.CompareAndSwap(true, false) {
					d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}}
					by := fmt.Sprintf(`{"metadata":{"labels":{%q:"false"}}}`, workv1alpha2.LabelRetainReplicas)
					if err := c.Patch(ctx, d, client.RawPatch(types.MergePatchType, []byte(by))); err != nil {
						return err
					}
				}
				return c.Patch(ctx, o, p, opts...)
			},
		}), nil
	}
	d := deployment("contested", 4)
	ref := workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "default", Name: "contested"}
	scaler := ref
	scaler.APIVersion, scaler.Kind = "autoscaling/v2", "HorizontalPodAutoscaler"
	f.Make(d, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "contested"}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		MaxReplicas: 9, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "contested"}}})
	for _, of := range []workv1alpha2.ObjectReference{ref, scaler} {
		f.Make(&workv1alpha2.ResourceBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: workv1alpha2.BindingName(of)},
			Spec: workv1alpha2.ResourceBindingSpec{Resource: of, Replicas: 4}})
	}
	apiserver.Manager{Scheme: f.Scheme(), NewClient: newClient, Setup: []func(ctrl.Manager) error{func(m ctrl.Manager) error {
		return autoscale.Setup(m, autoscale.Options{SyncReplicas: true})
	}}}.Run(t, f.Config)
	await.True(t, "the label is written", func() bool { return !meanwhile.Load() })
	await.Never(t, 300*time.Millisecond, "the user's label is overwritten", func() bool {
		f.see(client.ObjectKeyFromObject(d), d)
		return d.Labels[workv1alpha2.LabelRetainReplicas] == "true"
	})
}
