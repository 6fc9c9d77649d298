package member

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// A cluster that is ready removes what was propagated to it, also with --force; one that is not, or
// does not manage it in time, keeps the rest.
func TestWithdrawByForce(t *testing.T) {
	for name, tt := range map[string]struct {
		ready metav1.ConditionStatus // "" = none yet
		// the cluster has removed its object by the third read of the Cluster
		removes bool
		lost    bool // it is not ready any more by then
		timeout time.Duration
		stays   bool
	}{
		"ready":                      {ready: metav1.ConditionTrue, removes: true, timeout: time.Minute},
		"ready, but removes nothing": {ready: metav1.ConditionTrue, timeout: 2 * time.Second, stays: true},
		"lost meanwhile":             {ready: metav1.ConditionTrue, lost: true, timeout: time.Minute, stays: true},
		"not ready":                  {ready: metav1.ConditionFalse, timeout: time.Minute, stays: true},
		"never ready":                {timeout: time.Minute, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			scheme, err := manifests.Scheme()
			if err != nil {
				t.Fatal(err)
			}
			c := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Finalizers: []string{clusterv1alpha1.FinalizerCluster}}}
			if tt.ready != "" {
				c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionReady, Status: tt.ready}}
			}
			w := &workv1alpha1.Work{
				ObjectMeta: metav1.ObjectMeta{Namespace: "karmada-es-c1", Name: "web", Finalizers: []string{workv1alpha1.FinalizerExecution}},
				Spec: workv1alpha1.WorkSpec{Workload: workv1alpha1.WorkloadTemplate{Manifests: []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{
					Raw: []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"namespace":"shop","name":"web"}}`)}}}}}}
			reads := 0
			// The hub's controller: the Cluster is gone after its Works.
			hub := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c, w).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, hub client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
					have, is := into.(*clusterv1alpha1.Cluster)
					if !is {
						return hub.Get(ctx, key, into, opts...)
					}
					reads++
					left := &workv1alpha1.Work{}
					if hub.Get(ctx, client.ObjectKeyFromObject(w), left) == nil && reads >= 3 && tt.removes {
						left.Finalizers = nil
						if err := hub.Update(ctx, left); err != nil {
							return err
						}
					}
					if err := hub.Get(ctx, key, have, opts...); err != nil {
						return err
					}
					if len(left.Finalizers) == 0 {
						have.Finalizers = nil
						if err := hub.Update(ctx, have); err != nil {
							return err
						}
						return hub.Get(ctx, key, have, opts...)
					}
					if tt.lost && reads >= 3 {
						have.Status.Conditions[0].Status = metav1.ConditionUnknown
					}
					return nil
				}}).Build()
			var said []string
			start := time.Now()
			err = withdraw(t.Context(), hub, "c1", Leaving{Force: true, Timeout: tt.timeout,
				Progress: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }})
			if took := time.Since(start); err != nil || took > 20*time.Second {
				t.Errorf("after %s: %v", took, err)
			}
			if text := strings.Join(said, "\n"); strings.Contains(text, "Deployment shop/web (apps/v1) stays in the cluster") != tt.stays {
				t.Errorf("the Deployment stays: want %t\n%s", tt.stays, text)
			}
		})
	}
}

// What a removal waits for is reported when it changes, and named by the error.
func TestWithdrawNamesTheBlocker(t *testing.T) {
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	messages := []string{"2 Works wait", "2 Works wait", "cluster c1 is still named by ResourceBinding shop/web"}
	reads := 0
	hub := fake.NewClientBuilder().WithScheme(scheme).
		WithObjects(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Finalizers: []string{clusterv1alpha1.FinalizerCluster}}}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, hub client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
				c, is := into.(*clusterv1alpha1.Cluster)
				if err := hub.Get(ctx, key, into, opts...); err != nil || !is {
					return err
				}
				c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionRemoved, Status: metav1.ConditionFalse,
					Message: messages[min(reads, len(messages)-1)]}}
				reads++
				return nil
			}}).Build()
	var said []string
	err = withdraw(t.Context(), hub, "c1", Leaving{Timeout: 3 * time.Second,
		Progress: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }})
	if err == nil || !strings.Contains(err.Error(), "is still being removed: "+messages[2]) {
		t.Errorf("the error is %v", err)
	}
	want := []string{"Removing what was propagated to cluster c1", "Cluster c1: " + messages[0], "Cluster c1: " + messages[2]}
	if !slices.Equal(said, want) {
		t.Errorf("progress %q, want %q", said, want)
	}
}
