package dataplane

// First returns the gateway, of those given by node index, that all flows take with Settings.Single
// while it is good: the one with the highest weight by the programs' hash (bpf/lb.h, ONE_FOR_ALL).
// 0: none.
func First(gateways []uint16) (first uint16) {
	var best uint32
	for _, g := range gateways {
		if w := Mix(0, uint32(g)) | 1; w > best {
			best, first = w, g
		}
	}
	return first
}

// Mix is hash_mix() of bpf/parse.h.
func Mix(a, b uint32) uint32 {
	a ^= b * 0x9e3779b1
	a ^= a >> 16
	a *= 0x85ebca6b
	a ^= a >> 13
	a *= 0xc2b2ae35
	return a ^ a>>16
}
