package scheduler

import (
	"cmp"
	"container/heap"
	"hash/fnv"
	"maps"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Split divides a total over clusters by their weights as Schedule divides replicas (Webster's
// method, ties by the UID of the template), so that for example the completions of a Job follow its
// replicas. The result has no zeros.
func Split(total int64, weights map[string]int64, uid types.UID) map[string]int64 {
	shares := make([]share, 0, len(weights))
	clusters := slices.Sorted(maps.Keys(weights))
	for at, cluster := range clusters {
		shares = append(shares, share{at: at, weight: weights[cluster]})
	}
	apportion(total, shares, tieOf(uid))
	var out map[string]int64
	for _, s := range shares {
		if s.seats == 0 {
			continue
		}
		if out == nil {
			out = map[string]int64{}
		}
		out[clusters[s.at]] = s.seats
	}
	return out
}

// share is the weight of a cluster, and its part of the total.
type share struct {
	at     int // index of the cluster
	weight int64
	seats  int64
}

// tie breaks ties between equal quotients, so that the remainders of different templates are spread
// over clusters, while those of one are stable.
type tie bool

// tieOf is the tie rule of a template: names descending if the hash of its UID is odd.
func tieOf(uid types.UID) tie {
	if uid == "" {
		return false
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid)) // never fails
	return h.Sum32()%2 == 1
}

func (descending tie) compare(a, b int) int {
	if descending {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// maxWeight bounds a weight, so that the sum of those of 2,000 clusters fits in 63 bits.
const maxWeight = 1 << 52

// apportion gives total seats to the shares by their weights: one after the other to the largest
// weight/(2·seats+1), which is Webster's method (Sainte-Laguë). Unlike rounding it is monotonic:
// with more seats no share decreases. Ties: fewer seats first, then the name. Shares with weight 0
// get none; if all are 0, no seats are given.
func apportion(total int64, shares []share, order tie) {
	var sum uint64
	var claims claims
	for i := range shares {
		shares[i].seats, shares[i].weight = 0, min(shares[i].weight, maxWeight)
		if shares[i].weight > 0 {
			sum += uint64(shares[i].weight)
			claims.of = append(claims.of, &shares[i])
		}
	}
	n := int64(len(claims.of))
	if n == 0 || total <= 0 {
		return
	}
	claims.order = order
	// All seats with a quotient of at least sum/(2·total-n) are given in one step: at most total,
	// since a share gets at most (1+weight/quotient)/2 of them. About n remain.
	given := int64(0)
	if at := 2*total - n; at > 0 {
		for _, s := range claims.of {
			hi, lo := bits.Mul64(uint64(s.weight), uint64(at))
			q, _ := bits.Div64(hi, lo, sum) // weight ≤ sum, so the quotient is at most at
			s.seats = (int64(q) + 1) / 2
			given += s.seats
		}
	}
	heap.Init(&claims)
	for ; given < total; given++ {
		claims.of[0].seats++
		heap.Fix(&claims, 0)
	}
}

// claims is a heap with the share that gets the next seat on top.
type claims struct {
	of    []*share
	order tie
}

func (c *claims) Len() int           { return len(c.of) }
func (c *claims) Swap(i, j int)      { c.of[i], c.of[j] = c.of[j], c.of[i] }
func (c *claims) Push(any)           { panic("apportion: nothing is pushed") }
func (c *claims) Pop() any           { panic("apportion: nothing is popped") }
func (c *claims) Less(i, j int) bool { return c.compare(c.of[i], c.of[j]) < 0 }

// compare puts the larger quotient first, without rounding.
func (c *claims) compare(a, b *share) int {
	ahi, alo := bits.Mul64(uint64(a.weight), uint64(2*b.seats+1))
	bhi, blo := bits.Mul64(uint64(b.weight), uint64(2*a.seats+1))
	return cmp.Or(cmp.Compare(bhi, ahi), cmp.Compare(blo, alo), cmp.Compare(a.seats, b.seats), c.order.compare(a.at, b.at))
}
