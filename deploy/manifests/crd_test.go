package manifests

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcscrd "sigs.k8s.io/mcs-api/config/crd"

	"github.com/pelago-net/pelago/test/apiserver"
)

func TestWhichCRDsAreReplaced(t *testing.T) {
	labels := func(pairs ...string) map[string]string {
		out := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return out
	}
	ours := labels(LabelCRDRevision, fmt.Sprint(crdRevision))
	mcs := labels(LabelCRDRevision, fmt.Sprint(crdRevision), mcscrd.ReleaseVersionLabel, "v0.5.2", mcscrd.CustomResourceDefinitionSchemaRevisionLabel, "1")
	for name, tt := range map[string]struct {
		have, want map[string]string
		replaced   bool
	}{
		"our own":                          {ours, ours, true},
		"our own, older":                   {labels(LabelCRDRevision, "0"), ours, true},
		"our own, newer":                   {labels(LabelCRDRevision, fmt.Sprint(crdRevision+1)), ours, false},
		"somebody else's":                  {nil, ours, false},
		"unreadable":                       {labels(LabelCRDRevision, "x"), ours, false},
		"MCS, older release":               {labels(mcscrd.ReleaseVersionLabel, "v0.3.0"), mcs, true},
		"MCS, older schema":                {labels(mcscrd.ReleaseVersionLabel, "v0.5.2", mcscrd.CustomResourceDefinitionSchemaRevisionLabel, "0"), mcs, true},
		"MCS, newer release":               {labels(mcscrd.ReleaseVersionLabel, "v0.6.0"), mcs, false},
		"MCS, newer release, once our own": {labels(mcscrd.ReleaseVersionLabel, "v0.6.0", LabelCRDRevision, "1"), mcs, false},
		"MCS, same, somebody else's":       {labels(mcscrd.ReleaseVersionLabel, "v0.5.2", mcscrd.CustomResourceDefinitionSchemaRevisionLabel, "1"), mcs, false},
		"MCS, same, our own":               {mcs, mcs, true},
		"MCS without labels":               {nil, mcs, false},
	} {
		if got := replaces(tt.have, tt.want); got != tt.replaced {
			t.Errorf("%s: replaced %v, want %v", name, got, tt.replaced)
		}
	}
}

// The kinds of the hub alone are no business of a member.
func TestMembersGetNoDefinitionsOfTheHub(t *testing.T) {
	crds, err := MemberCRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if strings.HasSuffix(crd.GetName(), ".karmada.io") || crd.GetName() == "kindrules.pelago.io" || crd.GetName() == "placementscores.pelago.io" {
			t.Errorf("%s is installed in members", crd.GetName())
		}
	}
}

// A cluster that has the MCS API from another component, one definition of an older release and one
// without labels.
func TestForeignCRDs(t *testing.T) {
	cfg := apiserver.Start(t)
	ctx := context.Background()
	foreign := func(kind, plural, release string) {
		crd := &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + ".multicluster.x-k8s.io", Annotations: map[string]string{
				"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/tree/master/keps/sig-multicluster/1645-multi-cluster-services-api"}},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "multicluster.x-k8s.io", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: strings.ToLower(kind)},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}}},
			},
		}
		if release != "" {
			crd.Labels = map[string]string{mcscrd.ReleaseVersionLabel: release}
		}
		if err := open(t, cfg).Create(ctx, crd); err != nil {
			t.Fatal(err)
		}
	}
	foreign("ServiceExport", "serviceexports", "")
	foreign("ServiceImport", "serviceimports", "v0.1.0")
	var said []string
	if err := MemberBase(ctx, open(t, cfg), func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }); err != nil {
		t.Fatal(err)
	}
	if n := versions(t, cfg, "serviceexports"); n != 1 {
		t.Errorf("serviceexports of somebody else now has %d versions", n)
	}
	if n := versions(t, cfg, "serviceimports"); n != 2 {
		t.Errorf("serviceimports of release v0.1.0 has %d versions, want it upgraded to 2", n)
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "CRD serviceexports.multicluster.x-k8s.io is kept as it is") {
		t.Errorf("the user is not told: %s", text)
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, "CRD serviceexports.multicluster.x-k8s.io does not know spec, status, subresource status: ") {
		t.Errorf("what the API server removes is not named: %s", text)
	}
}

func TestPruned(t *testing.T) {
	crds, err := MemberCRDs()
	if err != nil {
		t.Fatal(err)
	}
	definition := func(change func(map[string]apiextensionsv1.JSONSchemaProps)) *apiextensionsv1.CustomResourceDefinition {
		for _, crd := range crds {
			if crd.GetName() != "serviceimports.multicluster.x-k8s.io" {
				continue
			}
			out := new(apiextensionsv1.CustomResourceDefinition)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(crd.DeepCopy().Object, out); err != nil {
				t.Fatal(err)
			}
			for _, v := range out.Spec.Versions {
				change(v.Schema.OpenAPIV3Schema.Properties)
			}
			return out
		}
		t.Fatal("ServiceImport is not among the definitions")
		return nil
	}
	as := func(map[string]apiextensionsv1.JSONSchemaProps) {}
	for name, tt := range map[string]struct {
		change func(map[string]apiextensionsv1.JSONSchemaProps)
		want   []string
	}{
		"the same":      {as, nil},
		"a field":       {func(p map[string]apiextensionsv1.JSONSchemaProps) { delete(p["spec"].Properties, "ipFamilies") }, []string{"spec.ipFamilies"}},
		"all of status": {func(p map[string]apiextensionsv1.JSONSchemaProps) { delete(p, "status") }, []string{"status"}},
		"of the items of a list": {func(p map[string]apiextensionsv1.JSONSchemaProps) {
			delete(p["spec"].Properties["ports"].Items.Schema.Properties, "appProtocol")
		}, []string{"spec.ports.appProtocol"}},
		"anything is kept": {func(p map[string]apiextensionsv1.JSONSchemaProps) {
			p["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
		}, nil},
		"more than ours": {func(p map[string]apiextensionsv1.JSONSchemaProps) {
			p["spec"].Properties["more"] = apiextensionsv1.JSONSchemaProps{Type: "string"}
		}, nil},
	} {
		if diff := cmp.Diff(tt.want, pruned(definition(tt.change), definition(as))); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}

func versions(t *testing.T, cfg *rest.Config, plural string) int {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := open(t, cfg).Get(context.Background(), client.ObjectKey{Name: plural + ".multicluster.x-k8s.io"}, crd); err != nil {
		t.Fatal(err)
	}
	return len(crd.Spec.Versions)
}
