package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/apiserver"
)

// TestDeinit removes a broker and a hub from an API server. Nothing stays that the command line, or
// pelago-hub for itself, has written, except definitions.
func TestDeinit(t *testing.T) {
	t.Parallel()
	c := newClusterset(t)
	hub := apiserver.Connect(t, c.hub, clusterv1alpha1.AddToScheme, coordinationv1.AddToScheme)
	deinit := []string{"deinit", "--context", "hub"}
	c.fails(t, "has neither a broker nor a hub", deinit...)
	c.must(t, "init", "--context", "hub", "--output", filepath.Join(c.dir, "pelago-hub.kubeconfig"))
	c.deployBroker(t)
	c.must(t, "token", "create", "--context", "hub")

	own := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: name}
	}
	lease := &coordinationv1.Lease{ObjectMeta: own(manifests.HubName), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("hub-1")}}
	api := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1alpha1.proxy.pelago.io"},
		"spec": map[string]any{"group": "proxy.pelago.io", "version": "v1alpha1", "groupPriorityMinimum": int64(2000), "versionPriority": int64(10),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": manifests.SystemNamespace, "name": manifests.HubName}}}}
	member := &clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "m1"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "users"}}
	hub.Make(lease, api, member)
	must(t, hub.Create(t.Context(), foreign, client.FieldOwner("user")))

	stop := apiserver.Renew(t, hub.Client, lease)
	c.fails(t, "pelago-hub runs: hub-1 holds Lease pelago-system/pelago-hub: stop it first", append(deinit, "--yes")...)
	stop()
	// as pelago-hub does at its end
	must(t, hub.Patch(t.Context(), lease, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"holderIdentity":""}}`))))
	c.fails(t, "clusters are registered at the hub: m1", append(deinit, "--yes")...)
	hub.Remove(member)
	c.fails(t, "nothing was changed: answer y", deinit...)
	c.fails(t, "--purge", append(deinit, "--yes", "--purge")...)
	if found := written(t, c); len(found) < 20 {
		t.Fatalf("before deinit only these are found: %q", found)
	}

	// Ctrl-C while the first namespace is not gone.
	ctx, interrupt := context.WithCancel(t.Context())
	err := c.into(ctx, writes(func(text string) {
		if strings.Contains(text, "Waiting until namespace ") {
			interrupt()
		}
	}), append(deinit, "--yes")...)
	if err == nil || ctx.Err() == nil {
		t.Fatalf("interrupted: %v", err)
	}

	t.Log(c.must(t, append(deinit, "--yes")...))
	for _, found := range written(t, c) {
		if !strings.HasPrefix(found, "CustomResourceDefinition ") {
			t.Errorf("%s stays", found)
		}
	}
	must(t, hub.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
	c.fails(t, "has neither a broker nor a hub", append(deinit, "--yes")...)
}

// writes calls itself with all that is written.
type writes func(text string)

func (w writes) Write(text []byte) (int, error) {
	w(string(text))
	return len(text), nil
}

// written are the objects of the hub that a field manager of ours has written, and what there is of
// proxy.pelago.io.
func written(t *testing.T, c clusterset) (found []string) {
	t.Helper()
	typed, err := kubernetes.NewForConfig(c.hub)
	must(t, err)
	lists, err := typed.Discovery().ServerPreferredResources()
	// the API of pelago-hub, which does not run
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		t.Fatal(err)
	}
	hub := open(t, c.hub)
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "delete"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		must(t, err)
		for _, r := range list.APIResources {
			var objs metav1.PartialObjectMetadataList
			objs.SetGroupVersionKind(gv.WithKind(r.Kind))
			must(t, hub.List(t.Context(), &objs))
			for _, o := range objs.Items {
				ours := strings.HasSuffix(o.Name, ".proxy.pelago.io") ||
					// without fields
					r.Kind == "Namespace" && slices.Contains([]string{clusterv1alpha1.SecretNamespace, manifests.BrokerNamespace}, o.Name)
				for _, m := range o.ManagedFields {
					// of a client without one it is the program's name
					ours = ours || strings.HasPrefix(m.Manager, manifests.Manager)
				}
				if ours && r.Kind != "Event" {
					found = append(found, r.Kind+" "+manifests.Title(client.ObjectKeyFromObject(&o)))
				}
			}
		}
	}
	return found
}
