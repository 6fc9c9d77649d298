package propagate

import "time"

// settled is a part that has settled at a time; the cluster's report contains it some time after that.
type capacitySettled struct {
	key, cluster string
	at           time.Time
}

// settle lets a part that has settled wait for the cluster's report. r.mu is held.
func (r *Capacity) settle(key string, p *part) {
	if !p.settled.IsZero() && p.reported < p.replicas {
		r.settling = append(r.settling, capacitySettled{key, p.cluster, p.settled})
	}
}

// settleAgain begins anew with all that waits for the reports of clusters which have not reported for a while: their last ones may
// be older than what has settled since. r.mu is held.
func (r *Capacity) settleAgain(clusters map[string]bool) {
	now := r.now()
	for key, b := range r.bindings {
		for i := range b.parts {
			if p := &b.parts[i]; clusters[p.cluster] && !p.settled.IsZero() {
				p.settled = now
				r.settle(key, p)
			}
		}
	}
}

// release stops assuming what the clusters have reported by now. What waits for a cluster that does not report is left to
// settleAgain. r.mu is held.
func (r *Capacity) release() {
	now := r.now()
	for len(r.settling) > 0 && now.Sub(r.settling[0].at) >= r.lag {
		s := r.settling[0]
		r.settling = r.settling[1:]
		b := r.bindings[s.key]
		if b == nil || !r.reports[s.cluster] {
			continue
		}
		if p := b.part(s.cluster); p != nil && p.settled.Equal(s.at) {
			r.change(b, func() { p.reported = p.replicas })
		}
	}
}
