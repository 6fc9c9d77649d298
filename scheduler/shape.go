package scheduler

import (
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// shape is what decisions depend on besides the capacity of clusters. It seldom changes, so
// snapshots share it, together with two caches: the clusters that serve a kind, and those that a
// selector selects. Both depend on the clusters alone, so decisions do not depend on earlier ones.
type shape struct {
	clusters []*clusterv1alpha1.Cluster // by name
	index    map[string]int             // their indexes, by name
	traits   []traits
	// the distinct lists of NoSchedule and NoExecute taints; the first is empty
	taints   [][]corev1.Taint
	groups   map[policyv1alpha1.SpreadField]groups
	with     map[policyv1alpha1.SpreadField]set // the clusters that have the property
	kinds    cache[schema.GroupVersionKind]
	selected cache[string]
}

// traits are what the filters need of a cluster.
type traits struct {
	deleting bool
	partial  bool // the list of APIs that it serves is incomplete
	taints   int  // index in shape.taints
}

func shapeOf(clusters []*clusterv1alpha1.Cluster) *shape {
	s := &shape{
		clusters: clusters, index: make(map[string]int, len(clusters)),
		traits: make([]traits, len(clusters)), taints: [][]corev1.Taint{nil},
	}
	for i, c := range clusters {
		s.index[c.Name] = i
		s.traits[i] = traits{
			deleting: c.DeletionTimestamp != nil,
			partial:  !meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionCompleteAPIEnablements),
			taints:   s.taintsOf(c),
		}
	}
	s.groups = map[policyv1alpha1.SpreadField]groups{
		policyv1alpha1.SpreadByFieldProvider: s.groupBy(func(c *clusterv1alpha1.Cluster) string { return c.Spec.Provider }),
		policyv1alpha1.SpreadByFieldRegion:   s.groupBy(func(c *clusterv1alpha1.Cluster) string { return c.Spec.Region }),
		policyv1alpha1.SpreadByFieldZone: s.groupBy(func(c *clusterv1alpha1.Cluster) string {
			return strings.Join(slices.Sorted(slices.Values(c.Spec.AllZones())), ",")
		}),
	}
	s.with = map[policyv1alpha1.SpreadField]set{}
	for field, g := range s.groups {
		with := newSet(len(clusters))
		for at, i := range g.of {
			if g.names[i] != "" {
				with.add(at)
			}
		}
		s.with[field] = with
	}
	return s
}

// groups are the clusters by a value that a spread constraint names.
type groups struct {
	of    []int    // index in names, by cluster
	names []string // the values
}

func (s *shape) groupBy(value func(*clusterv1alpha1.Cluster) string) groups {
	g, index := groups{of: make([]int, len(s.clusters))}, map[string]int{}
	for at, c := range s.clusters {
		v := value(c)
		i, ok := index[v]
		if !ok {
			i = len(g.names)
			index[v] = i
			g.names = append(g.names, v)
		}
		g.of[at] = i
	}
	return g
}

// groupsOf are the groups of a spread constraint. A cluster in several zones is in a group of its
// own with those in the same ones.
func (s *shape) groupsOf(by policyv1alpha1.SpreadConstraint) groups {
	if by.SpreadByLabel != "" {
		return s.groupBy(func(c *clusterv1alpha1.Cluster) string { return c.Labels[by.SpreadByLabel] })
	}
	return s.groups[by.SpreadByField]
}

// taintsOf is the index of a cluster's taints in s.taints.
func (s *shape) taintsOf(c *clusterv1alpha1.Cluster) int {
	var taints []corev1.Taint
	for _, t := range c.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute {
			taints = append(taints, corev1.Taint(t))
		}
	}
	same := func(other []corev1.Taint) bool {
		return slices.EqualFunc(taints, other, func(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value })
	}
	if i := slices.IndexFunc(s.taints, same); i >= 0 {
		return i
	}
	s.taints = append(s.taints, taints)
	return len(s.taints) - 1
}

// sameShape reports whether two versions of a cluster differ in their capacity at most.
func sameShape(a, b *clusterv1alpha1.Cluster) bool {
	complete := func(c *clusterv1alpha1.Cluster) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionCompleteAPIEnablements)
	}
	return sameVersion(a, b) ||
		a.Name == b.Name && (a.DeletionTimestamp != nil) == (b.DeletionTimestamp != nil) && complete(a) == complete(b) &&
			maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Spec, b.Spec) &&
			equality.Semantic.DeepEqual(a.Status.APIEnablements, b.Status.APIEnablements)
}

