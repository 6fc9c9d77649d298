package tables_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/clusterset"
)

// With what earlier reconciles have parsed and collected, the tables are those without.
func TestSliceCache(t *testing.T) {
	objs, host := clusterset.Full(true)
	version := 0
	change := func(name types.NamespacedName) {
		objs.Slices[name] = slices.Clone(objs.Slices[name])
		for i := range objs.Slices[name] {
			s := objs.Slices[name][i].DeepCopy()
			version++
			s.ResourceVersion = fmt.Sprint(version)
			objs.Slices[name][i] = *s
		}
	}
	var names []types.NamespacedName
	for name := range objs.Slices {
		names = append(names, name)
		change(name)
	}
	if len(names) == 0 {
		t.Fatal("there are no EndpointSlices")
	}
	changeImported := func(f func(*discoveryv1.EndpointSlice)) {
		objs.Imported = maps.Clone(objs.Imported)
		for name, of := range objs.Imported {
			of = slices.Clone(of)
			for i := range of {
				version++
				s := of[i].DeepCopy()
				if s.ResourceVersion = fmt.Sprint(version); s.Labels[mcs.LabelSourceCluster] != objs.Config.ClusterID {
					f(s)
				}
				of[i] = *s
			}
			objs.Imported[name] = of
		}
	}
	changeImported(func(*discoveryv1.EndpointSlice) {})
	if len(objs.Imported) == 0 {
		t.Fatal("there are no EndpointSlices of ServiceImports")
	}
	var former dataplane.State
	cached := host
	cached.Maglev, cached.Slices = &dataplane.MaglevCache{}, &tables.SliceCache{}
	const copied = "the peers are copied"
	for _, step := range []struct {
		what    string
		do      func()
		changes bool
	}{
		{what: "the first time", do: func() {}, changes: true},
		{what: "nothing has changed", do: func() {}},
		{what: copied, do: func() { objs.Peers = slices.Clone(objs.Peers) }},
		{what: "no backend is ready", changes: true, do: func() {
			for _, name := range names {
				change(name)
				for i := range objs.Slices[name] {
					for e := range objs.Slices[name][i].Endpoints {
						objs.Slices[name][i].Endpoints[e].Conditions.Ready = ptr.To(false)
					}
				}
			}
		}},
		{what: "they terminate", changes: true, do: func() {
			for _, name := range names {
				change(name)
				for i := range objs.Slices[name] {
					for e := range objs.Slices[name][i].Endpoints {
						objs.Slices[name][i].Endpoints[e].Conditions.Terminating = ptr.To(true)
						objs.Slices[name][i].Endpoints[e].Conditions.Serving = ptr.To(true)
					}
				}
			}
		}},
		{what: "clusters get weights", changes: true, do: func() {
			objs.Imports = maps.Clone(objs.Imports)
			for name, i := range objs.Imports {
				i.Weights, i.Problems = map[string]int{objs.Config.ClusterID: 3}, []string{"an annotation has no effect"}
				objs.Imports[name] = i
			}
		}},
		{what: "another cluster has no backends", changes: true, do: func() {
			changeImported(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })
		}},
		{what: "a service is served on its node alone", do: func() {
			objs.Services = maps.Clone(objs.Services)
			for name, s := range objs.Services {
				s = s.DeepCopy()
				s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
				objs.Services[name] = s
			}
		}, changes: true},
		{what: "a node has another index", changes: true, do: func() {
			objs.NodeIndexes = slices.Clone(objs.NodeIndexes)
			i := slices.IndexFunc(objs.NodeIndexes, func(n pelagov1alpha1.NodeIndex) bool { return n.Name != objs.Name })
			objs.NodeIndexes[i].Spec.Index = 77
		}},
		{what: "it is no gateway", changes: true, do: func() {
			objs.Nodes = slices.Clone(objs.Nodes)
			for i := range objs.Nodes {
				objs.Nodes[i].Labels = nil
			}
		}},
		{what: "slices go", changes: true, do: func() {
			for _, name := range names {
				delete(objs.Slices, name)
			}
		}},
		{what: "global IPs are given up", changes: true, do: func() { objs.IngressIPs = nil }},
		{what: "peers go", changes: true, do: func() { objs.Peers = nil }},
		{what: "imports go", changes: true, do: func() { objs.Imports = nil }},
	} {
		step.do()
		want, got := tables.Desired(objs, host), tables.Desired(objs, cached)
		if diff := cmp.Diff(want, got, clusterset.Comparable); diff != "" {
			t.Errorf("%s: -without +with the cache:\n%s", step.what, diff)
		}
		if same := cmp.Equal(former, got.State, clusterset.Comparable); same == step.changes {
			t.Errorf("%s: the tables are the same: %t", step.what, same)
		}
		if step.what == copied {
			for key, v := range got.State.VIPs {
				if len(v.Targets) > 0 && &v.Targets[0] != &former.VIPs[key].Targets[0] {
					t.Errorf("%s: the clusters that serve %s were collected again", step.what, key.Address)
				}
			}
		}
		former = got.State
	}
}
