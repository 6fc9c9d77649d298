package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// MultiClusterOptions are those of the controller of MultiClusterServices.
type MultiClusterOptions struct {
	// HubID is the UID of the hub's namespace kube-system.
	HubID string
	// Skips gets the override rules that are skipped; nil: they are not reported.
	Skips *policy.Skips
	// AllEvents: successes have the Events of Karmada, too.
	AllEvents bool
}

type multiClusterReconciler struct {
	MultiClusterOptions
	interpreter *kinds.Interpreter
	client      client.Client
	live        client.Reader // uncached, before a deletion
	recorder    record.EventRecorder
	writer      *Writer
}

// SetupMultiClusterServices adds the controller of MultiClusterServices to the manager; it needs
// AddIndexes.
func SetupMultiClusterServices(mgr ctrl.Manager, o MultiClusterOptions) error {
	if o.Skips == nil {
		o.Skips = &policy.Skips{}
	}
	r := &multiClusterReconciler{
		MultiClusterOptions: o, interpreter: kinds.New(), client: mgr.GetClient(), live: mgr.GetAPIReader(),
		recorder: kube.EventRecorder(mgr, "pelago-hub"), writer: NewWriter(mgr.GetClient()),
	}
	do, err := kube.Reconciler("multiclusterservices", r.recorder, r.reconcile)
	if err != nil {
		return err
	}
	service := &unstructured.Unstructured{}
	service.SetGroupVersionKind(serviceKind)
	all := kube.EnqueueAll(r.client, &networkingv1alpha1.MultiClusterServiceList{})
	labelsOrSpec := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	err = ctrl.NewControllerManagedBy(mgr).Named("multiclusterservices").WithOptions(kube.HubControllerOptions(workers)).
		For(&networkingv1alpha1.MultiClusterService{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(service, &handler.EnqueueRequestForObject{}).
		Watches(&workv1alpha1.Work{}, r.writer.Events(ownerService), builder.WithPredicates(predicate.Or(
			labelsOrSpec, predicate.AnnotationChangedPredicate{}, appliedChanged()))).
		Watches(binding.Namespace(), all, builder.WithPredicates(withinChanged())).
		Watches(&clusterv1alpha1.Cluster{}, all, builder.WithPredicates(clusterChanged())).
		Watches(&policyv1alpha1.OverridePolicy{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&policyv1alpha1.ClusterOverridePolicy{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(do)
	if err != nil {
		return fmt.Errorf("set up the controller of MultiClusterServices: %w", err)
	}
	return nil
}

// withinChanged lets those updates of namespaces pass that open other clusters to them.
func withinChanged() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return e.ObjectOld.GetAnnotations()[policyv1alpha1.AnnotationClusters] != e.ObjectNew.GetAnnotations()[policyv1alpha1.AnnotationClusters]
		},
	}
}

// ownerService is the MultiClusterService of a Work: it has the name of what the Work holds.
func ownerService(o client.Object) (client.ObjectKey, bool) {
	id, ok := OfWork(o.(*workv1alpha1.Work))
	service := id.Kind == serviceKind.Kind && id.Group == serviceKind.Group || id.Kind == exportKind.Kind && id.Group == exportKind.Group
	return client.ObjectKey{Namespace: id.Namespace, Name: id.Name}, ok && service
}

// appliedChanged lets those status updates of Works pass that change whether the object exists in
// the member.
func appliedChanged() predicate.Predicate {
	applied := func(o client.Object) metav1.Condition {
		if c := meta.FindStatusCondition(o.(*workv1alpha1.Work).Status.Conditions, workv1alpha1.ConditionApplied); c != nil {
			return metav1.Condition{Status: c.Status, Message: c.Message}
		}
		return metav1.Condition{}
	}
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return applied(e.ObjectOld) != applied(e.ObjectNew) }}
}