func sameVersion(a, b *clusterv1alpha1.Cluster) bool {
	return a == b || a.UID == b.UID && a.ResourceVersion == b.ResourceVersion && a.UID != "" && a.ResourceVersion != ""
}

// serving are the clusters that serve a kind.
func (s *shape) serving(kind schema.GroupVersionKind) set {
	if found, ok := s.kinds.get(kind); ok {
		return found
	}
	out := newSet(len(s.clusters))
	version := kind.GroupVersion().String()
	for i, c := range s.clusters {
		if clusterv1alpha1.Serves(c.Status.APIEnablements, version, kind.Kind) {
			out.add(i)
		}
	}
	s.kinds.put(kind, out)
	return out
}

// matching are the clusters that an affinity selects. The result of its selectors is cached.
func (s *shape) matching(a *policyv1alpha1.ClusterAffinity) (set, error) {
	out := newSet(len(s.clusters))
	if a == nil {
		a = &policyv1alpha1.ClusterAffinity{}
	}
	selected, err := s.selecting(a)
	if err != nil {
		return nil, err
	}
	if len(a.ClusterNames) == 0 {
		copy(out, selected)
	}
	for _, name := range a.ClusterNames {
		if i, ok := s.index[name]; ok && selected.has(i) {
			out.add(i)
		}
	}
	for _, name := range a.ExcludeClusters {
		if i, ok := s.index[name]; ok {
			out.remove(i)
		}
	}
	return out, nil
}

// open are the clusters that a namespace with this value of AnnotationClusters may use; nil: all.
func (s *shape) open(within string) (set, error) {
	a, err := policyv1alpha1.ParseClusters(within)
	if a == nil || err != nil {
		return nil, err
	}
	return s.matching(a)
}

// selecting are the clusters that the selectors of an affinity select, regardless of its names.
func (s *shape) selecting(a *policyv1alpha1.ClusterAffinity) (set, error) {
	selectors := policyv1alpha1.ClusterAffinity{LabelSelector: a.LabelSelector, FieldSelector: a.FieldSelector}
	key := keyOf(&selectors)
	if found, ok := s.selected.get(key); ok {
		return found, nil
	}
	m, err := ParseAffinity(&selectors)
	if err != nil {
		return nil, err
	}
	out := newSet(len(s.clusters))
	for i, c := range s.clusters {
		if m.Matches(c) {
			out.add(i)
		}
	}
	s.selected.put(key, out)
	return out, nil
}

// keyOf encodes selectors unambiguously: each string is prefixed with its length.
func keyOf(a *policyv1alpha1.ClusterAffinity) string {
	var key []byte
	text := func(s string) {
		key = binary.AppendUvarint(key, uint64(len(s)))
		key = append(key, s...)
	}
	texts := func(all []string) {
		key = binary.AppendUvarint(key, uint64(len(all)))
		for _, s := range all {
			text(s)
		}
	}
	if l := a.LabelSelector; l != nil {
		key = append(key, 'l')
		key = binary.AppendUvarint(key, uint64(len(l.MatchLabels)))
		for _, k := range slices.Sorted(maps.Keys(l.MatchLabels)) {
			text(k)
			text(l.MatchLabels[k])
		}
		key = binary.AppendUvarint(key, uint64(len(l.MatchExpressions)))
		for _, e := range l.MatchExpressions {
			text(e.Key)
			text(string(e.Operator))
			texts(e.Values)
		}
	}
	if f := a.FieldSelector; f != nil {
		key = append(key, 'f')
		for _, e := range f.MatchExpressions {
			text(e.Key)
			text(string(e.Operator))
			texts(e.Values)
		}
	}
	return string(key)
}

// cache of sets, which are immutable.
type cache[K comparable] struct {
	mu   sync.RWMutex
	sets map[K]set
}

// cacheSize bounds the sets of a cache, which is cleared when it is full.
const cacheSize = 4096

func (m *cache[K]) get(key K) (set, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found, ok := m.sets[key]
	return found, ok
}

func (m *cache[K]) put(key K, found set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sets == nil || len(m.sets) >= cacheSize {
		m.sets = map[K]set{}
	}
	m.sets[key] = found
}

// set is a bit set of clusters, by their index in the snapshot.
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
