package propagate

import (
	"context"
	"fmt"
	"sync"

	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// classes are the values of the PriorityClasses that policies name, as last read.
type classes struct {
	mu    sync.RWMutex
	value map[string]int32
}

func (c *classes) get(name string) (int32, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	value, ok := c.value[name]
	return value, ok
}

func (c *classes) put(name string, value int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.value == nil {
		c.value = map[string]int32{}
	}
	c.value[name] = value
}

func (c *classes) none() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.value) == 0
}

// priority is that of the policy's priority class, nil if it names none; found is false if there is no such class.
func (r *reconciler) priority(ctx context.Context, p *propagationPolicy) (value *int32, found bool, err error) {
	s := p.spec.SchedulePriority
	if s == nil {
		return nil, true, nil
	}
	var class schedulingv1.PriorityClass
	err = r.live.Get(ctx, client.ObjectKey{Name: s.PriorityClassName}, &class)
	switch {
	case apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read PriorityClass %s of %s: %w", s.PriorityClassName, p, err)
	}
	r.classes.put(s.PriorityClassName, class.Value)
	return &class.Value, true, nil
}

// learn reads the classes that policies name and that are not known yet. The templates of these policies, which may wait by
// now, are asked for anew, with their priority.
func (r *reconciler) learn(ctx context.Context, policies []*propagationPolicy) {
	for _, p := range policies {
		if s := p.spec.SchedulePriority; s != nil {
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

// add asks for a template; those of higher priority are served first.
func (r *reconciler) add(key Key) {
	var t *unstructured.Unstructured
	if !r.classes.none() && r.kinds.has(key.GVK) {
		t, _ = r.kinds.get(context.Background(), key) // an error says that its kind is being listed, which shows it
	}
	r.addAs(key, t)
}

// addAs asks for a template that is known; nil if it is not: it is as urgent as it was, then.
func (r *reconciler) addAs(key Key, t *unstructured.Unstructured) {
	if t != nil {
		r.order.set(key, r.urgency(t))
	}
	r.queue.Add(key)
}

// urgency is the value of the PriorityClass of the policy that a template follows or is going to follow. One that is needed by
// others is as urgent as the most urgent of these. It is 0 without a class, as everywhere in Kubernetes.
func (r *reconciler) urgency(t *unstructured.Unstructured) int32 {
	if r.classes.none() {
		return 0
	}
	ctx := context.Background() // all is in memory
	held, err := r.holder(ctx, claimOf(t))
	if err != nil {
		return 0 // the reconcile fails as well, and says so
	}
	all, err := r.selecting(ctx, t)
	if err != nil {
		return 0
	}
	c, err := match(t, held, all)
	if err != nil {
		return 0
	}
	if c.policy != nil && c.policy.spec.SchedulePriority != nil {
		value, _ := r.classes.get(c.policy.spec.SchedulePriority.PriorityClassName) // 0 until it is known
		return value
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
		if s := b.spec.SchedulePriority; s != nil && (most == nil || s.Priority > *most) {
			most = &s.Priority
		}
	}
	return ptr.Deref(most, 0)
}
