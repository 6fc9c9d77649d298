package propagate_test

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// gizmos is a kind in two versions; the older one is what a policy names.
func (h *hub) gizmos() (crd *apiextensionsv1.CustomResourceDefinition, one *unstructured.Unstructured) {
	h.Helper()
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
		XPreserveUnknownFields: ptr.To(true)}}
	crd = &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gizmos.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gizmos", Kind: "Gizmo"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: schema},
				{Name: "v1alpha1", Served: true, Schema: schema}}}}
	h.Make(crd)
	one = &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1alpha1", "kind": "Gizmo",
		"metadata": map[string]any{"namespace": h.ns, "name": "g"}}}
	await.True(h, "the kind is served", func() bool { return h.Create(h.Context(), one) == nil })
	return crd, one
}

// The version that a policy names is no longer served: the template still exists, and its binding
// stays. There is no garbage collector: it takes the 404 for that of an owner which is gone.
func TestVersionNoLongerServed(t *testing.T) {
	h := hubAt(t, apiserver.Start(t, apiserver.CRDs()), "member1")
	h.run(nil)
	h.policy("all", selecting("", "member1", ""))
	p := h.policy("gizmos", `{resourceSelectors: [{apiVersion: example.com/v1alpha1, kind: Gizmo}], placement: {clusterAffinity: {clusterNames: [member1]}}}`)
	crd, one := h.gizmos()
	b := h.runs("g-gizmo", "member1:0")

	edit(h, crd, func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Versions[1].Served = false })
	await.True(t, "the version is served no more", func() bool {
		return kube.NotServed(h.Get(t.Context(), client.ObjectKeyFromObject(one), one.DeepCopy()))
	})
	await.Never(t, 3*time.Second, "the binding goes", func() bool {
		now := h.binding("g-gizmo")
		if now == nil || now.DeletionTimestamp != nil {
			return true
		}
		edit(h, now, func(b *workv1alpha2.ResourceBinding) {
			metav1.SetMetaDataAnnotation(&b.ObjectMeta, "seen", time.Now().String())
		})
		return false
	})
	if now := h.binding("g-gizmo"); now.UID != b.UID {
		t.Error("the binding was made again")
	}
	h.Remove(p) // which waits until nothing carries its claim
	h.follows(b, "")
}
