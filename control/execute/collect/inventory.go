package collect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// summaryStore is the store of a reflector. It holds of each object only the T that the cluster's
// summaries count.
type summaryStore[T any] struct {
	cache.Store
	changed func()
	strip   func(runtime.Object)

	mu      sync.Mutex
	synced  bool  // a list has succeeded
	listErr error // of the last list
}

// newSummaryStore makes a store of summaries. strip removes from an object what summarize does not
// read, in place: lists in progress are kept that way.
func newSummaryStore[T any](changed func(), strip func(runtime.Object), summarize func(any) T) *summaryStore[T] {
	transform := cache.WithTransformer(func(obj any) (any, error) { return summarize(obj), nil })
	return &summaryStore[T]{changed: changed, strip: strip, Store: cache.NewStore(cache.MetaNamespaceKeyFunc, transform)}
}

// Transformer implements cache.TransformingStore, for lists that the API server streams.
func (s *summaryStore[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(runtime.Object); ok {
			s.strip(o)
		}
		return obj, nil
	}
}

// all returns the items, in no order; ok is false before the first list.
func (s *summaryStore[T]) all() (items []T, ok bool) {
	for _, item := range s.List() {
		items = append(items, item.(T))
	}
	synced, _ := s.state()
	return items, synced
}

func (s *summaryStore[T]) state() (synced bool, listErr error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced, s.listErr
}

// Add implements cache.ReflectorStore.
func (s *summaryStore[T]) Add(obj any) error {
	before, had, err := s.Get(obj)
	if err != nil {
		return err
	}
	if err := s.Store.Add(obj); err != nil {
		return err
	}
	if after, _, err := s.Get(obj); err != nil || !had || !reflect.DeepEqual(before, after) {
		s.changed()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *summaryStore[T]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *summaryStore[T]) Delete(obj any) error {
	defer s.changed()
	return s.Store.Delete(obj)
}

// Replace implements cache.ReflectorStore.
func (s *summaryStore[T]) Replace(list []any, version string) error {
	if err := s.Store.Replace(list, version); err != nil {
		return err
	}
	s.mu.Lock()
	s.synced, s.listErr = true, nil
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *summaryStore[T]) listed(err error) {
	s.mu.Lock()
	changed := (err == nil) != (s.listErr == nil)
	s.listErr = err
	s.mu.Unlock()
	if changed {
		s.changed()
	}
}

// run lists and watches a resource of the member until ctx ends, and strips the objects of a list
// before the next page is read. The reflector retries with backoff, up to 30 s; its errors are
// reported by state and not logged.
func (s *summaryStore[T]) run(ctx context.Context, core cache.Getter, resource string, like runtime.Object, selector fields.Selector) {
	watcher := cache.NewFilteredListWatchFromClient(core, resource, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = selector.String()
	})
	list := watcher.ListWithContextFunc
	watcher.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if o.ResourceVersion == "0" {
			o.ResourceVersion = "" // the server ignores the page size for version 0
		}
		l, err := list(ctx, o)
		if ctx.Err() == nil {
			s.listed(err)
		}
		if err != nil {
			return nil, err
		}
		return l, meta.EachListItem(l, func(o runtime.Object) error { s.strip(o); return nil })
	}
	start := watcher.WatchFuncWithContext
	watcher.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := start(ctx, o)
		// An API server that does not stream lists answers with Invalid, and is asked for a list.
		if o.SendInitialEvents != nil && err != nil && !apierrors.IsInvalid(err) && ctx.Err() == nil {
			s.listed(err)
		}
		return w, err
	}
	silent := klog.NewContext(ctx, logr.Discard())
	cache.NewReflectorWithOptions(kube.CancelableListWatch(watcher), like, s, cache.ReflectorOptions{Name: "clusterstatus"}).RunWithContext(silent)
}

// inventory holds the member's nodes, pods and ResourceQuotas.
type inventory struct {
	nodes  *summaryStore[node]
	pods   *summaryStore[pod]
	quotas *summaryStore[quota]
}

