package scheduler

import "math/bits"

// set is a set of clusters, by their place in the snapshot.
type set []uint64

func newSet(clusters int) set { return make(set, (clusters+63)/64) }

func (s set) has(at int) bool { return s[at/64]>>(at%64)&1 != 0 }
func (s set) add(at int)      { s[at/64] |= 1 << (at % 64) }
func (s set) remove(at int)   { s[at/64] &^= 1 << (at % 64) }

func (s set) size() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}
