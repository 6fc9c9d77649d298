package work

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// orphans are Works that name a binding which has not existed for a while. They are counted and told of, and never deleted:
// what they hold runs in a cluster, and nobody has said that it is not wanted there.
type orphans struct {
	count *prometheus.GaugeVec // by cluster

	mu sync.Mutex
	of map[reconcile.Request]*missing
}

// missing is a binding that does not exist.
type missing struct {
	since    time.Time
	told     map[types.UID]bool // Works
	clusters []string           // that hold them; none before the time
}

func newOrphans() (*orphans, error) {
	count, err := kube.Registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pelago_orphaned_works", Help: "Works in the cluster's execution namespace whose binding does not exist.",
	}, []string{"member_cluster"}))
	return &orphans{count: count, of: map[reconcile.Request]*missing{}}, err
}

// since is when the binding was first missed.
func (o *orphans) since(binding reconcile.Request) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[binding] == nil {
		o.of[binding] = &missing{since: time.Now(), told: map[types.UID]bool{}}
	}
	return o.of[binding].since
}

// note counts the Works of a binding that is missing and returns those that nobody was told of. Without Works it is forgotten.
func (o *orphans) note(binding reconcile.Request, works []*workv1alpha1.Work) (untold []*workv1alpha1.Work) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.of[binding]
	switch {
	case m == nil:
		return nil
	case len(works) == 0:
		delete(o.of, binding)
	}
	changed := m.clusters
	m.clusters = nil
	for _, w := range works {
		cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace)
		if !ok {
			continue // somewhere a user keeps a copy
		}
		m.clusters = append(m.clusters, cluster)
		if !m.told[w.UID] {
			m.told[w.UID] = true
			untold = append(untold, w)
		}
	}
	o.recount(append(changed, m.clusters...))
	return untold
}

// recount sets the numbers of some clusters. A cluster without orphans has no number.
func (o *orphans) recount(clusters []string) {
	for _, cluster := range clusters {
		n := 0
		for _, m := range o.of {
			for _, of := range m.clusters {
				if of == cluster {
					n++
				}
			}
		}
		if n == 0 {
			o.count.DeleteLabelValues(cluster)
		} else {
			o.count.WithLabelValues(cluster).Set(float64(n))
		}
	}
}

// orphaned looks at the Works of a binding that the cache does not have.
func (r *reconciler) orphaned(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	var list workv1alpha1.WorkList
	err := r.client.List(ctx, &list, client.MatchingFields{bindingIndex: req.String()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("list the Works of binding %s, which does not exist: %w", req, err)
	}
	var works []*workv1alpha1.Work
	for i := range list.Items {
		if w := &list.Items[i]; w.DeletionTimestamp == nil && !isReleased(w) {
			works = append(works, w)
		}
	}
	if len(works) > 0 {
		if wait := r.OrphanAfter - time.Since(r.orphans.since(req)); wait > 0 {
			return wait, nil
		}
		b := newBinding(req.NamespacedName)
		if err := r.live.Get(ctx, req.NamespacedName, b.Object); !apierrors.IsNotFound(err) {
			return 0, err // the cache is behind: the binding comes with an event
		}
	}
	for _, w := range r.orphans.note(req, works) {
		cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace) // note has looked
		r.recorder.Eventf(w.DeepCopy(), corev1.EventTypeWarning, workv1alpha2.EventWorkOrphaned,
			"%s, for which it was made, does not exist; cluster %s keeps what it has of it. "+
				"Make the template and its policy again to go on with it, or delete this Work to take it out of the cluster",
			title(req.NamespacedName), cluster)
	}
	return 0, nil
}
