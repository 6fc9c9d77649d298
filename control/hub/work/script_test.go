package work

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/test/script"
)

// TestScripts: the objects of each step are reconciled until nothing changes. The output has the
// Works that differ from those after the step before, changed status of MultiClusterServices and
// FederatedResourceQuotas, Events, and the errors for which a controller retries.
//
// The test plays the parts of others: templates get the UID `uid-<name>`, bindings the permanent id
// `id-<name>`, and a Work or a binding that is deleted stays until the next step begins.
func TestScripts(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, clusterv1alpha1.AddToScheme,
		policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme, networkingv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	indexed := func(b *fake.ClientBuilder) {
		b.WithStatusSubresource(&networkingv1alpha1.MultiClusterService{}, &policyv1alpha1.FederatedResourceQuota{})
		b.WithIndex(&workv1alpha1.Work{}, templateIndex, func(o client.Object) []string {
			if id, ok := OfWork(o.(*workv1alpha1.Work)); ok {
				return []string{id.String()}
			}
			return nil
		})
		b.WithIndex(&workv1alpha1.Work{}, bindingIndex, func(o client.Object) []string {
			if key, ok := binding.OfWork(o); ok {
				return []string{key.String()}
			}
			return nil
		})
	}
	duration, err := newDurations()
	if err != nil {
		t.Fatal(err)
	}
	orphans, err := newOrphans()
	if err != nil {
		t.Fatal(err)
	}
	script.Run(t, scheme, indexed, func(t *testing.T, w *script.World) func() string {
		s := &working{T: t, World: w, Changes: script.Changes{Shown: map[string]string{}}}
		writer := NewWriter(w.Client)
		bindings := &reconciler{
			BindingOptions: BindingOptions{HubID: "hub", Interpreter: kinds.New(), Skips: &policy.Skips{}, OrphanAfter: time.Hour},
			client:         w.Client, cache: syncedCache{Reader: w.Client}, live: w.Client, recorder: s, writer: writer, duration: duration,
			orphans: orphans, polls: newPolls(),
		}
		namespaces := &namespaceReconciler{NamespaceOptions: NamespaceOptions{HubID: "hub", Skips: &policy.Skips{}}, interpreter: kinds.New(),
			client: w.Client, live: w.Client, recorder: s, writer: writer}
		services := &multiClusterReconciler{MultiClusterOptions: MultiClusterOptions{HubID: "hub", Skips: &policy.Skips{}}, interpreter: kinds.New(),
			client: w.Client, live: w.Client, recorder: s, writer: writer}
		quotas := &quotaReconciler{hubID: "hub", interpreter: kinds.New(), client: w.Client, live: w.Client, events: s, writer: writer}
		s.controllers = []scripted{
			{[]client.ObjectList{&workv1alpha2.ResourceBindingList{}, &workv1alpha2.ClusterResourceBindingList{}}, bindings.reconcile},
			{[]client.ObjectList{&corev1.NamespaceList{}}, namespaces.reconcile},
			{[]client.ObjectList{&networkingv1alpha1.MultiClusterServiceList{}, &corev1.ServiceList{}}, services.reconcile},
			{[]client.ObjectList{&policyv1alpha1.FederatedResourceQuotaList{}}, quotas.reconcile},
		}
		s.keys = make([]map[types.NamespacedName]bool, len(s.controllers))
		return s.step
	})
}

// scripted is a controller with the kinds whose names it reconciles.
type scripted struct {
	of        []client.ObjectList
	reconcile func(context.Context, reconcile.Request) (time.Duration, error)
}

// working is a script under way.
type working struct {
	*testing.T
	*script.World
	controllers []scripted
	keys        []map[types.NamespacedName]bool // seen so far, by controller
	script.Changes
}

func (s *working) step() string {
	s.Helper()
	s.prepare()
	var failed []string
	for range 20 {
		before, wait := s.state(), time.Duration(0)
		failed = nil
		for i, c := range s.controllers {
			for _, key := range slices.SortedFunc(maps.Keys(s.keys[i]), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }) {
				next, err := c.reconcile(s.Context(), reconcile.Request{NamespacedName: key})
				if next <= usageInterval {
					wait = max(wait, next)
				}
				if err != nil && !kube.IsStale(err) {
					failed = append(failed, "error: "+strings.ReplaceAll(err.Error(), "\n", "\n# error: "))
				}
			}
		}
		if after := s.state(); maps.Equal(before, after) && wait == 0 {
			s.Said = append(slices.Compact(slices.Sorted(slices.Values(s.Said))), failed...)
			return s.Step(after)
		}
		time.Sleep(wait)
	}
	s.Fatal("after 20 rounds something still changes")
	return ""
}

