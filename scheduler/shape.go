package scheduler

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// shape is what of the clusters decisions depend on besides their room. It seldom changes, so snapshots share it, and what was once
// found out about it is remembered: which clusters serve a kind, and which ones a selector selects. Remembered is what follows from
// the clusters alone, so nothing that is decided depends on what was asked for before.
type shape struct {
	clusters []*clusterv1alpha1.Cluster // by name
	index    map[string]int             // their places, by name
	traits   []traits
	taints   [][]corev1.Taint // the different lists of taints that keep workloads away; the first is empty
	regions  int              // how many different ones there are
	kinds    memo[schema.GroupVersionKind]
	selected memo[string]
}

// traits are what a filter looks at.
type traits struct {
	deleting                  bool
	partial                   bool // what it serves is not known completely
	provided, regional, zoned bool // it has a provider, a region, zones
	taints                    int
	region                    int // a number for each name
}

func shapeOf(clusters []*clusterv1alpha1.Cluster) *shape {
	s := &shape{
		clusters: clusters, index: make(map[string]int, len(clusters)),
		traits: make([]traits, len(clusters)), taints: [][]corev1.Taint{nil},
	}
	regions := map[string]int{}
	for i, c := range clusters {
		s.index[c.Name] = i
		if _, ok := regions[c.Spec.Region]; !ok {
			regions[c.Spec.Region] = len(regions)
		}
		s.traits[i] = traits{
			deleting: c.DeletionTimestamp != nil, region: regions[c.Spec.Region],
			partial: !meta.IsStatusConditionTrue(c.Status.Conditions, clusterv1alpha1.ConditionCompleteAPIEnablements),
			taints:  s.taintsOf(c), provided: c.Spec.Provider != "", regional: c.Spec.Region != "", zoned: len(c.Spec.Zones) > 0,
		}
	}
	s.regions = len(regions)
	return s
}

// taintsOf is the place of a cluster's taints in s.taints.
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

// sameShape says whether two versions of a cluster differ in nothing but their room.
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
		for k := range c.Status.APIEnablements {
			if e := &c.Status.APIEnablements[k]; e.GroupVersion == version &&
				slices.ContainsFunc(e.Resources, func(r clusterv1alpha1.APIResource) bool { return r.Kind == kind.Kind }) {
				out.add(i)
			}
		}
	}
	s.kinds.put(kind, out)
	return out
}

// matching are the clusters that an affinity selects. Names are looked up; what selectors select is remembered.
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

// selecting are the clusters that the selectors of an affinity select, whatever it names.
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

// keyOf writes selectors in such a way that different ones never look the same: each text behind its length.
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

// memo remembers sets. They are not changed once made.
type memo[K comparable] struct {
	mu   sync.RWMutex
	sets map[K]set
}

// remembered is how many sets are remembered at most; then it begins anew.
const remembered = 4096

func (m *memo[K]) get(key K) (set, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	found, ok := m.sets[key]
	return found, ok
}

func (m *memo[K]) put(key K, found set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sets == nil || len(m.sets) >= remembered {
		m.sets = map[K]set{}
	}
	m.sets[key] = found
}
