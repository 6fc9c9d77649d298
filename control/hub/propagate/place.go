package propagate

import (
	"context"
	"time"

	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
)

// placed is a binding with the decision where its template runs, and the evictions that go with it.
type placed struct {
	binding  binding.Binding
	decision decision
	eviction placement.Eviction
	rollout  time.Duration // until its state changes without an event; 0: it does not
}

// place completes a binding with its evictions and with the decision where its template runs. The
// template leaves no cluster for which there is no replacement.
func (r *reconciler) place(ctx context.Context, b binding.Binding, w inputs) (placed, error) {
	former := b.Copy()
	n, err := r.near(ctx, b)
	if err != nil {
		return placed{binding: b}, err
	}
	nearer := r.nearer(b, n)
	p := placed{binding: b, eviction: r.evict(b, nearer, nil)}
	leaving := p.eviction.Began
	p.decision, err = r.decide(ctx, b, n, w.removes() && len(leaving) == 0, w.refused, &p.eviction)
	if err == nil && p.decision.failure != nil && len(p.eviction.Began) > 0 {
		p.decision.release()
		r.keepPlaces(placed{binding: b, eviction: placement.Eviction{Began: leaving}})
		p = placed{binding: former, eviction: r.evict(former, nearer, p.decision.failure)}
		p.decision, err = r.decide(ctx, former, n, w.removes(), w.refused, &p.eviction)
	}
	return p, err
}