// reconcile writes the Works of one MultiClusterService, and its status.
func (r *multiClusterReconciler) reconcile(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	in, err := r.input(ctx, req.NamespacedName)
	if err != nil || in.Exposure == nil && len(in.Works) == 0 && !claimedByExposure(in.Service) {
		return 0, err
	}
	if err := r.claim(ctx, in); err != nil {
		return 0, err
	}
	plan := DesiredMultiClusterWorks(in)
	r.Skips.Report("MultiClusterService "+req.String(), plan.Skipped)
	err = r.write(ctx, in, plan)
	if in.Exposure == nil || kube.IsStale(err) {
		return 0, err
	}
	failed := errors.Join(plan.Invalid, plan.Err(), err)
	return 0, errors.Join(err, r.report(ctx, in, plan, failed))
}

func (r *multiClusterReconciler) input(ctx context.Context, name types.NamespacedName) (*MultiClusterInput, error) {
	in := &MultiClusterInput{
		Interpreter: r.interpreter, HubID: r.HubID, Name: name, NewID: newID,
		Clusters: map[string]*clusterv1alpha1.Cluster{}, Names: map[string]Names{},
	}
	var err error
	if in.Exposure, in.Service, err = read(ctx, r.client, name); err != nil {
		return nil, err
	}
	if in.Within, err = binding.Within(ctx, r.client, r.live, name.Namespace); err != nil {
		return nil, err
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
	for _, ref := range references(name) {
		works, err := r.writer.Works(ctx, OfReference(ref))
		if err != nil {
			return nil, err
		}
		in.Works = append(in.Works, works...)
		if in.Exposure == nil {
			continue
		}
		if in.Names[ref.Kind], err = ReadNames(ctx, r.client, ref, all); err != nil {
			return nil, err
		}
	}
	if in.Exposure != nil && in.Service != nil {
		in.Overrides, err = Overrides(ctx, r.client, in.Service)
	}
	return in, err
}

// references name what the Works of a MultiClusterService hold.
func references(name types.NamespacedName) []workv1alpha2.ObjectReference {
	var out []workv1alpha2.ObjectReference
	for _, kind := range []struct{ apiVersion, kind string }{
		{serviceKind.GroupVersion().String(), serviceKind.Kind}, {exportKind.GroupVersion().String(), exportKind.Kind},
	} {
		out = append(out, workv1alpha2.ObjectReference{APIVersion: kind.apiVersion, Kind: kind.kind, Namespace: name.Namespace, Name: name.Name})
	}
	return out
}

// read reads a MultiClusterService and its Service; nil: it does not exist or is being deleted.
func read(ctx context.Context, from client.Reader, name types.NamespacedName) (*networkingv1alpha1.MultiClusterService, *unstructured.Unstructured, error) {
	m, s := &networkingv1alpha1.MultiClusterService{}, &unstructured.Unstructured{}
	s.SetGroupVersionKind(serviceKind)
	if err := from.Get(ctx, name, m); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read the MultiClusterService %s: %w", name, err)
	} else if err != nil || m.DeletionTimestamp != nil {
		m = nil
	}
	if err := from.Get(ctx, name, s); client.IgnoreNotFound(err) != nil {
		return nil, nil, fmt.Errorf("read the Service %s: %w", name, err)
	} else if err != nil || s.GetDeletionTimestamp() != nil {
		s = nil
	}
	return m, s, nil
}

func claimedByExposure(service *unstructured.Unstructured) bool {
	return service != nil && service.GetLabels()[workv1alpha2.LabelClaimedBy] == networkingv1alpha1.ClaimedByMultiClusterService
}

// claim labels the Service that a MultiClusterService places, and no other, so that policies ignore
// it. A Service that a policy has claimed already stays with the policy.
func (r *multiClusterReconciler) claim(ctx context.Context, in *MultiClusterInput) error {
	if in.Service == nil {
		return nil
	}
	policies, _ := PolicyMarks(in.Service.GetLabels(), nil)
	want := crossCluster(in.Exposure) && len(policies) == 0
	if want == claimedByExposure(in.Service) || want && in.Service.GetLabels()[workv1alpha2.LabelClaimedBy] != "" {
		return nil
	}
	next := in.Service.DeepCopy()
	labels := next.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	if want {
		labels[workv1alpha2.LabelClaimedBy] = networkingv1alpha1.ClaimedByMultiClusterService
	} else {
		delete(labels, workv1alpha2.LabelClaimedBy)
	}
	next.SetLabels(labels)
	if err := r.client.Patch(ctx, next, kube.MergeFrom(in.Service)); client.IgnoreNotFound(err) != nil {
		if apierrors.IsConflict(err) {
			return kube.StaleCache(in.Service, in.Service.GetResourceVersion(), "a newer one")
		}
		return fmt.Errorf("label the Service %s: %w", in.Name, err)
	}
	in.Service = next
	return nil
}

