package ipam

// MaxIndex is the highest index: a fabric address has 14 bits for it.
const MaxNodeIndex = 1<<14 - 1

// Next is the index to give out after last: indexes go round from 1 to MaxIndex, so that a freed one is given out again
// as late as possible. It says false if all of them are used.
func NextNodeIndex(last int32, used func(int32) bool) (int32, bool) {
	for i := int32(1); i <= MaxNodeIndex; i++ {
		candidate := (max(0, last)+i-1)%MaxNodeIndex + 1
		if !used(candidate) {
			return candidate, true
		}
	}
	return 0, false
}
