package work_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// The controllers of a hub end the namespaces that are deleted.
var namespaceServer = apiserver.NewShared(apiserver.CRDs(), apiserver.HubControllers())

type namespaceHub struct{ *apiserver.Cluster }

func namespaceNewHub(t *testing.T) namespaceHub {
	return namespaceHub{apiserver.Connect(t, namespaceServer.Config(t), clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme,
		workv1alpha1.AddToScheme, workv1alpha2.AddToScheme)}
}

func (h namespaceHub) join(name string) {
	h.Helper()
	h.Make(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "karmada-es-" + name}},
		&clusterv1alpha1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull},
		},
	)
}

func (h namespaceHub) manager(optIn bool) apiserver.Manager {
	return apiserver.Manager{Scheme: h.Scheme(), Setup: []func(ctrl.Manager) error{work.AddIndexes, func(mgr ctrl.Manager) error {
		return work.SetupNamespaces(mgr, work.NamespaceOptions{HubID: "hub", OptIn: optIn})
	}}}
}

func (h namespaceHub) run(optIn bool) (stop func()) {
	h.Helper()
	return h.manager(optIn).Run(h, h.Config)
}

// holds lists who has a Work of a namespace, as cluster or cluster:label with the value of the
// label place.
func (h namespaceHub) holds(namespace string) []string {
	h.Helper()
	var list workv1alpha1.WorkList
	if err := h.List(h.Context(), &list); err != nil {
		h.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(list.Items[i].Spec.Workload.Manifests[0].Raw); err != nil {
			h.Fatal(err)
		}
		if u.GetName() != namespace {
			continue
		}
		cluster := strings.TrimPrefix(list.Items[i].Namespace, "karmada-es-")
		if place := u.GetLabels()["place"]; place != "" {
			cluster += ":" + place
		}
		if list.Items[i].DeletionTimestamp != nil {
			cluster += " ending"
		}
		out = append(out, cluster)
	}
	slices.Sort(out)
	return out
}

func (h namespaceHub) label(namespace, key, value string) {
	h.Helper()
	text := []byte(`{"metadata":{"labels":{"` + key + `":"` + value + `"}}}`)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := h.Patch(h.Context(), ns, client.RawPatch(types.MergePatchType, text)); err != nil {
		h.Fatal(err)
	}
}

// end lets the Works go that are being deleted, as control/execute does.
func (h namespaceHub) end() {
	h.Helper()
	var list workv1alpha1.WorkList
	if err := h.List(h.Context(), &list); err != nil {
		h.Fatal(err)
	}
	for i := range list.Items {
		if w := &list.Items[i]; w.DeletionTimestamp != nil {
			w.Finalizers = nil
			if err := h.Update(h.Context(), w); client.IgnoreNotFound(err) != nil {
				h.Fatal(err)
			}
		}
	}
}

// TestNamespaces: from the first cluster to the end of a namespace.
func TestNamespaces(t *testing.T) {
	h := namespaceNewHub(t)
	h.join("m1")
	h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "hidden", Labels: map[string]string{policyv1alpha1.LabelNamespaceSkipAutoPropagation: "true"},
		}})
	stop := h.run(false)
	await.Equal(t, []string{"m1"}, func() []string { return h.holds("web") })
	h.join("m2")
	await.Equal(t, []string{"m1", "m2"}, func() []string { return h.holds("web") })

	h.Make(&policyv1alpha1.ClusterOverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "place"},
		Spec: policyv1alpha1.OverrideSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "v1", Kind: "Namespace", Name: "web"}},
			OverrideRules: []policyv1alpha1.RuleWithCluster{{
				TargetCluster: &policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m2"}},
				Overriders: policyv1alpha1.Overriders{LabelsOverrider: []policyv1alpha1.LabelAnnotationOverrider{
					{Operator: "add", Value: map[string]string{"place": "eu"}},
				}},
			}},
		},
	})
	await.Equal(t, []string{"m1", "m2:eu"}, func() []string { return h.holds("web") })

	for _, reserved := range []string{"default", "hidden", "kube-system", "karmada-es-m1"} {
		if got := h.holds(reserved); len(got) > 0 {
			t.Errorf("%s is in %v", reserved, got)
		}
	}
	h.label("hidden", policyv1alpha1.LabelNamespaceSkipAutoPropagation, "")
	await.Equal(t, []string{"m1", "m2"}, func() []string { return h.holds("hidden") })
	// takes nothing away
	h.label("hidden", policyv1alpha1.LabelNamespaceSkipAutoPropagation, "true")

	// While the controller is away a namespace ends; its Works go when it is back.
	stop()
	web := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	h.Remove(web)
	await.True(t, "web is gone", func() bool { return apierrors.IsNotFound(h.Get(t.Context(), client.ObjectKeyFromObject(web), web)) })
	if got := h.holds("web"); len(got) != 2 {
		t.Fatalf("Works of web went by themselves: %v", got)
	}
	h.run(false)
	await.Equal(t, nil, func() []string {
		h.end()
		return h.holds("web")
	})
	if got := h.holds("hidden"); len(got) != 2 {
		t.Errorf("a label took a namespace away, left is %v", got)
	}
}

// TestOptIn: on a hub with namespaces of its own only those go that say so.
func TestOptIn(t *testing.T) {
	h := namespaceNewHub(t)
	h.join("m9")
	for _, name := range []string{"own", "shared"} {
		h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	h.label("shared", policyv1alpha1.LabelPropagateNamespace, "true")
	h.run(true)
	await.True(t, "shared is in m9", func() bool { return slices.Contains(h.holds("shared"), "m9") })
	if got := h.holds("own"); len(got) > 0 {
		t.Errorf("own is in %v", got)
	}
	var shared workv1alpha1.WorkList
	if err := h.List(t.Context(), &shared, client.InNamespace("karmada-es-m9")); err != nil {
		t.Fatal(err)
	}
	if keys := slices.Sorted(maps.Keys(shared.Items[0].Labels)); !slices.Equal(keys, []string{workv1alpha1.LabelWorkID}) {
		t.Errorf("labels of the Work: %v", keys)
	}
}

// TestCacheWithoutOurWorks: Works that we have made and the cache does not show yet are not made
// again.
func TestCacheWithoutOurWorks(t *testing.T) {
	h := namespaceNewHub(t)
	h.join("late")
	var late atomic.Bool
	late.Store(true)
	var created atomic.Int32
	m := h.manager(false)
	m.NewClient = func(config *rest.Config, o client.Options) (client.Client, error) {
		c, err := client.NewWithWatch(config, o)
		if err != nil {
			return nil, err
		}
		return interceptor.NewClient(c, interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, ok := list.(*workv1alpha1.WorkList); ok && late.Load() {
					return nil
				}
				return c.List(ctx, list, opts...)
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				w, ok := o.(*workv1alpha1.Work)
				if ok && w.Namespace == "karmada-es-late" && bytes.Contains(w.Spec.Workload.Manifests[0].Raw, []byte("seen-late")) {
					created.Add(1)
				}
				return c.Create(ctx, o, opts...)
			},
		}), nil
	}
	m.Run(t, h.Config)
	h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "seen-late"}})
	await.True(t, "the namespace is in late", func() bool { return slices.Contains(h.holds("seen-late"), "late") })
	h.label("seen-late", "place", "eu")
	await.Never(t, time.Second, "the Work is made again", func() bool { return created.Load() > 1 })
	late.Store(false)
	await.True(t, "the Work has the label", func() bool { return slices.Contains(h.holds("seen-late"), "late:eu") })
}
