package execute

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
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// shelf holds one kind of the member's objects, each reduced to what is counted of it. A reflector fills it; it is the reflector's
// store, so that no whole object outlives its event.
type shelf[T any] struct {
	what    string // the kind, for people
	reduce  func(any) T
	changed func()

	mu     sync.Mutex
	items  map[string]T
	filled bool
	failed error // of the last list, nil if it succeeded
}

var _ cache.ReflectorStore = (*shelf[node])(nil)

func newShelf[T any](what string, changed func(), reduce func(any) T) *shelf[T] {
	return &shelf[T]{what: what, changed: changed, reduce: reduce, items: map[string]T{}}
}

// all are the items, in no order; ok is false before the first list.
func (s *shelf[T]) all() (items []T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.items)), s.filled
}

// state says whether the shelf was filled once, and why its last list failed.
func (s *shelf[T]) state() (filled bool, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filled, s.failed
}

// Add puts an object on the shelf.
func (s *shelf[T]) Add(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	item := s.reduce(obj)
	s.mu.Lock()
	former, had := s.items[key]
	s.items[key] = item
	s.mu.Unlock()
	if !had || !reflect.DeepEqual(former, item) {
		s.changed()
	}
	return nil
}

// Update is Add.
func (s *shelf[T]) Update(obj any) error { return s.Add(obj) }

// Delete takes an object off.
func (s *shelf[T]) Delete(obj any) error {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	delete(s.items, key)
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace puts a whole list in the place of what was there.
func (s *shelf[T]) Replace(list []any, _ string) error {
	items := make(map[string]T, len(list))
	for _, obj := range list {
		key, err := cache.MetaNamespaceKeyFunc(obj)
		if err != nil {
			return err
		}
		items[key] = s.reduce(obj)
	}
	s.mu.Lock()
	s.items, s.filled = items, true
	s.mu.Unlock()
	s.changed()
	return nil
}

// Resync has nothing to do.
func (s *shelf[T]) Resync() error { return nil }

// listed notes how a list went.
func (s *shelf[T]) listed(err error) {
	s.mu.Lock()
	news := (err == nil) != (s.failed == nil)
	s.failed = err
	s.mu.Unlock()
	if news {
		s.changed()
	}
}

// run keeps the shelf as the member has it until ctx ends. What fails is repeated with growing pauses, 30 s at most, and told by
// state instead of the log.
func (s *shelf[T]) run(ctx context.Context, like runtime.Object, from cache.ListerWatcher) {
	silent := klog.NewContext(ctx, logr.Discard())
	cache.NewReflectorWithOptions(from, like, s, cache.ReflectorOptions{Name: "clusterstatus"}).RunWithContext(silent)
}

// list notes the result of a list, and has it paged: from resource version 0 a server gives everything at once.
func list[L runtime.Object](noted func(error), of func(context.Context, metav1.ListOptions) (L, error)) cache.ListWithContextFunc {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		if o.ResourceVersion == "0" {
			o.ResourceVersion = ""
		}
		l, err := of(ctx, o)
		if ctx.Err() == nil {
			noted(err)
		}
		return l, err
	}
}

// stock are the member's nodes and pods.
type stock struct {
	nodes *shelf[node]
	pods  *shelf[pod]
}

func newStock(changed func()) *stock {
	return &stock{
		nodes: newShelf("nodes", changed, func(o any) node { return nodeOf(o.(*corev1.Node)) }),
		pods:  newShelf("pods", changed, func(o any) pod { return podOf(o.(*corev1.Pod)) }),
	}
}

// run watches both until ctx ends. Of the pods those that have ended are left to the member.
func (s *stock) run(ctx context.Context, member corev1client.CoreV1Interface) {
	alive := fields.AndSelectors(
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed))).String()
	nodes, pods := member.Nodes(), member.Pods(metav1.NamespaceAll)
	var both sync.WaitGroup
	both.Go(func() {
		s.nodes.run(ctx, &corev1.Node{}, &cache.ListWatch{
			ListWithContextFunc: list(s.nodes.listed, func(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
				l, err := nodes.List(ctx, o)
				for i := range l.Items {
					stripNode(&l.Items[i])
				}
				return l, err
			}),
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return nodes.Watch(ctx, o) },
		})
	})
	both.Go(func() {
		s.pods.run(ctx, &corev1.Pod{}, &cache.ListWatch{
			ListWithContextFunc: list(s.pods.listed, func(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
				o.FieldSelector = alive
				l, err := pods.List(ctx, o)
				for i := range l.Items {
					stripPod(&l.Items[i])
				}
				return l, err
			}),
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = alive
				return pods.Watch(ctx, o)
			},
		})
	})
	both.Wait()
}

