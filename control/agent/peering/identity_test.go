package peering_test

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/agent/peering"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

var server = apiserver.NewShared(apiserver.CRDs("clusterproperties.about.k8s.io"))

func TestMain(m *testing.M) { os.Exit(server.Run(m)) }

func property(name, value string) *unstructured.Unstructured {
	p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"value": value}}}
	p.SetGroupVersionKind(schema.GroupVersionKind{Group: "about.k8s.io", Version: "v1alpha1", Kind: "ClusterProperty"})
	p.SetName(name)
	return p
}

// The properties of the membership exist, come back when deleted or changed, and those of another
// tool stay as they are.
func TestIdentity(t *testing.T) {
	c := apiserver.Connect(t, server.Config(t))
	foreign := property("clusterset.k8s.io", "other")
	c.Make(foreign, property("example.com", "kept"))
	value := func(name string) func() string {
		return func() string {
			p := property(name, "")
			if err := c.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
				return err.Error()
			}
			v, _, _ := unstructured.NestedString(p.Object, "spec", "value")
			return v
		}
	}
	apiserver.Manager{Scheme: c.Scheme(), Setup: []func(ctrl.Manager) error{func(mgr ctrl.Manager) error {
		return peering.SetupIdentity(mgr, peering.IdentityOptions{ClusterID: "g1", HubID: "hub"})
	}}}.Run(t, server.Config(t))

	await.Equal(t, "g1", value("cluster.clusterset.k8s.io"))
	await.True(t, "an Event on the foreign property", func() bool {
		var events corev1.EventList
		if err := c.List(t.Context(), &events); err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == foreign.GetName() && strings.Contains(e.Message, `has set this property to "other"`) {
				return true
			}
		}
		return false
	})
	await.Equal(t, "other", value("clusterset.k8s.io"))

	c.Remove(foreign, property("cluster.clusterset.k8s.io", ""))
	await.Equal(t, "hub", value("clusterset.k8s.io"))
	await.Equal(t, "g1", value("cluster.clusterset.k8s.io"))

	changed := property("cluster.clusterset.k8s.io", "")
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(changed), changed); err != nil {
		t.Fatal(err)
	}
	changed.Object["spec"] = map[string]any{"value": "g9"}
	if err := c.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "g1", value("cluster.clusterset.k8s.io"))
	await.Equal(t, "kept", value("example.com"))
}
