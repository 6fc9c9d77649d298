package work

import (
	"context"
	"errors"
	"net/http"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// discovered is a server that serves Deployments in some versions.
type discovered struct {
	discovery.ServerResourcesInterfaceWithContext
	versions []string
	err      error
}

func (d discovered) ServerGroupsAndResourcesWithContext(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	lists := []*metav1.APIResourceList{{GroupVersion: "v1"}}
	for _, v := range d.versions {
		lists = append(lists, &metav1.APIResourceList{GroupVersion: "apps/" + v, APIResources: []metav1.APIResource{{Kind: "Deployment"}}})
	}
	return nil, lists, d.err
}

// A template whose version is no longer served is alive in another one. No answer is not the same
// as no template.
func TestAliveInAnotherVersion(t *testing.T) {
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1"}}
	kind := schema.GroupKind{Group: "apps", Kind: "Deployment"}
	unserved := map[string]error{
		"404":        apierrors.NewGenericServerResponse(http.StatusNotFound, "get", schema.GroupResource{}, "web", "404 page not found", 0, true),
		"no mapping": &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: []string{"v1beta1"}},
	}
	for name, test := range map[string]struct {
		template string
		discovered
		want  types.UID
		fails bool
	}{
		"another version has it":   {"web", discovered{versions: []string{"v1"}}, "u1", false},
		"another version has none": {"gone", discovered{versions: []string{"v1"}}, "", false},
		"the kind is gone":         {"web", discovered{}, "", false},
		"no answer":                {"web", discovered{err: errors.New("timeout")}, "", true},
		"dropped meanwhile":        {"web", discovered{versions: []string{"v1beta1"}}, "", true},
	} {
		for how, answer := range unserved {
			t.Run(name+", "+how, func(t *testing.T) {
				r, _, _ := waiting(t, web)
				c := r.client.(client.WithWatch)
				r.live = interceptor.NewClient(c, interceptor.Funcs{
					Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
						if o.GetObjectKind().GroupVersionKind().Version == "v1beta1" {
							return answer
						}
						return c.Get(ctx, key, o, opts...)
					},
				})
				r.discovery = test.discovered
				ref := workv1alpha2.ObjectReference{APIVersion: "apps/v1beta1", Kind: "Deployment", Namespace: "shop", Name: test.template}
				if got, err := r.alive(t.Context(), ref); got != test.want || (err != nil) != test.fails {
					t.Errorf("alive: %q, %v", got, err)
				}
			})
		}
	}
}
