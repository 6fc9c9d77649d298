package member

import (
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// set holds the objects of one kind. Objects in it are never changed, only replaced; so whoever has
// one may read it without lock.
type set struct {
	objects map[types.NamespacedName]*unstructured.Unstructured
	events  []event       // ascending
	expired uint64        // resourceVersion of the newest event that is forgotten
	changed chan struct{} // closed by the next event
}

// event is a change: before is nil for what was created, after for what is gone; version is what a
// watch shows then.
type event struct {
	version       uint64
	before, after *unstructured.Unstructured
	last          *unstructured.Unstructured // what is gone, with the resourceVersion of its end
}

func key(o *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// get is the object of a name. The caller has the lock, here and below.
func (m *Member) get(r *resource, name types.NamespacedName) (*unstructured.Unstructured, error) {
	o, ok := m.sets[r].objects[name]
	if !ok {
		return nil, apierrors.NewNotFound(r.groupResource(), name.Name)
	}
	return o, nil
}

// Count is the number of objects of a kind in a namespace.
func (m *Member) Count(group, version, name, namespace string) int {
	r := find(group, version, name)
	if r == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for key := range m.sets[r].objects {
		if key.Namespace == namespace {
			n++
		}
	}
	return n
}

// put stores an object, which is nothing else's from now on, under a new resourceVersion.
func (m *Member) put(r *resource, o *unstructured.Unstructured) {
	s := m.sets[r]
	m.version++
	o.SetResourceVersion(strconv.FormatUint(m.version, 10))
	m.publish(s, event{version: m.version, before: s.objects[key(o)], after: o})
	s.objects[key(o)] = o
	m.stored(r, o)
}

// remove takes an object away.
func (m *Member) remove(r *resource, o *unstructured.Unstructured) {
	s := m.sets[r]
	m.version++
	last := o.DeepCopy()
	last.SetResourceVersion(strconv.FormatUint(m.version, 10))
	delete(s.objects, key(o))
	m.publish(s, event{version: m.version, before: o, last: last})
	m.removed(r, o)
}

func (m *Member) publish(s *set, e event) {
	if len(s.events) >= m.options.History {
		half := len(s.events) / 2
		s.expired = s.events[half-1].version
		s.events = slices.Clone(s.events[half:])
	}
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// list is what a selection shows, sorted by namespace and name.
func (m *Member) list(r *resource, sel selection) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for _, o := range m.sets[r].objects {
		if sel.matches(o) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b *unstructured.Unstructured) int {
		if c := strings.Compare(a.GetNamespace(), b.GetNamespace()); c != 0 {
			return c
		}
		return strings.Compare(a.GetName(), b.GetName())
	})
	return found
}
