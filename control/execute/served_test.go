package execute

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// A member that drops the version of a manifest still has the object: the Work does not go before
// it.
func TestVersionNoLongerServed(t *testing.T) {
	const old = `{apiVersion: example.com/v1alpha1, kind: Gadget, metadata: {name: g, namespace: NS}}`
	newer := strings.Replace(old, "v1alpha1", "v1", 1)
	l := newLab(t, apiserver.Start(t))
	l.member = apiserver.Connect(t, l.config, apiextensionsv1.AddToScheme)
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
		XPreserveUnknownFields: ptr.To(true)}}
	crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "gadgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Kind: "Gadget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: schema},
				{Name: "v1alpha1", Served: true, Schema: schema}}}}
	l.member.Make(crd)
	served := func(manifest string) func() bool {
		return func() bool {
			want := l.object(manifest)
			err := l.member.Get(l.Context(), client.ObjectKeyFromObject(want), want)
			return !kube.NotServed(err) && client.IgnoreNotFound(err) == nil
		}
	}
	await.True(t, "the kind is served", served(old))
	l.run()
	w := l.work("w", old)
	l.applied("w")

	unserve := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/versions/1/served","value":false}]`))
	if err := l.member.Patch(l.Context(), crd, unserve); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the version is served no more", func() bool { return !served(old)() })
	l.hub.Remove(w)
	await.True(t, "the Work is gone", func() bool { return l.gone("w") })
	want := l.object(newer)
	if err := l.member.Get(l.Context(), client.ObjectKeyFromObject(want), want); !apierrors.IsNotFound(err) || kube.NotServed(err) {
		t.Errorf("the Work went before its object: %v", err)
	}
}
