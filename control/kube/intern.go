package kube

import (
	"hash/maphash"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/pelago-net/pelago/control/kinds/filled"
)

const (
	// slots bounds the table; a string that hashes to an occupied slot replaces the one there.
	slots = 1 << 14
	// maxShared is the longest string that is interned, in bytes: longer ones are data.
	maxShared = 2048
)

// StringTable holds the last string of each place. It may be used by several at a time.
type StringTable struct {
	seed maphash.Seed
	at   [slots]atomic.Pointer[string]
}

// NewStringTable is an empty table.
func NewStringTable() *StringTable { return &StringTable{seed: maphash.MakeSeed()} }

// String is a string equal to s, the one that was seen before if that is still known.
func (t *StringTable) String(s string) string {
	if s == "" || len(s) > maxShared {
		return s
	}
	place := &t.at[maphash.String(t.seed, s)%slots]
	if known := place.Load(); known != nil && *known == s {
		return *known
	}
	place.Store(&s)
	return s
}

// Transform is for caches (k8s.io/client-go/tools/cache.TransformFunc). It removes managedFields,
// of an unstructured object all but what was filled in (filled.Reduce), and interns its strings:
// all of an unstructured one, labels and annotations of others.
func (t *StringTable) Transform(in any) (any, error) {
	o, err := meta.Accessor(in)
	if err != nil {
		return in, nil // the tombstone of a deleted object in an informer
	}
	if u, ok := in.(*unstructured.Unstructured); ok {
		filled.Reduce(u)
		t.share(u.Object)
		return in, nil
	}
	o.SetManagedFields(nil)
	for _, m := range []map[string]string{o.GetLabels(), o.GetAnnotations()} {
		for k, v := range m {
			m[t.String(k)] = t.String(v) // a map takes the new copy of an equal key
		}
	}
	return in, nil
}

func (t *StringTable) share(value any) any {
	switch v := value.(type) {
	case string:
		return t.String(v)
	case map[string]any:
		for k, of := range v {
			v[t.String(k)] = t.share(of)
		}
	case []any:
		for i, of := range v {
			v[i] = t.share(of)
		}
	}
	return value
}
