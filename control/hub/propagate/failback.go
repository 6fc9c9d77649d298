package propagate

import (
	"errors"
	"slices"
	"time"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/scheduler"
)

// returned makes the decision by which a template returns to the clusters that are due, and adds
// the eviction tasks of the clusters that replicas leave for that. The reservation is nil, and b
// unchanged, if nothing is due, or if nothing can return (e then has the reason).
func (r *reconciler) returned(b binding.Binding, req *scheduler.Request, e *placement.Eviction) (scheduler.Decision, *placement.Reservation, error) {
	back := &e.Return
	if len(back.Clusters) == 0 || req.Fresh {
		return scheduler.Decision{}, nil, nil
	}
	returning := *req
	returning.Current, returning.Returning, returning.Term = back.To, back.Clusters, back.Record.Term
	returning.Evicted = append(slices.Clone(req.Evicted), back.Excluded...)
	d, reservation, err := r.Capacity.Decide(capacityKey(b), &returning)
	if errors.Is(err, placement.ErrNotReady) {
		return d, nil, err
	}
	if err == nil && !slices.ContainsFunc(d.Clusters, func(c workv1alpha2.TargetCluster) bool { return slices.Contains(back.Clusters, c.Name) }) {
		err = errors.New("the scheduler selects other clusters" + rejected(d, back.Clusters))
	}
	var tasks []workv1alpha2.GracefulEvictionTask
	if err == nil {
		tasks, err = placement.Leave(b, d.Clusters, back.Clusters, time.Now())
	}
	if err != nil {
		if reservation != nil {
			reservation.Release()
		}
		r.keepPlaces(placed{binding: b, eviction: placement.Eviction{Return: *back}})
		back.Blocked(err)
		return d, nil, nil
	}
	b.Spec.GracefulEvictionTasks = append(b.Spec.GracefulEvictionTasks, tasks...)
	e.Began = tasks
	back.Returned(d.Clusters)
	return d, reservation, nil
}

// rejected is why clusters were not selected, as far as the record would name them.
func rejected(d scheduler.Decision, clusters []string) (out string) {
	for _, r := range rejections(d.Reasons) {
		if slices.ContainsFunc(r.Clusters, func(c string) bool { return slices.Contains(clusters, c) }) {
			out += "; " + r.Why
		}
	}
	return out
}