// prepare does what others have done by the beginning of a step.
func (s *working) prepare() {
	var works workv1alpha1.WorkList
	s.List(&works)
	for i := range works.Items {
		if w := &works.Items[i]; w.DeletionTimestamp != nil {
			w.Finalizers = nil
			s.update(w)
		}
	}
	for i, c := range s.controllers {
		if s.keys[i] == nil {
			s.keys[i] = map[types.NamespacedName]bool{}
		}
		for _, list := range c.of {
			s.List(list)
			err := meta.EachListItem(list, func(item runtime.Object) error {
				o := item.(client.Object)
				s.keys[i][client.ObjectKeyFromObject(o)] = true
				if o.GetUID() == "" {
					o.SetUID(types.UID("uid-" + o.GetName()))
					s.update(o)
				}
				return nil
			})
			if err != nil {
				s.Fatal(err)
			}
		}
	}
	err := binding.Each(s.Context(), s.Client, func(cached binding.Binding) {
		b := cached.Copy()
		template := &unstructured.Unstructured{}
		template.SetAPIVersion(b.Spec.Resource.APIVersion)
		template.SetKind(b.Spec.Resource.Kind)
		if s.Get(s.Context(), types.NamespacedName{Namespace: b.Spec.Resource.Namespace, Name: b.Spec.Resource.Name}, template) == nil && template.GetUID() == "" {
			template.SetUID(types.UID("uid-" + template.GetName()))
			s.update(template)
		}
		if b.GetLabels()[b.IDLabel()] == "" {
			labels := maps.Clone(b.GetLabels())
			if labels == nil {
				labels = map[string]string{}
			}
			labels[b.IDLabel()] = "id-" + b.GetName()
			b.SetLabels(labels)
			b.SetFinalizers([]string{b.Finalizer()})
			s.update(b.Object)
		}
	})
	if err != nil {
		s.Fatal(err)
	}
}

func (s *working) update(o client.Object) {
	s.Helper()
	if err := s.World.Update(s.Context(), o); err != nil {
		s.Fatal(err)
	}
}

// state is what the output has of each object.
func (s *working) state() map[string]string {
	out := map[string]string{}
	var works workv1alpha1.WorkList
	s.List(&works)
	for i := range works.Items {
		out["Work "+client.ObjectKeyFromObject(&works.Items[i]).String()] = s.shows(&works.Items[i])
	}
	var services networkingv1alpha1.MultiClusterServiceList
	s.List(&services)
	for i := range services.Items {
		m := &services.Items[i]
		for j := range m.Status.Conditions {
			m.Status.Conditions[j].LastTransitionTime = metav1.Time{}
		}
		out["MultiClusterService "+client.ObjectKeyFromObject(m).String()] = script.YAML(s, map[string]any{"status": m.Status})
	}
	var quotas policyv1alpha1.FederatedResourceQuotaList
	s.List(&quotas)
	for i := range quotas.Items {
		q := &quotas.Items[i]
		for j := range q.Status.Conditions {
			q.Status.Conditions[j].LastTransitionTime = metav1.Time{}
		}
		out["FederatedResourceQuota "+client.ObjectKeyFromObject(q).String()] = script.YAML(s, map[string]any{"status": q.Status})
	}
	err := binding.Each(s.Context(), s.Client, func(b binding.Binding) {
		if b.GetDeletionTimestamp() != nil {
			out[b.String()] = "is being deleted"
		}
	})
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// shows is a Work and the object in it. Its permanent id is not the same in each run.
func (s *working) shows(w *workv1alpha1.Work) string {
	if w.DeletionTimestamp != nil {
		return "is being deleted"
	}
	id := w.Labels[workv1alpha1.LabelWorkID]
	text := script.YAML(s, struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Suspended   *bool             `json:"suspendDispatching,omitempty"`
		Preserved   *bool             `json:"preserveResourcesOnDeletion,omitempty"`
		Holds       any               `json:"holds"`
	}{w.Labels, w.Annotations, w.Spec.SuspendDispatching, w.Spec.PreserveResourcesOnDeletion, w.Spec.Workload.Manifests[0]})
	if id != "" {
		text = strings.ReplaceAll(text, id, "id")
	}
	return text
}

// Event implements record.EventRecorder.
func (s *working) Event(o runtime.Object, kind, reason, message string) {
	of := o.(client.Object)
	gvk, err := apiutil.GVKForObject(of, s.Scheme())
	if err != nil {
		s.Fatal(err)
	}
	name := strings.TrimPrefix(client.ObjectKeyFromObject(of).String(), "/")
	s.Said = append(s.Said, fmt.Sprintf("%s %s on %s %s: %s", kind, reason, gvk.Kind, name, message))
}

// Eventf implements record.EventRecorder.
func (s *working) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	s.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (s *working) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	s.Eventf(o, kind, reason, format, args...)
}

// syncedCache is a cache that shows all that there is.
type syncedCache struct {
	cache.Cache
	client.Reader
}

func (c syncedCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	return c.Reader.Get(ctx, key, o, opts...)
}

func (c syncedCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	return c.Reader.List(ctx, list, opts...)
}

func (syncedCache) GetInformer(context.Context, client.Object, ...cache.InformerGetOption) (cache.Informer, error) {
	return syncedInformer{}, nil
}

type syncedInformer struct{ toolscache.SharedIndexInformer }

func (syncedInformer) HasSynced() bool { return true }
