package propagate

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// classes are the PriorityClasses that policies name, as last read.
type classes struct {
	mu sync.RWMutex
	of map[string]class
}

type class struct {
	value int32
	read  time.Time
}

func (c *classes) get(name string) (class, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	known, ok := c.of[name]
	return known, ok
}

func (c *classes) put(name string, read class) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]class{}
	}
	c.of[name] = read
}

func (c *classes) none() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.of) == 0
}

// priority is that of the policy's priority class, nil if it names none; found is false if there is
// no such class.
func (r *reconciler) priority(ctx context.Context, p *propagationPolicy) (value *int32, found bool, err error) {
	s := p.Spec.SchedulePriority
	if s == nil {
		return nil, true, nil
	}
	now := time.Now()
	if known, ok := r.classes.get(s.PriorityClassName); ok && now.Sub(known.read) < classTTL {
		return &known.value, true, nil
	}
	var live schedulingv1.PriorityClass
	err = r.live.Get(ctx, client.ObjectKey{Name: s.PriorityClassName}, &live)
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read PriorityClass %s of %s: %w", s.PriorityClassName, p, err)
	}
	r.classes.put(s.PriorityClassName, class{live.Value, now})
	return &live.Value, true, nil
}

// learn reads the classes that policies name and that are not known yet, and enqueues the templates
// of these policies with their priority.
func (r *reconciler) learn(ctx context.Context, policies []*propagationPolicy) {
	for _, p := range policies {
		if s := p.Spec.SchedulePriority; s != nil {
			if _, known := r.classes.get(s.PriorityClassName); known {
				continue
			}
			if _, found, err := r.priority(ctx, p); err != nil {
				log.FromContext(ctx).Error(err, "templates are not served by priority")
			} else if found {
				r.addPolicy(ctx, p)
			}
		}
	}
}

// add enqueues a template; those of higher priority are reconciled first.
func (r *reconciler) add(key Key) {
	var t *unstructured.Unstructured
	if !r.classes.none() && r.kinds.has(key.GVK) {
		// an error reports that its kind is being listed, which shows it
		t, _ = r.kinds.get(context.Background(), key)
	}
	r.addAs(key, t)
}

// addAs enqueues a template with its priority; nil: its priority stays.
func (r *reconciler) addAs(key Key, t *unstructured.Unstructured) {
	if t != nil {
		r.order.set(key, r.urgency(t))
	}
	r.queue.Add(key)
}

// urgency is the value of the PriorityClass of the policy that a template follows or is going to
// follow. A template without a policy that others depend on has the highest value of these. Without
// a class it is 0, as everywhere in Kubernetes.
func (r *reconciler) urgency(t *unstructured.Unstructured) int32 {
	if r.classes.none() {
		return 0
	}
	ctx := context.Background() // all is in memory
	held, err := r.holder(ctx, claimOf(t))
	if err != nil {
		return 0 // the reconcile fails as well, and reports it
	}
	all, err := r.selecting(ctx, t)
	if err != nil {
		return 0
	}
	c, err := match(t, held, all)
	if err != nil {
		return 0
	}
	if c.policy != nil && c.policy.Spec.SchedulePriority != nil {
		// 0 until it is known
		known, _ := r.classes.get(c.policy.Spec.SchedulePriority.PriorityClassName)
		return known.value
	}
	if c.policy != nil {
		return 0
	}
	parents, err := r.parents(ctx, t)
	if err != nil {
		return 0
	}
	var most *int32
	for _, b := range parents {
		if s := b.Spec.SchedulePriority; s != nil && (most == nil || s.Priority > *most) {
			most = &s.Priority
		}
	}
	return ptr.Deref(most, 0)
}

// order is the order of waiting templates: the most urgent first, among equals the one that has
// waited longest. The work queue serializes calls of its methods, except set.
type order struct {
	mu      sync.Mutex
	urgency map[Key]int32 // where it is not 0, whether they wait or not

	waiting waiters
	at      map[Key]*waiter
	count   uint64
}

type waiter struct {
	key     Key
	urgency int32
	since   uint64 // in the order of arrival
	index   int
}

func newOrder() *order { return &order{urgency: map[Key]int32{}, at: map[Key]*waiter{}} }

// queue is a work queue that keeps the order.
func (o *order) queue(name string, limit workqueue.TypedRateLimiter[Key]) workqueue.TypedRateLimitingInterface[Key] {
	ordered := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[Key]{Name: name, Queue: o})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[Key]{Name: name, Queue: ordered})
	return workqueue.NewTypedRateLimitingQueueWithConfig(limit,
		workqueue.TypedRateLimitingQueueConfig[Key]{Name: name, DelayingQueue: delaying})
}

// set notes how urgent a template is. It holds for the template from the next time on that it is
// added.
func (o *order) set(key Key, urgency int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if urgency == 0 {
		delete(o.urgency, key)
	} else {
		o.urgency[key] = urgency
	}
}

func (o *order) of(key Key) int32 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.urgency[key]
}

// Len implements workqueue.Queue.
func (o *order) Len() int { return len(o.waiting) }

// Push implements workqueue.Queue: a template begins to wait.
func (o *order) Push(key Key) {
	o.count++
	e := &waiter{key: key, urgency: o.of(key), since: o.count}
	o.at[key] = e
	heap.Push(&o.waiting, e)
}

// Touch implements workqueue.Queue: a template that waits was added again.
func (o *order) Touch(key Key) {
	if e := o.at[key]; e != nil {
		e.urgency = o.of(key)
		heap.Fix(&o.waiting, e.index)
	}
}

// Pop implements workqueue.Queue.
func (o *order) Pop() Key {
	e := heap.Pop(&o.waiting).(*waiter)
	delete(o.at, e.key)
	return e.key
}

// waiters are a heap, for container/heap.
type waiters []*waiter

func (h waiters) Len() int { return len(h) }

func (h waiters) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[j].urgency, h[i].urgency), cmp.Compare(h[i].since, h[j].since)) < 0
}

func (h waiters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *waiters) Push(e any) {
	w := e.(*waiter)
	w.index = len(*h)
	*h = append(*h, w)
}

func (h *waiters) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
