package hubclient

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// syncPoll is how often a source checks whether the hub's cache has synced.
const syncPoll = 100 * time.Millisecond

// Source turns events of one kind at the hub into requests. Unlike source.Kind it does not hold up
// its controller: it begins to deliver, with an event for each object, once the hub's cache is
// synced.
func (h *Hub) Source(obj client.Object, requests func(client.Object) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		informer, err := h.cluster.GetCache().GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T at the hub: %w", obj, err)
		}
		go func() {
			if !h.awaitSync(ctx) {
				return
			}
			// The one error means that the informer has ended, and with it the agent.
			_, _ = informer.AddEventHandler(handler{hub: h, queue: queue, requests: requests})
		}()
		return nil
	})
}

// OnSync makes requests once, when the hub's cache has synced: for what a controller could not
// handle until then.
func (h *Hub) OnSync(requests func(context.Context) []reconcile.Request) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		go func() {
			if !h.awaitSync(ctx) {
				return
			}
			for _, r := range requests(ctx) {
				queue.Add(r)
			}
		}()
		return nil
	})
}

// OfCluster requests the services that a cluster contributes to, and those with a ClusterSetIP in
// its range: all of them depend on whether it is a member, and since when.
func (h *Hub) OfCluster(cluster client.Object) []reconcile.Request {
	ctx := context.Background()
	requests := ContributionRequests(ctx)(h.ContributionsOf(ctx, cluster.GetName()))
	c, ok := cluster.(*submarinerv1.Cluster)
	if !ok || len(clusterSetIPRanges(c)) == 0 {
		return requests
	}
	var list v1alpha1.ServiceContributionList
	// without missing ones: they are requested by their events
	err := h.Client().List(ctx, &list, client.InNamespace(h.namespace))
	elsewhere := slices.DeleteFunc(list.Items, func(x v1alpha1.ServiceContribution) bool {
		ip, err := netip.ParseAddr(x.Spec.ClusterSetIP)
		return err != nil || !slices.ContainsFunc(clusterSetIPRanges(c), func(p netip.Prefix) bool { return p.Contains(ip) })
	})
	return append(requests, ContributionRequests(ctx)(elsewhere, err)...)
}

// OfContribution requests the service of a contribution, and all services that name the same
// ClusterSetIP: only one of them gets it.
func (h *Hub) OfContribution(contribution client.Object) []reconcile.Request {
	var requests []reconcile.Request
	if s := ServiceOf(contribution); s.Name != "" && s.Namespace != "" {
		requests = append(requests, reconcile.Request{NamespacedName: s})
	}
	if c, ok := contribution.(*v1alpha1.ServiceContribution); ok && c.Spec.ClusterSetIP != "" {
		ctx := context.Background()
		requests = append(requests, ContributionRequests(ctx)(h.ContributionsNaming(ctx, c.Spec.ClusterSetIP))...)
	}
	return requests
}

// ContributionRequests makes requests of contributions, one for the service of each, for use in
// event handlers: an error of the cache is logged, as no caller could return it.
func ContributionRequests(ctx context.Context) func([]v1alpha1.ServiceContribution, error) []reconcile.Request {
	return func(contributions []v1alpha1.ServiceContribution, err error) []reconcile.Request {
		if err != nil {
			log.FromContext(ctx).Error(err, "contributions cannot be read from the cache")
		}
		var requests []reconcile.Request
		for _, c := range contributions {
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: c.Spec.Namespace, Name: c.Spec.Service}})
		}
		return requests
	}
}

func (h *Hub) awaitSync(ctx context.Context) bool {
	tick := time.NewTicker(syncPoll)
	defer tick.Stop()
	for !h.Synced() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// handler puts the requests of an event on a controller's queue.
type handler struct {
	hub      *Hub
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
	requests func(client.Object) []reconcile.Request
}

func (h handler) OnAdd(obj any, _ bool) {
	h.seen(obj)
	h.add(obj)
}

func (h handler) OnUpdate(old, obj any) {
	h.seen(obj)
	h.add(old) // the object's old state may belong to another request
	h.add(obj)
}

func (h handler) OnDelete(obj any) {
	unknown, lacking := obj.(toolscache.DeletedFinalStateUnknown)
	if !lacking {
		h.seen(obj)
		h.add(obj)
		return
	}
	if o, ok := unknown.Obj.(client.Object); ok {
		grace := h.hub.missing.add(o, time.Now())
		h.hub.log.V(1).Info("an object is missing in a new list of the hub", "kind", fmt.Sprintf("%T", o), "name", o.GetName(), "keptFor", grace)
		h.add(o) // its owner creates it again
		time.AfterFunc(grace, func() { h.add(o) })
	}
}

// seen notes an event about an object: it is not missing.
func (h handler) seen(obj any) {
	if o, ok := obj.(client.Object); ok {
		h.hub.missing.remove(o)
	}
}

func (h handler) add(obj any) {
	if o, ok := obj.(client.Object); ok && !leftOut(o) {
		for _, r := range h.requests(o) {
			h.queue.Add(r)
		}
	}
}
