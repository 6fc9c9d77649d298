package broker

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

var seed = flag.Uint64("seed", 1, "of the requests of a hostile member")

// at is where an object is.
type at struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// resources are all that the API server lists, but those that it and its controllers change by
// themselves.
func resources(t *testing.T, config *rest.Config) []schema.GroupVersionResource {
	t.Helper()
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	var out []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && !slices.Contains([]string{"leases", "events", "componentstatuses"}, r.Name) {
				out = append(out, gv.WithResource(r.Name))
			}
		}
	}
	return out
}

// objects are those that a cluster does not own, as administrators see them.
func objects(t *testing.T, admin dynamic.Interface, of []schema.GroupVersionResource, but string) map[at]*unstructured.Unstructured {
	t.Helper()
	out := map[at]*unstructured.Unstructured{}
	for _, gvr := range of {
		list, err := admin.Resource(gvr).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("list %s: %v", gvr.Resource, err)
		}
		for i := range list.Items {
			if o := &list.Items[i]; o.GetLabels()[submarinerv1.LabelClusterID] != but {
				out[at{gvr, o.GetNamespace(), o.GetName()}] = o
			}
		}
	}
	return out
}

// TestAHostileMemberChangesNothing: with its credential a member tries each verb on objects of every
// kind, and writes objects of the kinds that it may write with forged names, labels, owners and
// addresses. No other object changes.
func TestAHostileMemberChangesNothing(t *testing.T) {
	h := openHub(t)
	ctx := t.Context()
	one, two := h.two(t)
	for _, o := range []client.Object{endpoint("g2", "192.0.2.2", "120.2.0.0/24"), contribution("g2", "web", "120.2.0.9"), slice("g2", "web.abc", "120.2.0.9")} {
		if err := two.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	token, err := issue(ctx, h.admin, namespace, AccountName("g1"), time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(h.config)
	config.BearerToken, config.QPS = token, -1
	member, admin := dynamic.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(h.config)
	all := resources(t, h.config)
	before := objects(t, admin, all, "g1")
	random := rand.New(rand.NewPCG(*seed, 0))
	done := 0
	try := func(err error) {
		if err == nil {
			done++
		}
	}

	of := map[schema.GroupVersionResource][]at{}
	for where := range before {
		of[where.resource] = append(of[where.resource], where)
	}
	for _, there := range of {
		slices.SortFunc(there, func(a, b at) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		random.Shuffle(len(there), func(i, j int) { there[i], there[j] = there[j], there[i] })
		theirs := slices.DeleteFunc(slices.Clone(there), func(w at) bool { return before[w].GetLabels()[submarinerv1.LabelClusterID] == "" })
		for _, where := range slices.Concat(theirs, there[:min(3, len(there))]) {
			r, forged := resourceIn(member, where), before[where].DeepCopy()
			forged.SetLabels(map[string]string{submarinerv1.LabelClusterID: "g1", "multicluster.kubernetes.io/source-cluster": "g1"})
			forged.SetManagedFields(nil)
			patch := []byte(`{"metadata":{"labels":{"submariner-io/clusterID":"g1"},"annotations":{"pelago.io/unapproved":"true"},"finalizers":["example.org/stay"]}}`)
			_, err := r.Update(ctx, forged, metav1.UpdateOptions{})
			try(err)
			_, err = r.UpdateStatus(ctx, forged, metav1.UpdateOptions{})
			try(err)
			_, err = r.Apply(ctx, where.name, forged, metav1.ApplyOptions{FieldManager: "hostile", Force: true})
			try(err)
			for _, sub := range [][]string{nil, {"status"}, {"scale"}, {"finalizers"}} {
				_, err = r.Patch(ctx, where.name, types.MergePatchType, patch, metav1.PatchOptions{}, sub...)
				try(err)
			}
			try(r.Delete(ctx, where.name, metav1.DeleteOptions{}))
			forged.SetName(where.name + "-forged")
			forged.SetResourceVersion("")
			_, err = r.Create(ctx, forged, metav1.CreateOptions{})
			try(err)
			try(r.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		}
	}
	if done > 0 {
		t.Errorf("%d requests on objects of others succeeded", done)
	}

	ids, ips := []string{"g1", "g2", ""}, []string{"120.1.0.9", "120.2.0.9", "8.8.8.8"}
	pick := func(of []string) string { return of[random.IntN(len(of))] }
	made := 0
	for range 300 {
		var o client.Object
		switch random.IntN(3) {
		case 0:
			o = endpoint(pick(ids), pick([]string{"192.0.2.1", "192.0.2.2"}), pick([]string{"120.1.0.0/24", "120.2.0.0/24"}))
		case 1:
			o = contribution(pick(ids), pick([]string{"web", "shop"}), pick(ips))
		default:
			o = slice(pick(ids), "web.abc", pick(ips))
		}
		if id := pick(ids); id != "" && random.IntN(2) == 0 {
			o.SetLabels(map[string]string{submarinerv1.LabelClusterID: id, "multicluster.kubernetes.io/source-cluster": id,
				"service.kubernetes.io/service-proxy-name": "pelago"})
		}
		if random.IntN(4) == 0 {
			o.SetName("")
			o.SetGenerateName(pick([]string{"g1.", "g2.", "g2-submariner-cable-g2-"}))
		}
		if random.IntN(4) == 0 {
			victim := before[at{submarinerv1.GroupVersion.WithResource("clusters"), namespace, "g2"}]
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "submariner.io/v1", Kind: "Cluster", Name: "g2", UID: victim.GetUID()}})
		}
		do := []func(context.Context, client.Object) error{
			func(ctx context.Context, o client.Object) error { return one.Create(ctx, o) },
			func(ctx context.Context, o client.Object) error { return verbs["update"](ctx, one, o) },
			func(ctx context.Context, o client.Object) error { return verbs["patch"](ctx, one, o) },
			func(ctx context.Context, o client.Object) error { return verbs["delete"](ctx, one, o) },
		}[random.IntN(4)]
		if do(ctx, o) == nil {
			made++
		}
	}
	if made == 0 {
		t.Error("no request of the member succeeded, so that none was tried in earnest")
	}

	after := objects(t, admin, all, "g1")
	for where, was := range before {
		if diff := cmp.Diff(content(was), content(after[where])); diff != "" {
			t.Errorf("%s %s/%s has changed with seed %d: -before +after\n%s", where.resource.Resource, where.namespace, where.name, *seed, diff)
		}
	}
	for where := range after {
		if before[where] == nil {
			t.Errorf("%s %s/%s was made: seed %d", where.resource.Resource, where.namespace, where.name, *seed)
		}
	}
}

// content is what members could change: the API server's own controllers write the status of its own
// kinds.
func content(o *unstructured.Unstructured) map[string]any {
	if o == nil {
		return nil
	}
	o = o.DeepCopy()
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	if group := o.GroupVersionKind().Group; !strings.HasSuffix(group, "pelago.io") && !strings.HasSuffix(group, "submariner.io") {
		delete(o.Object, "status")
	}
	return o.Object
}

func resourceIn(c dynamic.Interface, where at) dynamic.ResourceInterface {
	if where.namespace == "" {
		return c.Resource(where.resource)
	}
	return c.Resource(where.resource).Namespace(where.namespace)
}