func newInventory(changed func()) *inventory {
	return &inventory{
		nodes:  newSummaryStore(changed, stripNode, func(o any) node { return nodeOf(o.(*corev1.Node)) }),
		pods:   newSummaryStore(changed, stripPod, func(o any) pod { return podOf(o.(*corev1.Pod)) }),
		quotas: newSummaryStore(changed, stripQuota, func(o any) quota { return quotaOf(o.(*corev1.ResourceQuota)) }),
	}
}

// run watches nodes, pods that have not terminated, and ResourceQuotas until ctx ends.
func (i *inventory) run(ctx context.Context, core cache.Getter) {
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	var all sync.WaitGroup
	all.Go(func() {
		i.nodes.run(ctx, core, "nodes", &corev1.Node{}, fields.Everything())
	})
	all.Go(func() {
		i.pods.run(ctx, core, "pods", &corev1.Pod{}, running)
	})
	all.Go(func() {
		i.quotas.run(ctx, core, "resourcequotas", &corev1.ResourceQuota{}, fields.Everything())
	})
	all.Wait()
}

// synced reports whether all were listed; err is the error of the last lists.
func (i *inventory) synced() (ok bool, err error) {
	nodes, nodesErr := i.nodes.state()
	pods, podsErr := i.pods.state()
	quotas, quotasErr := i.quotas.state()
	if nodesErr != nil {
		err = fmt.Errorf("list nodes: %w", nodesErr)
	}
	if podsErr != nil {
		err = errors.Join(err, fmt.Errorf("list pods: %w", podsErr))
	}
	if quotasErr != nil {
		err = errors.Join(err, fmt.Errorf("list resourcequotas: %w", quotasErr))
	}
	return nodes && pods && quotas, err
}

// stripNode, stripPod and stripQuota keep only the fields that nodeOf, podOf and quotaOf read, to
// bound the memory of a list in progress.
func stripNode(o runtime.Object) {
	n := o.(*corev1.Node)
	*n = corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: n.Labels},
		Spec:       corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints},
		Status:     corev1.NodeStatus{Allocatable: n.Status.Allocatable, Conditions: n.Status.Conditions},
	}
}

func stripPod(o runtime.Object) {
	p := o.(*corev1.Pod)
	containers := func(of []corev1.Container) []corev1.Container {
		var stripped []corev1.Container
		for _, c := range of {
			stripped = append(stripped, corev1.Container{Resources: c.Resources, RestartPolicy: c.RestartPolicy})
		}
		return stripped
	}
	*p = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, ResourceVersion: p.ResourceVersion},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, Overhead: p.Spec.Overhead, Resources: p.Spec.Resources,
			Containers: containers(p.Spec.Containers), InitContainers: containers(p.Spec.InitContainers),
		},
	}
}

// amounts are quantities of resources in ascending order of names: CPU in millicores, others in
// units. There are amounts for each pod, and a slice takes a tenth of the memory of a ResourceList.
type amounts []amount

type amount struct {
	name corev1.ResourceName
	n    int64
}

// node is the summary of a Node.
type node struct {
	name        string
	ready       bool
	allocatable amounts
	labels      map[string]string
	taints      []corev1.Taint // sorted
}

// pod is the summary of a Pod that has not terminated.
type pod struct {
	node     string // empty: not scheduled
	requests amounts
}

func amountsOf(list corev1.ResourceList) amounts {
	var a amounts
	for _, name := range slices.Sorted(maps.Keys(list)) {
		a = append(a, amount{name, clusterv1alpha1.AmountOf(name, list[name])})
	}
	return a
}

func nodeOf(n *corev1.Node) node {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return node{name: n.Name, ready: ready, allocatable: amountsOf(n.Status.Allocatable), labels: n.Labels, taints: taintsOf(n)}
}

// podOf sums requests as kube-scheduler does: init containers, sidecars, overhead.
func podOf(p *corev1.Pod) pod {
	return pod{node: p.Spec.NodeName, requests: amountsOf(resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}))}
}

