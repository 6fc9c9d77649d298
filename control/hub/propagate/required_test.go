package propagate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// parent is a binding that runs in clusters.
func parent(name string, clusters ...string) binding.Binding {
	b := binding.New(client.ObjectKey{Namespace: strings.Repeat("n", 63), Name: name})
	setLabel(b, b.IDLabel(), strings.Repeat("i", 36))
	for _, c := range clusters {
		b.Spec.Clusters = append(b.Spec.Clusters, workv1alpha2.TargetCluster{Name: c, Replicas: 7})
	}
	return b
}

// A Secret that 3,000 workloads with the longest names need on 500 clusters is far from the limit
// of an object, and goes to all of them.
func TestRequiredByIsBounded(t *testing.T) {
	var clusters []string
	for i := range 500 {
		clusters = append(clusters, fmt.Sprintf("%s-%03d", strings.Repeat("c", 44), i))
	}
	for parents, more := range map[int]string{1: "", 1000: "", 3000: "2000"} {
		var all []binding.Binding
		for i := range parents {
			all = append(all, parent(fmt.Sprintf("%s-%04d", strings.Repeat("p", 248), i), clusters[:1+i*(len(clusters)-1)/max(parents-1, 1)]...))
		}
		b := binding.New(client.ObjectKey{Namespace: "shop", Name: "pull-secret"})
		b.SetUID(types.UID(strings.Repeat("u", 36)))
		requireBy(b, all)
		raw, err := json.Marshal(b.Object)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bindings: %d bytes", parents, len(raw))
		if len(raw) > 1<<20 {
			t.Errorf("%d bindings: %d bytes", parents, len(raw))
		}
		got := map[string]bool{}
		n := 0
		for _, by := range b.Spec.RequiredBy {
			for _, c := range by.Clusters {
				got[c.Name] = true
				n++
			}
		}
		if want := len(all[parents-1].Spec.Clusters); len(got) != want || n != want {
			t.Errorf("%d bindings: %d clusters, %d of them different; want %d", parents, n, len(got), want)
		}
		if got := b.GetAnnotations()[workv1alpha2.AnnotationRequiredByMore]; got != more {
			t.Errorf("%d bindings: %q more, want %q", parents, got, more)
		}
		before := b.Copy()
		all[0].Spec.Clusters[0].Replicas++
		if requireBy(b, all); !same(before, b) {
			t.Errorf("%d bindings: other replicas of one of them change the binding", parents)
		}
		if requireBy(b, nil); len(b.GetLabels())+len(b.GetAnnotations())+len(b.Spec.RequiredBy) != 0 {
			t.Errorf("%d bindings: something remains without them", parents)
		}
	}
}

// Each cluster is named once, at the first binding that needs it, also one that a binding leaves
// gracefully.
func TestRequiredByIsAUnion(t *testing.T) {
	leaving := parent("b", "m2")
	leaving.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "m3", PurgeMode: policyv1alpha1.PurgeModeGracefully},
		{FromCluster: "m4", PurgeMode: policyv1alpha1.PurgeModeDirectly}}
	b := binding.New(client.ObjectKey{Namespace: "shop", Name: "settings"})
	requireBy(b, []binding.Binding{parent("a", "m1", "m2"), leaving, parent("c", "m3")})
	var got []string
	for _, by := range b.Spec.RequiredBy {
		line := by.Name
		for _, c := range by.Clusters {
			line += " " + c.Name
		}
		got = append(got, line)
	}
	if diff := cmp.Diff([]string{"a m1 m2", "b m3", "c"}, got); diff != "" {
		t.Error(diff)
	}
}
