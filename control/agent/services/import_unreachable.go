package services

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
)

// staleAfter is the lease of a source cluster (KEP-1645), which is renewed by probes of its
// gateways. Once a cluster has been dead for this long, its EndpointSlices are removed: no
// connection to it can have survived. When the cluster is back, they are restored from the hub.
const staleAfter = time.Hour

// unreachableClusters are clusters that no gateway reaches, and since when.
type unreachableClusters map[string]time.Time

// next returns the dead clusters after a new verdict, which d precedes.
func (d unreachableClusters) next(dead []string, now time.Time) unreachableClusters {
	out := unreachableClusters{}
	for _, id := range dead {
		if out[id] = now; !d[id].IsZero() {
			out[id] = d[id]
		}
	}
	return out
}

// at returns the clusters that are dead, and those among them whose lease has expired; sorted.
func (d unreachableClusters) at(now time.Time) (dead, stale []string) {
	for _, id := range slices.Sorted(maps.Keys(d)) {
		dead = append(dead, id)
		if now.Sub(d[id]) >= staleAfter {
			stale = append(stale, id)
		}
	}
	return dead, stale
}

// watchDead is a source of requests for the services of clusters that become dead or stale, or
// answer again.
func (r *importReconciler) watchDead(watch func(context.Context, func([]string))) func(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	return func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		if watch == nil {
			r.dead.Store(&unreachableClusters{})
			return nil
		}
		add := func(requests []reconcile.Request) {
			for _, request := range requests {
				queue.Add(request)
			}
		}
		go watch(ctx, func(dead []string) {
			before := ptr.Deref(r.dead.Load(), nil)
			first := before == nil
			if first {
				before = r.recorded(ctx)
			}
			now := before.next(dead, time.Now())
			r.dead.Store(&now)
			r.record(ctx, now)
			if first {
				add(r.all(ctx)) // an agent before this one may have marked slices
				before = nil    // and its timers have ended
			}
			for id := range sets.KeySet(before).SymmetricDifference(sets.KeySet(now)) {
				add(r.ofSource(ctx, id))
				if since, dead := now[id]; dead {
					r.expire(ctx, id, since, time.Until(since.Add(staleAfter)), func() { add(r.ofSource(ctx, id)) })
				}
			}
		})
		return nil
	}
}

// recorded are the clusters that an agent before this one has found dead.
func (r *importReconciler) recorded(ctx context.Context) unreachableClusters {
	out := unreachableClusters{}
	for _, p := range r.peers(ctx) {
		if since, err := time.Parse(time.RFC3339, p.Annotations[v1alpha1.AnnotationUnreachableSince]); err == nil {
			out[p.Name] = since
		}
	}
	return out
}

// record writes since when clusters are dead to their Peers, for the agents after this one.
func (r *importReconciler) record(ctx context.Context, dead unreachableClusters) {
	for _, p := range r.peers(ctx) {
		var since any // null removes it
		if at, ok := dead[p.Name]; ok {
			since = at.UTC().Format(time.RFC3339)
		}
		if have, ok := p.Annotations[v1alpha1.AnnotationUnreachableSince]; ok == (since != nil) && (!ok || have == since) {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationUnreachableSince: since}}})
		if err == nil {
			err = r.local.Patch(ctx, &p, client.RawPatch(types.MergePatchType, patch))
		}
		if client.IgnoreNotFound(err) != nil {
			log.FromContext(ctx).Error(err, "since when a cluster is unreachable is not recorded", "cluster", p.Name)
		}
	}
}

// peers reads the Peers from the cache; an error is logged, as no caller is there to return it to.
func (r *importReconciler) peers(ctx context.Context) []v1alpha1.Peer {
	var list v1alpha1.PeerList
	if err := r.local.List(ctx, &list); err != nil {
		log.FromContext(ctx).Error(err, "Peers cannot be read from the cache")
	}
	return list.Items
}

