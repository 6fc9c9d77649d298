package apiserver

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Cluster is a server as one test works with it. What the capital verbs below do must succeed, else
// the test ends.
type Cluster struct {
	testing.TB
	client.Client
	Config *rest.Config
}

// Connect gives a test a server, with Kubernetes' own kinds and those of add.
func Connect(t testing.TB, config *rest.Config, add ...func(*runtime.Scheme) error) *Cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range append(add, clientgoscheme.AddToScheme) {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &Cluster{TB: t, Client: c, Config: config}
}

// Empty deletes all objects of the kinds that earlier tests left on a shared server; of namespaced
// kinds those in namespace default. There is no garbage collector: with the default policy of Jobs,
// which is to orphan, they would never be gone.
func (c *Cluster) Empty(kinds ...client.Object) {
	c.Helper()
	for _, kind := range kinds {
		if err := c.DeleteAllOf(c.Context(), kind, client.InNamespace("default"), client.GracePeriodSeconds(0),
			client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			c.Fatal(err)
		}
	}
}

// Make creates objects.
func (c *Cluster) Make(objects ...client.Object) {
	c.Helper()
	for _, o := range objects {
		if err := c.Create(c.Context(), o); err != nil {
			c.Fatal(err)
		}
	}
}

// Remove deletes objects at once, pods too: there is no kubelet to end them.
func (c *Cluster) Remove(objects ...client.Object) {
	c.Helper()
	for _, o := range objects {
		if err := c.Delete(c.Context(), o, client.GracePeriodSeconds(0)); err != nil {
			c.Fatal(err)
		}
	}
}

// Nudge changes an annotation, so that a controller with the test's clock reconciles the object.
func (c *Cluster) Nudge(o client.Object) {
	c.Helper()
	text := fmt.Appendf(nil, `{"metadata":{"annotations":{"nudge":"%d"}}}`, time.Now().UnixNano())
	if err := c.Patch(c.Context(), o, client.RawPatch(types.MergePatchType, text)); err != nil {
		c.Fatal(err)
	}
}