// sum adds up amounts and counts, up to what an int64 holds.
type sum map[corev1.ResourceName]int64

func (s sum) add(a amounts) {
	for _, r := range a {
		s[r.name] = clusterv1alpha1.Plus(s[r.name], r.n, 1)
	}
}

// list returns the sum as a ResourceList, in the customary format of each resource.
func (s sum) list() corev1.ResourceList {
	l := make(corev1.ResourceList, len(s))
	for name, n := range s {
		switch {
		case name == corev1.ResourceCPU:
			l[name] = *resource.NewMilliQuantity(n, resource.DecimalSI)
		case name == corev1.ResourceMemory, name == corev1.ResourceStorage, name == corev1.ResourceEphemeralStorage,
			strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			l[name] = *resource.NewQuantity(n, resource.BinarySI)
		default:
			l[name] = *resource.NewQuantity(n, resource.DecimalSI)
		}
	}
	return l
}

// nodeSummary counts the nodes and the ready ones.
func nodeSummary(nodes []node) *clusterv1alpha1.NodeSummary {
	s := &clusterv1alpha1.NodeSummary{TotalNum: int32(len(nodes))}
	for _, n := range nodes {
		if n.ready {
			s.ReadyNum++
		}
	}
	return s
}

// resourceSummary sums the allocatable resources of all nodes, including cordoned and unready ones,
// those allocated to scheduled pods, and those that unscheduled pods request (allocating). Each pod
// counts as one of the resource pods.
func resourceSummary(nodes []node, pods []pod, models []clusterv1alpha1.ResourceModel) *clusterv1alpha1.ResourceSummary {
	allocatable, allocated, allocating := sum{}, sum{}, sum{}
	free := freeOf(nodes, pods)
	for _, n := range nodes {
		allocatable.add(n.allocatable)
	}
	for _, p := range pods {
		to := allocated
		if p.node == "" {
			to = allocating
		}
		to.add(p.requests)
		to[corev1.ResourcePods]++
	}
	out := &clusterv1alpha1.ResourceSummary{
		Allocatable: allocatable.list(), Allocated: allocated.list(), Allocating: allocating.list(),
		AllocatableModelings: modelings(nodes, free, models),
	}
	out.NodeLabels, out.NodePools, out.UnpooledLabels = nodePools(nodes, free, models)
	return out
}

// freeOf is what pods leave of each node, by its name.
func freeOf(nodes []node, pods []pod) map[string]sum {
	free := make(map[string]sum, len(nodes))
	for _, n := range nodes {
		free[n.name] = sum{}
		free[n.name].add(n.allocatable)
	}
	for _, p := range pods {
		of, known := free[p.node]
		if !known {
			continue
		}
		for _, r := range p.requests {
			of[r.name] = clusterv1alpha1.Plus(of[r.name], r.n, -1)
		}
		of[corev1.ResourcePods]--
	}
	return free
}

// modelings counts each node in the highest grade whose lower bounds all fit its free resources;
// nil without models.
func modelings(nodes []node, free map[string]sum, models []clusterv1alpha1.ResourceModel) []clusterv1alpha1.AllocatableModeling {
	if len(models) == 0 {
		return nil
	}
	counts := make([]clusterv1alpha1.AllocatableModeling, len(models))
	least := make([]amounts, len(models))
	for i, m := range models {
		counts[i].Grade = m.Grade
		list := corev1.ResourceList{}
		for _, r := range m.Ranges {
			list[r.Name] = r.Min
		}
		least[i] = amountsOf(list)
	}
	for _, n := range nodes {
		counts[grade(free[n.name], least)].Count++
	}
	return counts
}

// grade is the index of the highest grade that fits. Overcommitted nodes are in the lowest.
func grade(free sum, least []amounts) int {
	for i := len(least) - 1; i > 0; i-- {
		if !slices.ContainsFunc(least[i], func(r amount) bool { return free[r.name] < r.n }) {
			return i
		}
	}
	return 0
}
