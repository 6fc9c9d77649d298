package propagate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/test/script"
)

// templateKindsOfScripts are the kinds of which scripts have templates.
var templateKindsOfScripts = []schema.GroupVersionKind{appsv1.SchemeGroupVersion.WithKind("Deployment"),
	corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("ServiceAccount"), rbacv1.SchemeGroupVersion.WithKind("ClusterRole")}

// TestScripts: the objects of each step are reconciled until nothing changes. The output has the
// claims and bindings that differ from those after the step before, and the Events.
//
// After each step the hub is restarted, which must change nothing.
//
// The test plays the parts of others: a template gets the UID `uid-<name>`, a binding one that
// counts up, a policy the id `id-<name>` and its finalizer, which goes when nothing has its claim;
// a Cluster without status serves all kinds of the scripts; a binding that is deleted has no Works
// to wait for.
func TestScripts(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, schedulingv1.AddToScheme,
		clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha2.AddToScheme, pelagov1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	counts, err := newCounts()
	if err != nil {
		t.Fatal(err)
	}
	indexed := func(b *fake.ClientBuilder) {
		for field, values := range map[string]func(binding.Binding) []string{
			indexTemplate: byTemplate, indexDependency: byDependency, indexPolicy: byPolicy, indexUndecided: byUndecided, indexRollout: byRollout} {
			of := func(o client.Object) []string { return values(binding.Of(o)) }
			b.WithIndex(&workv1alpha2.ResourceBinding{}, field, of).WithIndex(&workv1alpha2.ClusterResourceBinding{}, field, of)
		}
		b.WithIndex(&policyv1alpha1.PropagationPolicy{}, indexSelects, bySelection).
			WithIndex(&policyv1alpha1.ClusterPropagationPolicy{}, indexSelects, bySelection)
	}
	script.Run(t, scheme, indexed, func(t *testing.T, w *script.World) func() string {
		s := &propagation{T: t, World: w, keys: map[Key]bool{}, Changes: script.Changes{Shown: map[string]string{}}}
		s.start = func() {
			r := &reconciler{
				Options: Options{Interpreter: kinds.New(), Capacity: placement.NewCache(placement.CacheOptions{}), FirstReport: defaultFirstReport,
					Eviction: placement.EvictionOptions{}.Defaulted()},
				client: w.Client, cache: w.Client, live: w.Client, events: s, counts: counts, order: newOrder(),
				kinds:   newKinds(nil, w.Client, nil, nil),
				retry:   workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry),
				missing: map[Key]time.Time{}, ended: map[Key]bool{}, conflicts: map[Key]string{},
			}
			r.evictions.QPS = r.Eviction.Rate
			r.queue = r.order.queue("", r.retry)
			t.Cleanup(r.queue.ShutDown)
			s.reconciler = r
		}
		s.start()
		return s.step
	})
}

// propagation is a script under way.
type propagation struct {
	*testing.T
	*script.World
	*reconciler
	start func()       // makes the reconciler, as at the start of the hub
	keys  map[Key]bool // templates seen so far
	script.Changes
	made int // bindings
}

func (s *propagation) step() string {
	s.Helper()
	s.prepare()
	out := s.Step(s.settle())
	s.start()
	s.prepare()
	if diff := cmp.Diff(s.Shown, s.settle()); diff != "" {
		s.Errorf("a restart changes, -before +after:\n%s", diff)
	}
	s.Said = nil
	return out
}

// settle reconciles all templates until nothing changes, and returns the state.
func (s *propagation) settle() map[string]string {
	s.Helper()
	for range 20 {
		before, wait := s.state(), time.Duration(0)
		for _, key := range slices.SortedFunc(maps.Keys(s.keys), func(a, b Key) int { return strings.Compare(a.String(), b.String()) }) {
			next, err := s.propagate(s.Context(), key)
			if err != nil && !kube.IsStale(err) {
				s.Said = append(s.Said, fmt.Sprintf("%s: %v", key, err))
			}
			if !next.backoff && next.after <= detachAfter {
				wait = max(wait, next.after)
			}
		}
		s.others()
		if after := s.state(); maps.Equal(before, after) && wait == 0 {
			return after
		}
		time.Sleep(wait)
	}
	s.Fatal("after 20 rounds something still changes")
	return nil
}

// prepare completes the objects of a step.
func (s *propagation) prepare() {
	for _, gvk := range templateKindsOfScripts {
		for _, u := range s.objects(gvk) {
			s.keys[keyOf(&u)] = true
			if u.GetUID() == "" {
				u.SetUID(types.UID("uid-" + u.GetName()))
				s.update(&u)
			}
		}
	}
	for _, p := range s.all() {
		if p.id() == "" && p.GetDeletionTimestamp() == nil {
			label, finalizer := policyv1alpha1.LabelPropagationPolicyID, policyv1alpha1.FinalizerPropagationPolicy
			if p.clusterWide {
				label, finalizer = policyv1alpha1.LabelClusterPropagationPolicyID, policyv1alpha1.FinalizerClusterPropagationPolicy
			}
			setLabel(p, label, "id-"+p.GetName())
			p.SetFinalizers([]string{finalizer})
			s.update(p.Object)
		}
	}
	var clusters clusterv1alpha1.ClusterList
	s.List(&clusters)
	for i := range clusters.Items {
		if c := &clusters.Items[i]; len(c.Status.Conditions) == 0 {
			c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{
				{GroupVersion: "apps/v1", Resources: []clusterv1alpha1.APIResource{{Name: "deployments", Kind: "Deployment"}}},
				{GroupVersion: "v1", Resources: []clusterv1alpha1.APIResource{{Name: "configmaps", Kind: "ConfigMap"}}},
				{GroupVersion: "rbac.authorization.k8s.io/v1", Resources: []clusterv1alpha1.APIResource{{Name: "clusterroles", Kind: "ClusterRole"}}},
			}
			c.Status.Conditions = []metav1.Condition{{Type: clusterv1alpha1.ConditionCompleteAPIEnablements, Status: metav1.ConditionTrue, Reason: "Complete"}}
			s.update(c)
		}
	}
	if _, err := s.setClusters(s.Context()); err != nil {
		s.Fatal(err)
	}
	if err := s.setQuotas(s.Context(), ""); err != nil {
		s.Fatal(err)
	}
	s.observe()
}

