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

	"github.com/pelago-net/pelago/control/node/tables"
)

// podsPage bounds how many whole pods of a list are in memory at once, where the API server does
// not stream it.
const podsPage = 500

// podsTimeout bounds how long a reconcile waits for the first list of the cluster's pods.
const podsTimeout = 10 * time.Second

// podNodes knows the node of every pod of the cluster. It watches on gateways without globalnet
// only, and keeps name, address, node and creation time of a pod.
type podNodes struct {
	source  clientcache.ListerWatcher
	changed func() // called after each change of the result of all

	mu     sync.Mutex
	stop   context.CancelFunc // nil: not watching
	synced chan struct{}      // closed when the first list is complete
	pods   map[string]podNode // by <namespace>/<name>
	known  map[netip.Addr]string
}

// needsPodNodes reports whether the node forwards packets by the addresses of pods: as a gateway of
// a cluster without globalnet, also while it drains, or is about to (its role is not updated yet).
func needsPodNodes(objs tables.Objects, r role, now time.Time) bool {
	return !objs.Config.Globalnet() && (tables.Wanted(objs) || r.gateway || r.isDraining(now))
}

type podNode struct {
	address netip.Addr
	node    unique.Handle[string] // many pods, few nodes
	created int64                 // seconds since 1970
}

func newPodNodes(source clientcache.ListerWatcher, changed func()) *podNodes {
	return &podNodes{source: source, changed: changed}
}

// all returns the node names by pod address. It starts to watch if necessary, until ctx ends or end
// is called, and waits for the first list to be complete: tables built from a part of it would lack
// the other pods. The result must not be changed.
func (p *podNodes) all(ctx context.Context) (map[netip.Addr]string, error) {
	p.mu.Lock()
	if p.stop == nil {
		ctx, stop := context.WithCancel(ctx)
		p.stop, p.synced, p.pods, p.known = stop, make(chan struct{}), map[string]podNode{}, nil
		store := &podNodesStore{podNodes: p, synced: p.synced}
		r := clientcache.NewReflectorWithOptions(p.source, &corev1.Pod{}, store, clientcache.ReflectorOptions{Name: "pods of the cluster"})
		go r.RunWithContext(ctx)
	}
	synced := p.synced
	p.mu.Unlock()
	select {
	case <-synced:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(podsTimeout):
		return nil, fmt.Errorf("read the pods of the cluster: no full list after %s; the tables stay as they are", podsTimeout)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = make(map[netip.Addr]string, len(p.pods))
		newest := make(map[netip.Addr]podNode, len(p.pods))
		for _, pod := range p.pods {
			// The newest pod of an address has it: the end of the older one has not been observed
			// yet.
			if other, taken := newest[pod.address]; !taken || pod.created > other.created {
				newest[pod.address] = pod
				p.known[pod.address] = pod.node.Value()
			}
		}
	}
	return p.known, nil
}

// end stops watching and drops the pods.
func (p *podNodes) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop()
		p.stop, p.pods, p.known = nil, nil, nil
	}
}

// podNodesStore is the store of one reflector; it ignores events once another watch has begun.
type podNodesStore struct {
	podNodes *podNodes
	synced   chan struct{}
}

// set changes the pods under the lock and calls changed if the result of all has changed.
func (s *podNodesStore) set(change func(pods map[string]podNode) (changed bool)) {
	p := s.podNodes
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

// update adds or removes a pod.
func (s *podNodesStore) update(obj any, exists bool) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("watch the pods of the cluster: got a %T", obj)
	}
	s.set(func(pods map[string]podNode) bool {
		key := pod.Namespace + "/" + pod.Name
		before, had := pods[key]
		now, has := podNode{}, false
		if exists {
			now, has = podNodeOf(pod)
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

// podNodeOf returns the node of a pod; ok is false for a pod without an address of its own, or one
// that has ended.
func podNodeOf(pod *corev1.Pod) (podNode, bool) {
	address, ok := tables.PodIP(pod)
	if !ok || tables.Finished(pod) || pod.Spec.HostNetwork || pod.Spec.NodeName == "" {
		return podNode{}, false
	}
	return podNode{address: address, node: unique.Make(pod.Spec.NodeName), created: pod.CreationTimestamp.Unix()}, true
}

// Add, Update, Delete, Replace and Resync implement cache.ReflectorStore.
func (s *podNodesStore) Add(obj any) error    { return s.update(obj, true) }
func (s *podNodesStore) Update(obj any) error { return s.update(obj, true) }
func (s *podNodesStore) Delete(obj any) error { return s.update(obj, false) }

func (s *podNodesStore) Replace(list []any, _ string) error {
	s.set(func(pods map[string]podNode) bool {
		clear(pods)
		for _, obj := range list {
			if pod, ok := obj.(*corev1.Pod); ok {
				if at, ok := podNodeOf(pod); ok {
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

func (s *podNodesStore) Resync() error { return nil }

// Transformer implements cache.TransformingStore: the reflector keeps a streamed list until it is
// complete.
func (s *podNodesStore) Transformer() clientcache.TransformFunc {
	return func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return slim(pod), nil
		}
		return obj, nil
	}
}

// PodsOfCluster lists and watches the pods of all nodes for Options.Pods, page by page, and of each
// only what is kept. The server filters out those without a node and those that have ended.
func PodsOfCluster(c kubernetes.Interface) clientcache.ListerWatcher {
	running := fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	).String()
	pods := c.CoreV1().Pods(metav1.NamespaceAll)
	return &clientcache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// The server pages only consistent reads (no resourceVersion).
			o.ResourceVersion, o.ResourceVersionMatch, o.FieldSelector, o.Limit = "", "", running, podsPage
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

// slim returns what podNodeOf reads of a pod.
func slim(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, CreationTimestamp: pod.CreationTimestamp,
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
}
