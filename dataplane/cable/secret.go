package cable

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"net/netip"
)

// pairKey derives 32 bytes that two gateways share from the clusterset's secret, so that no other gateway's packets
// pass for theirs even if one key leaks: HKDF-SHA-256 (RFC 5869) with the wire's name and both fabric addresses, the
// lower one first, as info.
func pairKey(psk []byte, wire string, a, b netip.Addr) ([32]byte, error) {
	if b.Less(a) {
		a, b = b, a
	}
	key, err := hkdf.Key(sha256.New, psk, nil, fmt.Sprintf("pelago %s %s %s", wire, a, b), 32)
	if err != nil {
		return [32]byte{}, fmt.Errorf("derive the key of %s and %s: %w", a, b, err)
	}
	return [32]byte(key), nil
}