// expire calls stale once the lease of a cluster that is dead since then has expired, after a time,
// and makes an Event of it at intervals, as Events do not last, until the cluster answers again.
func (r *importReconciler) expire(ctx context.Context, id string, since time.Time, after time.Duration, stale func()) {
	time.AfterFunc(after, func() {
		if now := ptr.Deref(r.dead.Load(), nil); ctx.Err() != nil || !now[id].Equal(since) {
			return
		}
		stale()
		if peer, err := r.readPeer(ctx, id); err != nil {
			log.FromContext(ctx).Error(err, "a cluster is gone, and no Event reports it")
		} else if peer != nil {
			r.events.Event(peer, corev1.EventTypeWarning, reasonClusterGone, clusterGone(id, time.Since(since)))
		}
		r.expire(ctx, id, since, staleAfter, func() {})
	})
}

// expired are the causes for the exporting clusters whose lease has expired.
func (s importState) expired(exporters []string) (causes []string) {
	for _, id := range s.stale {
		if slices.Contains(exporters, id) {
			causes = append(causes, fmt.Sprintf("cluster %s: no gateway has reached it for %s; if it is gone for good, remove it by `pelago unjoin --clusterid %s` at the hub",
				id, staleAfter, id))
		}
	}
	return causes
}

func clusterGone(id string, since time.Duration) string {
	return fmt.Sprintf("no gateway has reached cluster %s for %s: its endpoints are removed, and it has no say on imported services that others export; "+
		"if it is gone for good, remove it by `pelago unjoin --clusterid %s` at the hub", id, since.Round(time.Minute), id)
}

// ofSource requests the services of a cluster: of what the hub has; while that is not known yet, of
// what was imported before.
func (r *importReconciler) ofSource(ctx context.Context, id string) []reconcile.Request {
	if r.hub.Synced() {
		return hubclient.ContributionRequests(ctx)(r.hub.ContributionsOf(ctx, id))
	}
	services := sets.New[reconcile.Request]()
	for _, slice := range r.importedSlices(ctx, client.MatchingLabels{mcs.LabelSourceCluster: id}) {
		services.Insert(ofLabelled(&slice)...)
	}
	return services.UnsortedList()
}

// importedSlices reads the own imported slices from the cache; an error is logged, as no caller is
// there to return it to.
func (r *importReconciler) importedSlices(ctx context.Context, options ...client.ListOption) []discoveryv1.EndpointSlice {
	var list discoveryv1.EndpointSliceList
	if err := r.local.List(ctx, &list, append(options, client.MatchingLabels{discoveryv1.LabelManagedBy: submarinerv1.ImportedSliceManager})...); err != nil {
		log.FromContext(ctx).Error(err, "imported EndpointSlices cannot be read from the cache")
	}
	return slices.DeleteFunc(list.Items, func(s discoveryv1.EndpointSlice) bool { return !r.cluster.owner.Owns(&s) })
}

// unreadySlice returns a slice with no endpoint ready, as of a refused cluster. Unlike that of a dead
// one it is not marked: what was ready comes back with the hub alone.
func unreadySlice(slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := slice.DeepCopy()
	for i := range out.Endpoints {
		c := &out.Endpoints[i].Conditions
		c.Ready, c.Serving = ptr.To(false), ptr.To(false)
	}
	return out
}

// judgedSlice returns an imported slice as it must be while its cluster is dead (no gateway reaches
// it) or alive. The endpoints of a dead cluster stay, because open connections may survive a short
// outage. An annotation keeps which of them were ready, so that their readiness can be restored
// without the hub.
func judgedSlice(slice *discoveryv1.EndpointSlice, dead bool) *discoveryv1.EndpointSlice {
	ready, marked := slice.Annotations[v1alpha1.AnnotationUnreachable]
	if dead == marked {
		return slice
	}
	out := slice.DeepCopy()
	if !dead {
		delete(out.Annotations, v1alpha1.AnnotationUnreachable)
		for _, text := range strings.Split(ready, ",") {
			if i, err := strconv.Atoi(text); err == nil && 0 <= i && i < len(out.Endpoints) {
				out.Endpoints[i].Conditions.Ready, out.Endpoints[i].Conditions.Serving = ptr.To(true), ptr.To(true)
			}
		}
		return out
	}
	var indexes []string
	for i := range out.Endpoints {
		if ptr.Deref(out.Endpoints[i].Conditions.Ready, true) {
			indexes = append(indexes, strconv.Itoa(i))
		}
	}
	out = unreadySlice(out)
	// never nil: the owner's are there
	out.Annotations[v1alpha1.AnnotationUnreachable] = strings.Join(indexes, ",")
	return out
}
