package propagate

import (
	"slices"
	"strings"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// sizeOf is the load of one replica.
func sizeOf(of *workv1alpha2.ReplicaRequirements) scheduler.Load {
	if of == nil {
		return scheduler.Load{Pods: 1}
	}
	return scheduler.LoadOf(of.ResourceRequest, 1)
}

func sameSize(a, b scheduler.Load) bool { return slices.Equal(a.Amounts, b.Amounts) }

// within is how many replicas of a size take no more than so many of another one.
func within(size, other scheduler.Load, replicas int64) int64 {
	if sameSize(size, other) {
		return replicas
	}
	n := replicas
	for _, a := range size.Amounts {
		n = min(n, replicas*other.Amount(a.Of)/a.N)
	}
	return n
}

// sum is what is assumed of a cluster.
type sum struct {
	scheduler.Load
	stale bool // it changed since the snapshot was made
}

// add counts so many more replicas as assumed; fewer if negative. r.mu is held.
func (r *Capacity) add(cluster string, size scheduler.Load, replicas int64) {
	if replicas == 0 {
		return
	}
	s := r.sums[cluster]
	if s == nil {
		s = &sum{}
		r.sums[cluster] = s
	}
	s.Add(size, replicas)
	if !s.stale {
		s.stale = true
		r.stale = append(r.stale, cluster)
	}
}

// claim is what a binding claims of a cluster beyond what is reported.
type capacityClaim struct {
	cluster  string
	size     scheduler.Load
	replicas int64
}

// claims are all of a binding, by cluster. While a write has not ended the larger number of replicas counts, and of replicas of two
// sizes both do, less what is reported. The result is good until the next call with the same buffer.
func (b *bindingUsage) claims(buffer []capacityClaim) []capacityClaim {
	out := buffer[:0]
	if b.promise == nil {
		for i := range b.parts {
			out = append(out, capacityClaim{b.parts[i].cluster, b.size, b.parts[i].replicas - b.parts[i].reported})
		}
		return out
	}
	next, size := b.promise.clusters, b.promise.size
	same := sameSize(b.size, size)
	for i, k := 0, 0; i < len(b.parts) || k < len(next); {
		switch order := compareAt(b.parts, i, next, k); {
		case order < 0:
			out = append(out, capacityClaim{b.parts[i].cluster, b.size, b.parts[i].replicas - b.parts[i].reported})
			i++
		case order > 0:
			out = append(out, capacityClaim{next[k].Name, size, int64(next[k].Replicas)})
			k++
		case same:
			out = append(out, capacityClaim{next[k].Name, size, max(b.parts[i].replicas, int64(next[k].Replicas)) - b.parts[i].reported})
			i, k = i+1, k+1
		default:
			reported := within(size, b.size, b.parts[i].reported)
			out = append(out, capacityClaim{b.parts[i].cluster, b.size, b.parts[i].replicas - b.parts[i].reported},
				capacityClaim{next[k].Name, size, max(0, int64(next[k].Replicas)-reported)})
			i, k = i+1, k+1
		}
	}
	return out
}

// compareAt compares places of two sorted lists by cluster; the end of one comes after all of the other.
func compareAt(parts []part, i int, next []workv1alpha2.TargetCluster, k int) int {
	switch {
	case i == len(parts):
		return 1
	case k == len(next):
		return -1
	}
	return strings.Compare(parts[i].cluster, next[k].Name)
}

// change changes a binding, and the sums by what it claims more or less then. r.mu is held.
func (r *Capacity) change(b *bindingUsage, to func()) {
	r.before = b.claims(r.before)
	to()
	r.after = b.claims(r.after)
	before, after := r.before, r.after
	for len(before) > 0 && len(after) > 0 {
		x, y := before[0], after[0]
		switch order := strings.Compare(x.cluster, y.cluster); {
		case order < 0:
			r.add(x.cluster, x.size, -x.replicas)
			before = before[1:]
		case order > 0:
			r.add(y.cluster, y.size, y.replicas)
			after = after[1:]
		default:
			if sameSize(x.size, y.size) {
				r.add(y.cluster, y.size, y.replicas-x.replicas)
			} else {
				r.add(x.cluster, x.size, -x.replicas)
				r.add(y.cluster, y.size, y.replicas)
			}
			before, after = before[1:], after[1:]
		}
	}
	for _, x := range before {
		r.add(x.cluster, x.size, -x.replicas)
	}
	for _, y := range after {
		r.add(y.cluster, y.size, y.replicas)
	}
}
