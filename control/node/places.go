package node

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	clientcache "k8s.io/client-go/tools/cache"
)

// placesPage is how many pods are read at once: as many of them whole are in memory for a moment.
const placesPage = 500

// placesPatience bounds how long a reconcile waits for the first list of the cluster's pods.
const placesPatience = 10 * time.Second

// places knows where every pod of the cluster runs. Only a gateway without globalnet needs it, so only there it is watched.
// Of a pod it keeps name, address, node and creation time; the whole pods go page by page.
type places struct {
	source  clientcache.ListerWatcher
	changed func() // after each change of an answer of all

	mu     sync.Mutex
	stop   context.CancelFunc // nil: not watching
	synced chan struct{}      // closed when the first list is in
	pods   map[string]place   // by <namespace>/<name>
	known  map[netip.Addr]string
}

// needsPlaces says whether the node switches packets to pods by their own addresses: as a gateway of a cluster without
// globalnet, also one that was taken out of service in this moment (its tenure has not taken that in yet) or a while ago.
func needsPlaces(objs Objects, t tenure, now time.Time) bool {
	return !objs.Config.Globalnet() && (wanted(objs) || t.gateway || now.Before(t.until))
}

type place struct {
	address netip.Addr
	node    unique.Handle[string] // many pods, few nodes
	created int64                 // seconds since 1970
}

func newPlaces(source clientcache.ListerWatcher, changed func()) *places {
	return &places{source: source, changed: changed}
}

// all leads from pod addresses to node names. It begins to watch if need be, until ctx ends or end is called, and waits for
// the first list: tables made of a part of it would take the others' pods away. The answer must not be changed.
func (p *places) all(ctx context.Context) (map[netip.Addr]string, error) {
	p.mu.Lock()
	if p.stop == nil {
		ctx, stop := context.WithCancel(ctx)
		p.stop, p.synced, p.pods, p.known = stop, make(chan struct{}), map[string]place{}, nil
		store := &placesStore{places: p, synced: p.synced}
		r := clientcache.NewReflectorWithOptions(p.source, &corev1.Pod{}, store, clientcache.ReflectorOptions{Name: "pods of the cluster"})
		go r.RunWithContext(ctx)
	}
	synced := p.synced
	p.mu.Unlock()
	select {
	case <-synced:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(placesPatience):
		return nil, fmt.Errorf("read the pods of the cluster: no full list after %s; the tables stay as they are", placesPatience)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = make(map[netip.Addr]string, len(p.pods))
		newest := make(map[netip.Addr]place, len(p.pods))
		for _, pod := range p.pods {
			// An address goes to the newest that has it: of an older one the end is not known yet.
			if other, taken := newest[pod.address]; !taken || pod.created > other.created {
				newest[pod.address] = pod
				p.known[pod.address] = pod.node.Value()
			}
		}
	}
	return p.known, nil
}

// end stops watching and forgets.
func (p *places) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
		p.stop, p.pods, p.known = nil, nil, nil
	}
}

// placesStore takes what one reflector reads; it does nothing any more once another watch has begun.
type placesStore struct {
	places *places
	synced chan struct{}
}

// set changes the pods under the lock and tells if an answer of all has changed.
func (s *placesStore) set(change func(pods map[string]place) (changed bool)) {
	p := s.places
	p.mu.Lock()
	changed := p.synced == s.synced && p.stop != nil && change(p.pods)
	if changed {
		p.known = nil
	}
	p.mu.Unlock()
	if changed {
		p.changed()
	}
}

// note takes a pod in, or away.
func (s *placesStore) note(obj any, exists bool) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("watch the pods of the cluster: got a %T", obj)
	}
	s.set(func(pods map[string]place) bool {
		key := pod.Namespace + "/" + pod.Name
		before, had := pods[key]
		now, has := place{}, false
		if exists {
			now, has = placeOf(pod)
		}
		if has {
			pods[key] = now
		} else {
			delete(pods, key)
		}
		return had != has || before != now
	})
	return nil
}

// placeOf is where a pod is; one that has no address, has ended, or has its node's address, is nowhere.
func placeOf(pod *corev1.Pod) (place, bool) {
	address, ok := podIP(pod)
	if !ok || finished(pod) || pod.Spec.HostNetwork || pod.Spec.NodeName == "" {
		return place{}, false
	}
	return place{address: address, node: unique.Make(pod.Spec.NodeName), created: pod.CreationTimestamp.Unix()}, true
}

// Add, Update, Delete, Replace and Resync make it a store for a reflector.
func (s *placesStore) Add(obj any) error    { return s.note(obj, true) }
func (s *placesStore) Update(obj any) error { return s.note(obj, true) }
func (s *placesStore) Delete(obj any) error { return s.note(obj, false) }

func (s *placesStore) Replace(list []any, _ string) error {
	s.set(func(pods map[string]place) bool {
		clear(pods)
		for _, obj := range list {
			if pod, ok := obj.(*corev1.Pod); ok {
				if at, ok := placeOf(pod); ok {
					pods[pod.Namespace+"/"+pod.Name] = at
				}
			}
		}
		return true
	})
	select {
	case <-s.synced:
	default:
		close(s.synced) // the reflector calls from one goroutine
	}
	return nil
}

func (s *placesStore) Resync() error { return nil }

// PodsOfCluster lists and watches the pods of all nodes for Options.Pods, page by page, and of each only what is kept. Those
// that wait for a node or have ended are left to the server.
func PodsOfCluster(c kubernetes.Interface) clientcache.ListerWatcher {
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	).String()
	pods := c.CoreV1().Pods(metav1.NamespaceAll)
	return &clientcache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// The server cuts a list into pages only if it is to be as new as possible.
			o.ResourceVersion, o.ResourceVersionMatch, o.FieldSelector, o.Limit = "", "", running, placesPage
			all := &corev1.PodList{}
			for {
				page, err := pods.List(ctx, o)
				if err != nil {
					return nil, err
				}
				for i := range page.Items {
					all.Items = append(all.Items, *slim(&page.Items[i]))
				}
				all.ResourceVersion = page.ResourceVersion
				if o.Continue = page.Continue; o.Continue == "" {
					return all, nil
				}
			}
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = running
			return pods.Watch(ctx, o)
		},
	}
}

// slim is what placeOf reads of a pod.
func slim(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
}
