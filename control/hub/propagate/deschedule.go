package propagate

import (
	"errors"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/scheduler"
)

// deschedule moves replicas that no node of their cluster can run to clusters with capacity for
// them: all, else a half, a quarter, … of those in each cluster. What fits nowhere stays, and the
// record has the reason. Neither these clusters nor those that replicas left for this reason in the
// last hour get any: two clusters that are full would exchange replicas forever.
func (r *reconciler) deschedule(b binding.Binding, req *scheduler.Request, e *placement.Eviction, before *workv1alpha2.Decision, hash string,
	now time.Time, out *decision) {
	moved := placement.Moved(before, now)
	full := make([]string, 0, len(moved)+len(e.Unschedulable))
	for cluster := range moved {
		full = append(full, cluster)
	}
	for _, u := range e.Unschedulable {
		full = append(full, u.Name)
	}
	var failure error
	for half := 0; ; half++ {
		try := *req
		try.Full, try.Current = full, nil
		left := map[string]int32{}
		for _, c := range req.Current {
			for _, u := range e.Unschedulable {
				if n := u.Replicas >> half; u.Name == c.Name && n > 0 {
					left[c.Name] = n
					c.Replicas -= n
				}
			}
			try.Current = append(try.Current, c)
		}
		if len(left) == 0 {
			break
		}
		d, reservation, err := r.Capacity.Decide(capacityKey(b), &try)
		if err != nil {
			failure = err
			continue
		}
		var texts []string
		if moved == nil {
			moved = map[string]metav1.MicroTime{}
		}
		for _, u := range e.Unschedulable {
			if n := left[u.Name]; n > 0 {
				texts = append(texts, fmt.Sprintf("%d replicas leave cluster %s, where no node can run them", n, u.Name))
				moved[u.Name] = metav1.NewMicroTime(now)
			}
		}
		*out = decision{
			reservation: reservation, clusters: d.Clusters, began: now,
			descheduled: strings.Join(texts, "; "), record: succeeded(d, hash, now, time.Time{}),
		}
		out.record.Moved = moved
		return
	}
	why := "no other cluster has room for them"
	var room *scheduler.UnschedulableError
	if !errors.As(failure, &room) { // else its numbers would change the record too often
		why = failure.Error()
	}
	var texts []string
	for _, u := range e.Unschedulable {
		texts = append(texts, fmt.Sprintf("no node of cluster %s can run %d replicas", u.Name, u.Replicas))
	}
	out.stuck = fmt.Sprintf("%s: they stay: %s", strings.Join(texts, ", "), why)
}
