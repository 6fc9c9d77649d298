package topology

import (
	"slices"
	"time"
)

// RecoveryDelay is how long an unreachable cluster must answer again before it is called alive.
const RecoveryDelay = 3 * time.Second

// UnreachableClustersDamper adds hysteresis to what is observed: a cluster is dead as soon as it is
// seen dead, and alive again only after it was seen alive for RecoveryDelay. It has no clock; the
// zero value is ready.
type UnreachableClustersDamper struct {
	// unreachable clusters → since when they are seen alive; zero: they are not
	alive map[string]time.Time
}

// Note takes in what is seen: the known clusters, true for those that are dead. It returns the dead
// ones, sorted.
func (d *UnreachableClustersDamper) Note(seen map[string]bool, now time.Time) []string {
	if d.alive == nil {
		d.alive = map[string]time.Time{}
	}
	for cluster := range d.alive {
		if _, known := seen[cluster]; !known {
			delete(d.alive, cluster)
		}
	}
	for cluster, dead := range seen {
		since, was := d.alive[cluster]
		switch {
		case dead:
			d.alive[cluster] = time.Time{}
		case was && since.IsZero():
			d.alive[cluster] = now
		case was && now.Sub(since) >= RecoveryDelay:
			delete(d.alive, cluster)
		}
	}
	dead := []string{}
	for cluster := range d.alive {
		dead = append(dead, cluster)
	}
	slices.Sort(dead)
	return dead
}
