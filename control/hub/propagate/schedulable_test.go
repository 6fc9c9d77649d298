package propagate

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
)

// undecidedCache lists bindings without a decision, whatever is asked for.
type undecidedCache struct {
	cache.Cache
	bindings []workv1alpha2.ResourceBinding
}

func (c undecidedCache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l, ok := list.(*workv1alpha2.ResourceBindingList); ok {
		l.Items = c.bindings
	}
	return nil
}

// A change of load enqueues the templates that have capacity now; none as long as none exists,
// and none that wait for something else.
func TestAddSchedulable(t *testing.T) {
	var bindings []workv1alpha2.ResourceBinding
	reasons := []string{workv1alpha2.ReasonUnschedulable, workv1alpha2.ReasonNoClusterFit, workv1alpha2.ReasonQuotaExceeded, workv1alpha2.ReasonSchedulerError}
	for i := range 200 {
		record, err := (&workv1alpha2.Decision{Reason: reasons[i%len(reasons)]}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprintf("web-%d", i)
		bindings = append(bindings, workv1alpha2.ResourceBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{workv1alpha2.AnnotationDecision: record}},
			Spec: workv1alpha2.ResourceBindingSpec{
				Resource: workv1alpha2.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: name},
				Replicas: 2, ReplicaRequirements: &workv1alpha2.ReplicaRequirements{ResourceRequest: corev1.ResourceList{"cpu": resource.MustParse("1")}},
				Placement: &policyv1alpha1.Placement{ReplicaScheduling: &policyv1alpha1.ReplicaSchedulingStrategy{
					ReplicaSchedulingType: policyv1alpha1.ReplicaSchedulingTypeDivided, ReplicaDivisionPreference: policyv1alpha1.ReplicaDivisionPreferenceAggregated}},
			},
		})
	}
	o := newOrder()
	queue := o.queue("", workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry))
	defer queue.ShutDown()
	r := &reconciler{Options: Options{Capacity: placement.NewCache(placement.CacheOptions{})}, cache: undecidedCache{bindings: bindings},
		kinds: &templateKinds{}, order: o, queue: queue}
	report := func(allocated string) {
		r.Capacity.SetClusters([]*clusterv1alpha1.Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "member1"}, Status: clusterv1alpha1.ClusterStatus{
			APIEnablements: []clusterv1alpha1.APIEnablement{{GroupVersion: "apps/v1", Resources: []clusterv1alpha1.APIResource{{Name: "deployments", Kind: "Deployment"}}}},
			ResourceSummary: &clusterv1alpha1.ResourceSummary{Allocatable: corev1.ResourceList{"cpu": resource.MustParse("8"), "pods": resource.MustParse("110")},
				Allocated: corev1.ResourceList{"cpu": resource.MustParse(allocated)}},
		}}})
		r.addSchedulable(t.Context())
	}
	for i := range 50 {
		report(fmt.Sprintf("%dm", 7001+i))
	}
	if n := queue.Len(); n != 0 {
		t.Errorf("%d templates are enqueued without capacity for them", n)
	}
	report("6")
	if n, want := queue.Len(), len(bindings)/len(reasons); n != want {
		t.Errorf("%d templates are enqueued, want the %d that there is capacity for", n, want)
	}
}

// countedReader counts the reads of a PriorityClass.
type countedReader struct {
	client.Reader
	n int
}

func (c *countedReader) Get(_ context.Context, _ client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	c.n++
	o.(*schedulingv1.PriorityClass).Value = int32(c.n)
	return nil
}

// A PriorityClass is not read for each template of its policies, but again after a while.
func TestPriorityClassIsCached(t *testing.T) {
	live := &countedReader{}
	r := &reconciler{live: live}
	p := policyOf(&policyv1alpha1.PropagationPolicy{Spec: policyv1alpha1.PropagationSpec{SchedulePriority: &policyv1alpha1.SchedulePriority{PriorityClassName: "urgent"}}})
	read := func(want int32) {
		t.Helper()
		for range 200 {
			if got, found, err := r.priority(t.Context(), p); err != nil || !found || *got != want {
				t.Fatalf("priority %v, %v, %v, want %d", got, found, err, want)
			}
		}
	}
	read(1)
	known, _ := r.classes.get("urgent")
	known.read = known.read.Add(-classTTL - time.Second)
	r.classes.put("urgent", known)
	read(2)
	if live.n != 2 {
		t.Errorf("%d reads, want 2", live.n)
	}
}
