package execute

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// objectKey names an object of the member, whatever the version.
type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// remembered is what is known of one Work beside what can be read. Without it (after a start) nothing goes wrong, some requests
// more are made. Only the worker that has the Work uses it.
type remembered struct {
	uid  types.UID // of the Work
	hash string    // of the manifest that the following is about
	// dropped are the fields that the member does not know; put says that the manifest has duplicate list keys.
	dropped []string
	put     bool
	// settled is the digest of the member's object that was found, or left, as it should be, and whether an autoscaler scaled it.
	settled string
	scaled  bool
	// changedAt is when the object was last created or changed by us.
	changedAt time.Time
	// reverts counts changes in the member that were undone, the last one at revertedAt.
	reverts    int
	revertedAt time.Time
}

// about resets what a new manifest makes obsolete.
func (r *remembered) about(hash string) {
	if r.hash != hash {
		r.hash, r.dropped, r.put, r.settled, r.reverts = hash, nil, false, "", 0
	}
}

// memory is what is remembered of all Works.
type memory struct {
	mu      sync.Mutex
	of      map[string]*remembered
	objects map[objectKey]string // which Work an object has
	keys    map[string]objectKey // and the other way
	// reports are the statuses of Works as our last writes left them, until the cache shows them.
	reports map[string]report
	// writes are the objects of Works in the member as our last writes left them, or as they were read there, until the cache shows them.
	writes map[string]*unstructured.Unstructured
}

// report is a status as it was written, with the resourceVersion of the Work then.
type report struct {
	version string
	status  workv1alpha1.WorkStatus
}

func newMemory() *memory {
	return &memory{of: map[string]*remembered{}, objects: map[objectKey]string{}, keys: map[string]objectKey{},
		reports: map[string]report{}, writes: map[string]*unstructured.Unstructured{}}
}

// reported notes a write of a Work's status.
func (m *memory) reported(work *workv1alpha1.Work) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reports[work.Name] = report{work.ResourceVersion, work.Status}
}

// catchUp gives a Work from the cache the status that we have written since; false if that is not known.
func (m *memory) catchUp(work *workv1alpha1.Work) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.reports[work.Name]
	if ok {
		work.ResourceVersion, work.Status = r.version, *r.status.DeepCopy()
	}
	return ok
}

// shown says that the cache has a Work in a version, or what became of it since.
func (m *memory) shown(work, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.reports[work]; ok && !kube.OlderVersion(version, r.version) {
		delete(m.reports, work)
	}
}

// wrote notes the object of a Work as the member has it, whatever the cache shows; nil: it is not there.
func (m *memory) wrote(work string, object *unstructured.Unstructured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if object == nil {
		delete(m.writes, work)
		return
	}
	m.writes[work] = object
}

// newer is a later state of a Work's object than the one that the cache shows; nil if none is known.
func (m *memory) newer(work string, cached *unstructured.Unstructured) *unstructured.Unstructured {
	m.cached(work, cached)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes[work]
}

// cached says that the cache shows a Work's object like this: what is remembered of it stays only if it is later.
func (m *memory) cached(work string, object *unstructured.Unstructured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, ok := m.writes[work]
	if ok && (w.GetUID() != object.GetUID() || !kube.OlderVersion(object.GetResourceVersion(), w.GetResourceVersion())) {
		delete(m.writes, work)
	}
}

// recall returns what is remembered of a Work; nothing, if it has another UID than before.
func (m *memory) recall(work string, uid types.UID) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of[work]
	if r == nil || r.uid != uid {
		r = &remembered{uid: uid}
		m.of[work] = r
	}
	return r
}

// holds notes which object a Work has.
func (m *memory) holds(work string, object objectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.keys[work]; ok && old != object && m.objects[old] == work {
		delete(m.objects, old)
	}
	m.keys[work], m.objects[object] = object, work
}

// workOf returns the Work of an object, "" if there is none.
func (m *memory) workOf(object objectKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[object]
}

func (m *memory) forget(work string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if object, ok := m.keys[work]; ok && m.objects[object] == work {
		delete(m.objects, object)
	}
	delete(m.keys, work)
	delete(m.of, work)
	delete(m.reports, work)
	delete(m.writes, work)
}

func (m *memory) works() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]string, 0, len(m.of))
	for work := range m.of {
		all = append(all, work)
	}
	return all
}