// write executes the plan. Works are deleted only if live reads confirm the cached objects that the
// plan is based on.
func (r *multiClusterReconciler) write(ctx context.Context, in *MultiClusterInput, plan MultiClusterPlan) error {
	var errs []error
	for _, ref := range references(in.Name) {
		holds := OfReference(ref)
		of := func(works []*workv1alpha1.Work) (out []*workv1alpha1.Work) {
			for _, w := range works {
				if id, _ := OfWork(w); id == holds {
					out = append(out, w)
				}
			}
			return out
		}
		errs = append(errs, r.writer.Write(ctx, holds, Writes{Create: of(plan.Create), Update: of(plan.Update)}))
	}
	if len(plan.Delete) == 0 {
		return errors.Join(errs...)
	}
	m, s, err := read(ctx, r.live, in.Name)
	switch {
	case err != nil:
		return errors.Join(append(errs, err)...)
	case (m == nil) != (in.Exposure == nil) || m != nil && m.Generation != in.Exposure.Generation || (s == nil) != (in.Service == nil):
		return errors.Join(append(errs, kube.StaleCache(&networkingv1alpha1.MultiClusterService{
			ObjectMeta: metav1.ObjectMeta{Namespace: in.Name.Namespace, Name: in.Name.Name}}, "an older one", "a newer one"))...)
	}
	return errors.Join(append(errs, r.writer.Delete(ctx, plan.Delete))...)
}

// eventOf are the reasons of Events about a condition, Karmada's where it has some; success "": none.
func eventOf(c metav1.Condition, unknownClusters bool) (problem, success string) {
	switch {
	case c.Type == networkingv1alpha1.ConditionServiceApplied && c.Status == metav1.ConditionFalse:
		return networkingv1alpha1.EventSyncServiceFailed, ""
	case c.Type == networkingv1alpha1.ConditionServiceApplied && unknownClusters:
		return networkingv1alpha1.EventClusterNotFound, ""
	case c.Type == networkingv1alpha1.ConditionServiceApplied:
		return c.Reason, networkingv1alpha1.EventSyncServiceSucceed
	case c.Type == networkingv1alpha1.ConditionEndpointSliceDispatched && c.Status == metav1.ConditionFalse:
		return networkingv1alpha1.EventDispatchEndpointSliceFailed, ""
	case c.Type == networkingv1alpha1.ConditionEndpointSliceDispatched:
		return c.Reason, networkingv1alpha1.EventDispatchEndpointSliceSucceed
	}
	return c.Reason, ""
}

// report writes the conditions, and an Event for each new one that reports a problem.
func (r *multiClusterReconciler) report(ctx context.Context, in *MultiClusterInput, plan MultiClusterPlan, failed error) error {
	next := in.Exposure.DeepCopy()
	for _, c := range exposureConditions(in, plan, failed) {
		c.ObservedGeneration = in.Exposure.Generation
		partly := c.Type == networkingv1alpha1.ConditionServiceApplied && len(plan.Unknown)+len(plan.Barred)+len(plan.Waiting) > 0
		changed := meta.SetStatusCondition(&next.Status.Conditions, c)
		problem, success := eventOf(c, len(plan.Unknown) > 0)
		switch {
		case changed && (c.Status == metav1.ConditionFalse || partly):
			r.recorder.Event(in.Exposure, corev1.EventTypeWarning, problem, c.Message)
		case changed && r.AllEvents && success != "":
			r.recorder.Event(in.Exposure, corev1.EventTypeNormal, success, c.Message)
		}
	}
	if !crossCluster(in.Exposure) {
		meta.RemoveStatusCondition(&next.Status.Conditions, networkingv1alpha1.ConditionServiceApplied)
		meta.RemoveStatusCondition(&next.Status.Conditions, networkingv1alpha1.ConditionEndpointSliceDispatched)
	}
	patch, err := client.MergeFrom(in.Exposure).Data(next)
	if err != nil || string(patch) == "{}" {
		return err
	}
	// The definition that Karmada installs has a status; a MultiClusterService that is gone needs
	// none.
	if err := client.IgnoreNotFound(r.client.Status().Patch(ctx, next, kube.MergeFrom(in.Exposure))); err != nil {
		if apierrors.IsConflict(err) {
			return kube.StaleCache(in.Exposure, in.Exposure.ResourceVersion, "a newer one")
		}
		return fmt.Errorf("write the status of the MultiClusterService %s: %w", in.Name, err)
	}
	return nil
}

