package propagate

import (
	"cmp"
	"container/heap"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// order is the order of the templates that wait: the most urgent first, of equals the one that has waited longest. The work
// queue calls its methods one at a time, but for set.
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

// set notes how urgent a template is. It holds for the template from the next time on that it is added.
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