// others does what others do between two rounds.
func (s *propagation) others() {
	claims := map[string]bool{}
	for _, gvk := range templateKindsOfScripts {
		for _, u := range s.objects(gvk) {
			claims[claimOf(&u).id] = true
		}
	}
	err := binding.Each(s.Context(), s.Client, func(b binding.Binding) {
		claims[claimOf(b).id] = true
		if b.GetUID() == "" {
			s.made++
			given := b.Copy()
			given.SetUID(types.UID(fmt.Sprint("binding-", s.made)))
			s.update(given.Object)
		} else if b.GetDeletionTimestamp() != nil {
			gone := b.Copy()
			gone.SetFinalizers(nil)
			s.update(gone.Object)
			s.forget(b)
		}
	})
	if err != nil {
		s.Fatal(err)
	}
	for _, p := range s.all() {
		if p.GetDeletionTimestamp() != nil && !claims[p.id()] {
			p.SetFinalizers(nil)
			s.update(p.Object)
		}
	}
	s.observe()
}

// observe is what the watch of bindings does.
func (s *propagation) observe() {
	err := binding.Each(s.Context(), s.Client, func(b binding.Binding) { s.Capacity.Observe(capacityKey(b), placement.ObservationOf(b)) })
	if err != nil {
		s.Fatal(err)
	}
}

func (s *propagation) update(o client.Object) {
	s.Helper()
	if err := s.World.Update(s.Context(), o); err != nil {
		s.Fatal(err)
	}
}

func (s *propagation) objects(gvk schema.GroupVersionKind) []unstructured.Unstructured {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	s.List(list)
	return list.Items
}

func (s *propagation) all() []*propagationPolicy {
	all, err := s.policies(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return all
}

// state is what the output has of each object.
func (s *propagation) state() map[string]string {
	out := map[string]string{}
	for _, gvk := range templateKindsOfScripts {
		for _, u := range s.objects(gvk) {
			of := claimOf(&u)
			switch {
			case of.id == "":
				out[keyOf(&u).String()] = "follows no policy"
			case of.clusterWide:
				out[keyOf(&u).String()] = fmt.Sprintf("follows ClusterPropagationPolicy %s (%s)", of.name, of.id)
			default:
				out[keyOf(&u).String()] = fmt.Sprintf("follows PropagationPolicy %s/%s (%s)", of.namespace, of.name, of.id)
			}
		}
	}
	err := binding.Each(s.Context(), s.Client, func(b binding.Binding) { out[b.String()] = s.shows(b.Copy()) })
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// shows is a binding with its decision in words, without what is not the same in each run.
func (s *propagation) shows(b binding.Binding) string {
	decision := workv1alpha2.ReadDecision(b.GetAnnotations())
	setAnnotation(b, workv1alpha2.AnnotationDecision, "")
	setLabel(b, b.IDLabel(), "")
	for label := range b.GetLabels() {
		if strings.HasPrefix(label, workv1alpha2.LabelDependedByPrefix) {
			setLabel(b, label, "id")
		}
	}
	b.SetResourceVersion("")
	text := script.YAML(s, struct {
		Metadata any                               `json:"metadata"`
		Spec     *workv1alpha2.ResourceBindingSpec `json:"spec"`
	}{map[string]any{"uid": b.GetUID(), "labels": b.GetLabels(), "annotations": b.GetAnnotations()}, b.Spec})
	if decision != nil {
		text += script.YAML(s, map[string]any{"decision": struct {
			Reason   string                   `json:"reason"`
			Message  string                   `json:"message,omitempty"`
			Term     string                   `json:"term,omitempty"`
			Rejected []workv1alpha2.Rejection `json:"rejected,omitempty"`
			Decided  bool                     `json:"decided"` // this time or before
		}{decision.Reason, decision.Message, decision.Term, decision.Rejected, !decision.Scheduled.IsZero()}})
	}
	return text
}

// Event implements record.EventRecorder.
func (s *propagation) Event(o runtime.Object, kind, reason, message string) {
	if u, ok := o.(*unstructured.Unstructured); ok { // the one on the binding is the same
		s.Said = append(s.Said, fmt.Sprintf("%s %s on %s: %s", kind, reason, keyOf(u), message))
	}
}

// Eventf implements record.EventRecorder.
func (s *propagation) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	s.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf implements record.EventRecorder.
func (s *propagation) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	s.Eventf(o, kind, reason, format, args...)
}