// exposureConditions are Karmada's for the type CrossCluster, and Accepted.
func exposureConditions(in *MultiClusterInput, plan MultiClusterPlan, failed error) []metav1.Condition {
	accepted := metav1.Condition{Type: policyv1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: policyv1alpha1.ReasonAccepted,
		Message: "the service is exported from its providers to its consumers"}
	for _, t := range in.Exposure.Spec.Types {
		if t != networkingv1alpha1.ExposureTypeCrossCluster {
			accepted.Status, accepted.Reason = metav1.ConditionFalse, configv1alpha1.ReasonNotSupportedYet
			accepted.Message = fmt.Sprintf("type %s has no effect yet: propagate a Service of type LoadBalancer to the clusters", t)
		}
	}
	if !crossCluster(in.Exposure) {
		return []metav1.Condition{accepted}
	}
	takes := func(clusters []string) []string {
		return slices.DeleteFunc(slices.Clone(clusters), func(c string) bool { return slices.Contains(plan.Waiting, c) })
	}
	providers, consumers := takes(plan.Providers), takes(plan.Consumers)
	applied := metav1.Condition{Type: networkingv1alpha1.ConditionServiceApplied, Status: metav1.ConditionTrue,
		Reason:  networkingv1alpha1.ReasonServiceAppliedSucceed,
		Message: fmt.Sprintf("Service and ServiceExport are propagated to %s", strings.Join(providers, ", "))}
	dispatched := metav1.Condition{Type: networkingv1alpha1.ConditionEndpointSliceDispatched, Status: metav1.ConditionTrue,
		Reason:  networkingv1alpha1.ReasonEndpointSliceDispatchedSucceed,
		Message: fmt.Sprintf("%s is exported to %s", clustersetName(in.Name), strings.Join(consumers, ", "))}
	if len(plan.Waiting) > 0 {
		applied.Message += "; not accepted (pelago clusters accept): " + strings.Join(plan.Waiting, ", ")
	}
	if len(plan.Unknown) > 0 {
		applied.Message += "; no such cluster: " + strings.Join(plan.Unknown, ", ")
	}
	if len(plan.Barred) > 0 {
		applied.Message += "; namespace " + in.Name.Namespace + " must not use (annotation " + policyv1alpha1.AnnotationClusters + "): " + strings.Join(plan.Barred, ", ")
	}
	if len(in.Exposure.Spec.Ports) > 0 {
		applied.Message += "; spec.ports is not applied: all ports of the Service are exported"
	}
	switch {
	case in.Service == nil:
		failed = errors.Join(failed, fmt.Errorf("the Service %s does not exist: create it at the hub", in.Name))
	case plan.Invalid == nil && len(providers) == 0:
		failed = errors.Join(failed, errors.New("no provider cluster has joined and is accepted"))
	}
	if failed != nil {
		applied.Status, applied.Reason, applied.Message = metav1.ConditionFalse, networkingv1alpha1.ReasonServiceAppliedFailed, failed.Error()
	}
	if failed != nil || len(plan.NotApplied) > 0 {
		dispatched.Status, dispatched.Reason = metav1.ConditionFalse, networkingv1alpha1.ReasonEndpointSliceDispatchedFailed
		dispatched.Message = "not in the cluster: " + strings.Join(plan.NotApplied, "; ")
		if len(plan.NotApplied) == 0 {
			dispatched.Message = "see the condition ServiceApplied"
		}
	}
	return []metav1.Condition{accepted, applied, dispatched}
}
