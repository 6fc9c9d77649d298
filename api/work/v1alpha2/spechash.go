package v1alpha2

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
)

// SpecHash is a hash of all of a binding's spec but the clusters: a decision is due for another one.
func SpecHash(spec *ResourceBindingSpec) (string, error) {
	in := *spec
	in.Clusters = nil
	raw, err := json.Marshal(in)
	if err != nil {
		return "", fmt.Errorf("hash the spec of a binding: %w", err)
	}
	h := fnv.New64a()
	_, _ = h.Write(raw) // a hash takes everything
	return fmt.Sprintf("%016x", h.Sum64()), nil
}
