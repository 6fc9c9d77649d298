package e2e

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const brokerNamespace = "submariner-k8s-broker"

// atHub opens the hub with the credential that a member has in its Secret.
func (s *clusterset) atHub(t *testing.T, member string) *rest.Config {
	t.Helper()
	field := func(name string) string {
		text := s.kubectl(t, member, "-n", "pelago-system", "get", "secret", "submariner-broker-secret", "-o", "jsonpath={.data."+name+"}")
		value, err := base64.StdEncoding.DecodeString(text)
		must(t, err)
		return string(value)
	}
	server := field("server")
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	return &rest.Config{Host: server, QPS: -1, BearerToken: field("token"), TLSClientConfig: rest.TLSClientConfig{CAData: []byte(field(`ca\.crt`))}}
}

// act is a request about an object whose name and content the client knows.
type act func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error

var reading = map[string]act{
	"get": func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
		return err
	},
	"list": func(ctx context.Context, r dynamic.ResourceInterface, _ *unstructured.Unstructured) error {
		_, err := r.List(ctx, metav1.ListOptions{})
		return err
	},
	"watch": func(ctx context.Context, r dynamic.ResourceInterface, _ *unstructured.Unstructured) error {
		w, err := r.Watch(ctx, metav1.ListOptions{})
		if err == nil {
			w.Stop()
		}
		return err
	},
}

var writing = map[string]act{
	"create one beside it": func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		other := o.DeepCopy()
		other.SetName(o.GetName() + "-x")
		other.SetResourceVersion("")
		_, err := r.Create(ctx, other, metav1.CreateOptions{})
		return err
	},
	"update": func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		changed := o.DeepCopy()
		changed.SetAnnotations(map[string]string{"touched": "yes"})
		_, err := r.Update(ctx, changed, metav1.UpdateOptions{})
		return err
	},
	"patch": func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"yes"}}}`), metav1.PatchOptions{})
		return err
	},
	"relabel as its own": func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := r.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"labels":{"submariner-io/clusterID":"g1"}}}`), metav1.PatchOptions{})
		return err
	},
	"delete": func(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		return r.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
	},
	"delete all": func(ctx context.Context, r dynamic.ResourceInterface, _ *unstructured.Unstructured) error {
		return r.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	},
}

// testRights: what g1's credential may do at the hub to what is not g1's.
func testRights(t *testing.T, s *clusterset) {
	ctx := t.Context()
	s.needLoad(t)
	member, err := dynamic.NewForConfig(s.atHub(t, "g1"))
	must(t, err)
	config, err := s.Lab.RESTConfig("hub")
	must(t, err)
	admin, err := dynamic.NewForConfig(config)
	must(t, err)
	kind := func(group, version, resource string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: group, Version: version, Resource: resource}
	}
	for _, tt := range []struct {
		resource schema.GroupVersionResource
		object   string // a name, or the beginning of one of g2's
		reads    bool
	}{
		{kind("submariner.io", "v1", "endpoints"), "g2-", true},
		{kind("pelago.io", "v1alpha1", "servicecontributions"), "g2.", true},
		{kind("discovery.k8s.io", "v1", "endpointslices"), "g2.", true},
		{kind("submariner.io", "v1", "clusters"), "g2", true},
		{kind("", "v1", "secrets"), "submariner-ipsec-psk", false},
		{kind("", "v1", "secrets"), "cluster-g2.registration", false},
		{kind("", "v1", "serviceaccounts"), "cluster-g2", false},
		{kind("rbac.authorization.k8s.io", "v1", "roles"), "submariner-k8s-broker-cluster", false},
		{kind("rbac.authorization.k8s.io", "v1", "rolebindings"), "cluster-g2", false},
	} {
		t.Run(tt.resource.Resource+" "+tt.object, func(t *testing.T) {
			list, err := admin.Resource(tt.resource).Namespace(brokerNamespace).List(ctx, metav1.ListOptions{})
			must(t, err)
			i := slices.IndexFunc(list.Items, func(o unstructured.Unstructured) bool { return strings.HasPrefix(o.GetName(), tt.object) })
			if i < 0 {
				t.Fatalf("the hub has no %s of that name", tt.resource.Resource)
			}
			object := &list.Items[i]
			as := member.Resource(tt.resource).Namespace(brokerNamespace)
			for verb, do := range writing {
				if err := do(ctx, as, object); !apierrors.IsForbidden(err) {
					t.Errorf("g1: %s %s: %v, want 403", verb, object.GetName(), err)
				}
			}
			for verb, do := range reading {
				err := do(ctx, as, object)
				if tt.reads && err != nil || !tt.reads && !apierrors.IsForbidden(err) {
					t.Errorf("g1: %s %s: %v, want success: %t", verb, object.GetName(), err, tt.reads)
				}
			}
			now, err := admin.Resource(tt.resource).Namespace(brokerNamespace).Get(ctx, object.GetName(), metav1.GetOptions{})
			must(t, err)
			if now.GetUID() != object.GetUID() || now.GetAnnotations()["touched"] != "" || now.GetLabels()["submariner-io/clusterID"] != object.GetLabels()["submariner-io/clusterID"] {
				t.Errorf("%s was changed", object.GetName())
			}
		})
	}
	t.Run("a token of g2", func(t *testing.T) {
		request := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": "cluster-g2"}}}
		_, err := member.Resource(kind("", "v1", "serviceaccounts")).Namespace(brokerNamespace).Create(ctx, request, metav1.CreateOptions{}, "token")
		if !apierrors.IsForbidden(err) {
			t.Errorf("g1 asks for a token of cluster-g2: %v, want 403", err)
		}
	})
	t.Run("other namespaces", func(t *testing.T) {
		for _, namespace := range []string{"kube-system", "default"} {
			if _, err := member.Resource(kind("", "v1", "secrets")).Namespace(namespace).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("g1 lists Secrets in %s: %v, want 403", namespace, err)
			}
		}
	})
}
