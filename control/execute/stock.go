package execute

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
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
