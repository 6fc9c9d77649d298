package hubclient

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// annotationLeftOut marks an object in the cache of which nothing but its name is kept. It is never
// written to an API server; a member that sets it loses that object alone.
const annotationLeftOut = "pelago.io/left-out"

// share is how much of one kind the cache keeps of one member: objects, and bytes of their JSON.
type share struct{ objects, bytes int }

// shareOf is the share of a kind; false: it is not limited, since members do not write it.
func shareOf(obj any) (kind string, s share, limited bool) {
	switch obj.(type) {
	case *v1alpha1.ServiceContribution:
		return "servicecontributions", share{config.MaxMemberObjects, 32 << 20}, true
	case *discoveryv1.EndpointSlice:
		return "endpointslices", share{config.MaxMemberObjects, 32 << 20}, true
	case *submarinerv1.Endpoint: // copied into the member
		return "endpoints", share{config.MaxMemberEndpoints, 4 << 20}, true
	}
	return "", share{}, false
}

// shares keep each member to its share of the cache. The hub bounds what a member has as well
// (policy pelago-member-count), if it runs pelago-hub and has the policy.
//
// An object that is left out is taken when it is written again while there is room, when the hub's
// objects are listed again, and when the agent restarts. Those of the own cluster are always taken.
type shares struct {
	own  string
	left *prometheus.GaugeVec

	mu sync.Mutex
	of map[member]*portion
}

// member is one kind of objects of a member.
type member struct{ cluster, kind string }

// portion is what a member has of its share.
type portion struct {
	bytes int
	taken map[types.UID]int // → bytes
	left  map[types.UID]bool
}

func newShares(own string) *shares {
	return &shares{own: own, of: map[member]*portion{}, left: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pelago_hub_objects_left_out", Help: "Objects of a member at the hub that exceed its share of the cache and are not used.",
	}, []string{"member_cluster", "resource"})}
}

// transform is a cache.TransformFunc. It is idempotent, as informers need.
func (s *shares) transform(obj any) (any, error) {
	kind, limit, limited := shareOf(obj)
	o, ok := obj.(client.Object)
	if !ok { // the tombstone of an object
		return obj, nil
	}
	o.SetManagedFields(nil)
	cluster := writerOf(o)
	if !limited || s.own != "" && cluster == s.own {
		return obj, nil
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("measure %s of cluster %s: %w", o.GetName(), cluster, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := member{cluster, kind}
	p := s.of[id]
	if p == nil {
		p = &portion{taken: map[types.UID]int{}, left: map[types.UID]bool{}}
		s.of[id] = p
	}
	former, has := p.taken[o.GetUID()]
	if leftOut(o) || !has && len(p.taken) >= limit.objects || p.bytes-former+len(text) > limit.bytes {
		p.forget(o.GetUID())
		p.left[o.GetUID()] = true
		obj = nameOf(o)
	} else {
		delete(p.left, o.GetUID())
		p.taken[o.GetUID()] = len(text)
		p.bytes += len(text) - former
	}
	s.left.WithLabelValues(cluster, kind).Set(float64(len(p.left)))
	return obj, nil
}

// handler forgets objects that are deleted or replaced by others of their names.
func (s *shares) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{DeleteFunc: s.deleted, UpdateFunc: func(old, obj any) {
		was, ok1 := old.(client.Object)
		is, ok2 := obj.(client.Object)
		if ok1 && ok2 && was.GetUID() != is.GetUID() {
			s.deleted(old)
		}
	}}
}

func (s *shares) deleted(obj any) {
	if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	kind, _, _ := shareOf(obj)
	o, ok := obj.(client.Object)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := member{writerOf(o), kind}
	p := s.of[id]
	if p == nil {
		return
	}
	p.forget(o.GetUID())
	if s.left.WithLabelValues(id.cluster, kind).Set(float64(len(p.left))); len(p.taken)+len(p.left) == 0 {
		delete(s.of, id)
		s.left.DeleteLabelValues(id.cluster, kind)
	}
}

// leftOut reports whether nothing of an object is used.
func leftOut(o client.Object) bool {
	_, marked := o.GetAnnotations()[annotationLeftOut]
	return marked
}

// writerOf is the member that has written an object: the hub compares the label with the writer.
func writerOf(o client.Object) string {
	if id := o.GetLabels()[submarinerv1.LabelClusterID]; id != "" {
		return id
	}
	return o.GetAnnotations()[annotationLeftOut]
}

func (p *portion) forget(uid types.UID) {
	p.bytes -= p.taken[uid]
	delete(p.taken, uid)
	delete(p.left, uid)
}

// nameOf is an object of which nothing is used: no index finds it, and it has no cluster.
func nameOf(o client.Object) client.Object {
	meta := metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		CreationTimestamp: o.GetCreationTimestamp(), Annotations: map[string]string{annotationLeftOut: writerOf(o)}}
	switch o.(type) {
	case *v1alpha1.ServiceContribution:
		return &v1alpha1.ServiceContribution{ObjectMeta: meta}
	case *discoveryv1.EndpointSlice:
		return &discoveryv1.EndpointSlice{ObjectMeta: meta}
	}
	return &submarinerv1.Endpoint{ObjectMeta: meta}
}