// filled says whether both were listed once; err names what could not be listed of late.
func (s *stock) filled() (ok bool, err error) {
	nodes, nodesErr := s.nodes.state()
	pods, podsErr := s.pods.state()
	if nodesErr != nil {
		err = fmt.Errorf("list %s: %w", s.nodes.what, nodesErr)
	}
	if podsErr != nil {
		err = errors.Join(err, fmt.Errorf("list %s: %w", s.pods.what, podsErr))
	}
	return nodes && pods, err
}

// stripNode and stripPod leave what nodeOf and podOf read, so that a list in progress holds little more than the counts.
func stripNode(n *corev1.Node) {
	*n = corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion},
		Status:     corev1.NodeStatus{Allocatable: n.Status.Allocatable, Conditions: n.Status.Conditions},
	}
}

func stripPod(p *corev1.Pod) {
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

// amounts of resources by name, in ascending order: CPU in thousandths of a core, all else in units. A slice takes a tenth of the
// memory of a ResourceList, and there is one for each pod.
type amounts []amount

type amount struct {
	name corev1.ResourceName
	n    int64
}

// node is what is counted of a Node.
type node struct {
	name  string
	ready bool
	has   amounts // status.allocatable
}

// pod is what is counted of a Pod that has not ended.
type pod struct {
	node string // empty: not bound yet
	asks amounts
}

func amountsOf(list corev1.ResourceList) amounts {
	var a amounts
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		n := q.Value()
		if name == corev1.ResourceCPU {
			n = q.MilliValue()
		}
		a = append(a, amount{name, n})
	}
	return a
}

func nodeOf(n *corev1.Node) node {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	return node{name: n.Name, ready: ready, has: amountsOf(n.Status.Allocatable)}
}

// podOf counts requests as the scheduler of Kubernetes does: init containers, sidecars, overhead.
func podOf(p *corev1.Pod) pod {
	return pod{node: p.Spec.NodeName, asks: amountsOf(resourcehelper.PodRequests(p, resourcehelper.PodResourcesOptions{}))}
}

// sum adds up amounts and counts.
type sum map[corev1.ResourceName]int64

func (s sum) add(a amounts) {
	for _, r := range a {
		s[r.name] += r.n
	}
}

// list is the sum as the API has it, in the units in which people write the resource.
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

// nodeSummary counts all nodes and those that are ready.
func nodeSummary(nodes []node) *clusterv1alpha1.NodeSummary {
	s := &clusterv1alpha1.NodeSummary{TotalNum: int32(len(nodes))}
	for _, n := range nodes {
		if n.ready {
			s.ReadyNum++
		}
	}
	return s
}

// resourceSummary sums up: allocatable of all nodes, also of those that are cordoned or not ready; allocated to pods with a node,
// allocating to those without. Pods are a resource of their own, one each.
func resourceSummary(nodes []node, pods []pod, models []clusterv1alpha1.ResourceModel) *clusterv1alpha1.ResourceSummary {
	allocatable, allocated, allocating := sum{}, sum{}, sum{}
	for _, n := range nodes {
		allocatable.add(n.has)
	}
	for _, p := range pods {
		to := allocated
		if p.node == "" {
			to = allocating
		}
		to.add(p.asks)
		to[corev1.ResourcePods]++
	}
	return &clusterv1alpha1.ResourceSummary{
		Allocatable: allocatable.list(), Allocated: allocated.list(), Allocating: allocating.list(),
		AllocatableModelings: modelings(nodes, pods, models),
	}
}

// modelings counts each node in the highest grade of which it has all lower bounds free. Without models nothing is counted.
func modelings(nodes []node, pods []pod, models []clusterv1alpha1.ResourceModel) []clusterv1alpha1.AllocatableModeling {
	if len(models) == 0 {
		return nil
	}
	free := make(map[string]sum, len(nodes))
	for _, n := range nodes {
		free[n.name] = sum{}
		free[n.name].add(n.has)
	}
	for _, p := range pods {
		of, known := free[p.node]
		if !known {
			continue
		}
		for _, r := range p.asks {
			of[r.name] -= r.n
		}
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
	for _, f := range free {
		counts[grade(f, least)].Count++
	}
	return counts
}

// grade is the place of the highest grade that fits. A node that is over-committed is in the lowest.
func grade(free sum, least []amounts) int {
	for i := len(least) - 1; i > 0; i-- {
		if !slices.ContainsFunc(least[i], func(r amount) bool { return free[r.name] < r.n }) {
			return i
		}
	}
	return 0
}
