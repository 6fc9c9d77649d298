package tables

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
)

// restrict allows only this cluster, and those to which one of the given services is exported, to
// open flows to a global address. exported are all exported services behind that address; if one of
// them is exported to all clusters, nothing is restricted.
func (b *builder) restrict(ip netip.Addr, exported ...types.NamespacedName) {
	var audience dataplane.ClusterSet
	audience.Add(b.objs.Config.ClusterIndex) // by the hairpin
	for _, name := range exported {
		text, restricted := b.objs.ExportTo[name]
		if !restricted {
			return
		}
		for i, word := range b.audience(text) {
			audience[i] |= word
		}
	}
	if len(exported) == 0 {
		return
	}
	s := &b.out.State
	if s.Audiences == nil {
		s.Audiences = map[netip.Addr]dataplane.ClusterSet{}
	}
	g := s.Globals[ip]
	g.Restricted = true
	s.Globals[ip], s.Audiences[ip] = g, audience
}

// audience is the set of clusters that a value of annotation pelago.io/export-to names. An invalid
// value names none; the agent reports it on the ServiceExport.
func (b *builder) audience(text string) dataplane.ClusterSet {
	if set, ok := b.audiences[text]; ok {
		return set
	}
	var set dataplane.ClusterSet
	if a, err := topology.ParseAudience(text); err == nil {
		for i := range b.objs.Peers {
			p := &b.objs.Peers[i]
			if index, ok := b.clusters[p.Name]; ok && a.Includes(p.Name, p.Spec.Labels) {
				set.Add(index)
			}
		}
	}
	b.audiences[text] = set
	return set
}

// exportsOf returns the exported services that a pod is an endpoint of.
func (b *builder) exportsOf(pod types.NamespacedName) []types.NamespacedName {
	if len(b.objs.ExportTo) == 0 {
		return nil // nothing is restricted
	}
	if b.exports == nil {
		b.exports = map[types.NamespacedName][]types.NamespacedName{}
		for name := range b.objs.Exports {
			for _, slice := range b.objs.Slices[name] {
				for _, e := range slice.Endpoints {
					if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
						of := types.NamespacedName{Namespace: name.Namespace, Name: e.TargetRef.Name}
						b.exports[of] = append(b.exports[of], name)
					}
				}
			}
		}
	}
	return b.exports[pod]
}
