package work

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// NamespaceOptions configure the controller.
type NamespaceOptions struct {
	// HubID is the UID of the hub's namespace kube-system.
	HubID string
	// OptIn has only those namespaces go to the members that are labelled pelago.io/propagate=true:
	// for a hub with namespaces of its own.
	OptIn bool
	// Skips gets the override rules that are skipped; nil: they are not reported.
	Skips *policy.Skips
}

const workers = 4

type namespaceReconciler struct {
	NamespaceOptions
	interpreter *kinds.Interpreter
	client      client.Client
	live        client.Reader // uncached, for decisions that a stale cache must not make
	recorder    record.EventRecorder
	writer      *Writer
}

// SetupNamespaces adds the controller to the manager.
func SetupNamespaces(mgr ctrl.Manager, o NamespaceOptions) error {
	if o.Skips == nil {
		o.Skips = &policy.Skips{}
	}
	r := &namespaceReconciler{
		NamespaceOptions: o, interpreter: kinds.New(), client: mgr.GetClient(), live: mgr.GetAPIReader(),
		recorder: kube.EventRecorder(mgr, "pelago-hub"), writer: NewWriter(mgr.GetClient()),
	}
	if err := r.watch(mgr, controller.Options{MaxConcurrentReconciles: workers, RateLimiter: limiter()}); err != nil {
		return fmt.Errorf("set up the controller of namespaces: %w", err)
	}
	return nil
}

// reconcile writes the Works of one namespace.
func (r *namespaceReconciler) reconcile(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	ns := binding.Namespace()
	switch err := r.client.Get(ctx, req.NamespacedName, ns); {
	case apierrors.IsNotFound(err):
		r.Skips.Report("Namespace "+req.Name, nil)
		return 0, r.clean(ctx, req.Name)
	case err != nil:
		return 0, fmt.Errorf("read Namespace %s: %w", req.Name, err)
	case !Propagated(ns, r.OptIn):
		// Works stay until the namespace is deleted: a label removes no namespace from members
		return 0, nil
	}
	return 0, r.sync(ctx, ns)
}

func (r *namespaceReconciler) sync(ctx context.Context, ns *metav1.PartialObjectMetadata) error {
	in, err := r.input(ctx, ns)
	if err != nil {
		return err
	}
	plan := DesiredNamespaceWorks(in)
	r.Skips.Report("Namespace "+ns.Name, plan.Skipped)
	holds := OfReference(reference(ns.Name))
	err = r.writer.Write(ctx, holds, plan)
	if err != nil && !kube.IsStale(err) {
		r.recorder.Event(ns, corev1.EventTypeWarning, workv1alpha2.EventSyncWorkFailed, err.Error())
	}
	for _, f := range plan.Failed {
		reason := workv1alpha2.EventSyncWorkFailed
		if overrides := new(OverrideError); errors.As(f, &overrides) {
			reason = workv1alpha2.EventApplyOverridePolicyFailed
		}
		r.recorder.Event(ns, corev1.EventTypeWarning, reason, f.Error())
	}
	return errors.Join(plan.Err(), err)
}

// input reads what the Works of a namespace are computed from.
func (r *namespaceReconciler) input(ctx context.Context, ns *metav1.PartialObjectMetadata) (*NamespaceInput, error) {
	in := &NamespaceInput{
		Interpreter: r.interpreter, HubID: r.HubID, Namespace: ns, NewID: func() string { return string(uuid.NewUUID()) },
		Clusters: map[string]*clusterv1alpha1.Cluster{}, Works: map[string]*workv1alpha1.Work{},
	}
	var clusters clusterv1alpha1.ClusterList
	// they are only read
	if err := r.client.List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Clusters: %w", err)
	}
	var all []string
	for i := range clusters.Items {
		if c := &clusters.Items[i]; c.DeletionTimestamp == nil && c.Spec.SyncMode != "" {
			in.Clusters[c.Name] = c
			all = append(all, c.Name)
		}
	}
	works, err := r.writer.Works(ctx, OfReference(reference(ns.Name)))
	if err != nil {
		return nil, err
	}
	for _, w := range works {
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok {
			in.Works[cluster] = w
		}
	}
	if in.Overrides, err = Overrides(ctx, r.client, plain(ns)); err != nil {
		return nil, err
	}
	in.Names, err = ReadNames(ctx, r.client, reference(ns.Name), all)
	return in, err
}

// clean deletes the Works of a namespace that the server does not have any more. Those of a binding
// are written by the binding controller.
func (r *namespaceReconciler) clean(ctx context.Context, name string) error {
	works, err := r.writer.Works(ctx, OfReference(reference(name)))
	if err != nil {
		return err
	}
	var own []*workv1alpha1.Work
	for _, w := range works {
		if !OfBinding(w) {
			own = append(own, w)
		}
	}
	if len(own) == 0 {
		return nil
	}
	ns := binding.Namespace()
	switch err := r.live.Get(ctx, types.NamespacedName{Name: name}, ns); {
	case err == nil:
		return kube.StaleCache(ns, "none", ns.ResourceVersion)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for Namespace %s: %w", name, err)
	}
	return r.writer.Delete(ctx, own)
}

func (r *namespaceReconciler) watch(mgr ctrl.Manager, o controller.Options) error {
	namespaces, err := kube.Reconciler("namespaces", r.recorder, r.reconcile)
	if err != nil {
		return err
	}
	labelsOrSpec := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).Named("namespaces").WithOptions(o).
		Watches(binding.Namespace(), &handler.EnqueueRequestForObject{}, builder.WithPredicates(marksChanged())).
		Watches(&workv1alpha1.Work{}, r.writer.Events(owner), builder.WithPredicates(predicate.Or(
			labelsOrSpec, predicate.AnnotationChangedPredicate{}))).
		Watches(&clusterv1alpha1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(clusterChanged())).
		Watches(&policyv1alpha1.ClusterOverridePolicy{}, handler.EnqueueRequestsFromMapFunc(r.ofOverride),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(namespaces)
}

// owner is the namespace that a Work of ours holds.
func owner(w client.Object) (client.ObjectKey, bool) {
	id, ok := OfWork(w.(*workv1alpha1.Work))
	return client.ObjectKey{Name: id.Name}, ok && id == OfReference(reference(id.Name))
}

// marksChanged drops updates of the status.
func marksChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld, e.ObjectNew
		return was.GetUID() != is.GetUID() || (was.GetDeletionTimestamp() == nil) != (is.GetDeletionTimestamp() == nil) ||
			!maps.Equal(was.GetLabels(), is.GetLabels()) || !maps.Equal(was.GetAnnotations(), is.GetAnnotations())
	}}
}

// all are the namespaces that there are.
func (r *namespaceReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	// A cache that runs answers; before and after, there is nothing to do.
	if r.client.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if Propagated(&list.Items[i], r.OptIn) {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
		}
	}
	return out
}

// ofOverride are all namespaces if the policy may select one: it is compared there.
func (r *namespaceReconciler) ofOverride(ctx context.Context, o client.Object) []reconcile.Request {
	apiVersion, kind := corev1.SchemeGroupVersion.WithKind("Namespace").ToAPIVersionAndKind()
	selectors := o.(*policyv1alpha1.ClusterOverridePolicy).Spec.ResourceSelectors
	for _, s := range selectors {
		if s.APIVersion == apiVersion && s.Kind == kind {
			return r.all(ctx, o)
		}
	}
	if len(selectors) == 0 {
		return r.all(ctx, o)
	}
	return nil
}
