package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

// Reasons of Events on ServiceExports.
const (
	ReasonNameConflict = "GlobalIngressIPNameConflict"
	ReasonNotOurs      = "GlobalIngressIPNotOurs"
)

// IngressOptions configure the controller.
type IngressOptions struct {
	// GlobalCIDR are the cluster's own ranges; without any the controller is not started.
	GlobalCIDR []netip.Prefix
}

type ingressReconciler struct {
	client   client.Client
	live     client.Reader // past the cache, before something is deleted
	recorder record.EventRecorder
	exports  schema.GroupVersionKind // ServiceExport in the version that the cluster serves
}

// SetupIngress adds the controller to the manager.
func SetupIngress(mgr ctrl.Manager, opts IngressOptions) error {
	if len(opts.GlobalCIDR) == 0 {
		return nil
	}
	kind := schema.GroupKind{Group: mcsv1beta1.GroupName, Kind: mcsv1beta1.ServiceExportKindName}
	mapping, err := mgr.GetRESTMapper().RESTMapping(kind, "v1beta1", "v1alpha1")
	if err != nil {
		return fmt.Errorf("find %s in version v1beta1 or v1alpha1: %w (install the CRDs of the MCS API)", kind, err)
	}
	r := &ingressReconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: kube.EventRecorder(mgr, "pelago-agent"),
		exports: mapping.GroupVersionKind,
	}
	if err := r.watch(mgr); err != nil {
		return fmt.Errorf("set up the controller of ingress IPs: %w", err)
	}
	return nil
}

// Reconcile makes, changes or removes the GlobalIngressIP of one name.
func (r *ingressReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	err := r.reconcile(ctx, req.NamespacedName)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return ctrl.Result{}, nil // nothing is needed there any more
	}
	return kube.Result(0, err)
}

func (r *ingressReconciler) reconcile(ctx context.Context, key types.NamespacedName) error {
	want, conflict, err := r.want(ctx, key)
	if err != nil {
		return err
	}
	if conflict != nil {
		r.warn(key.Namespace, conflict.Export, ReasonNameConflict, conflict.Message)
	}
	have := new(submarinerv1.GlobalIngressIP)
	err = r.client.Get(ctx, key, have)
	switch {
	case apierrors.IsNotFound(err) && want == nil:
		return nil
	case apierrors.IsNotFound(err):
		if err := r.client.Create(ctx, want); err != nil {
			return fmt.Errorf("create GlobalIngressIP %s: %w", key, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read GlobalIngressIP %s: %w", key, err)
	case have.Labels[pelagov1alpha1.LabelManagedBy] != pelagov1alpha1.ManagedBy:
		return r.foreign(ctx, key, want)
	case have.DeletionTimestamp != nil:
		return nil
	case want == nil || !sameTarget(have, want):
		return r.remove(ctx, have)
	}
	before := have.DeepCopy()
	if !update(have, want) {
		return nil
	}
	if err := r.client.Patch(ctx, have, kube.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("change GlobalIngressIP %s: %w", key, err))
	}
	return nil
}

// want reads the objects on which the GlobalIngressIP of a name depends, and computes it.
func (r *ingressReconciler) want(ctx context.Context, key types.NamespacedName) (*submarinerv1.GlobalIngressIP, *Conflict, error) {
	service, err := r.export(ctx, r.client, key)
	if err != nil {
		return nil, nil, err
	}
	var slicesOf client.MatchingFields
	if pod, ok := podOf(key.Name); ok {
		slicesOf = client.MatchingFields{podIndex: pod}
	} else if name, ok := endpointOf(key.Name); ok {
		slicesOf = client.MatchingFields{serviceIndex: name}
	}
	var backends []Backend
	if slicesOf != nil {
		if backends, err = r.backends(ctx, key.Namespace, slicesOf); err != nil {
			return nil, nil, err
		}
	}
	want, conflict := DesiredIngress(key.Namespace, key.Name, service, backends)
	return want, conflict, nil
}

// export reads an exported service; nil if it is not exported or does not exist.
func (r *ingressReconciler) export(ctx context.Context, from client.Reader, key types.NamespacedName) (*Export, error) {
	export := new(metav1.PartialObjectMetadata)
	export.SetGroupVersionKind(r.exports)
	service := new(corev1.Service)
	for _, o := range []client.Object{export, service} {
		err := from.Get(ctx, key, o)
		if apierrors.IsNotFound(err) || err == nil && o.GetDeletionTimestamp() != nil {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read Service %s and its export: %w", key, err)
		}
	}
	return &Export{
		Service: key.Name, Kind: KindOf(service), Created: export.CreationTimestamp.Time,
		Owner: metav1.OwnerReference{
			APIVersion: r.exports.GroupVersion().String(), Kind: r.exports.Kind, Name: export.Name, UID: export.UID,
		},
	}, nil
}

// backends lists the endpoints of exported headless services in the chosen slices.
func (r *ingressReconciler) backends(ctx context.Context, namespace string, which client.MatchingFields) ([]Backend, error) {
	var list discoveryv1.EndpointSliceList
	if err := r.client.List(ctx, &list, client.InNamespace(namespace), which); err != nil {
		return nil, fmt.Errorf("list EndpointSlices of %s: %w", namespace, err)
	}
	var backends []Backend
	exports := map[string]*Export{}
	for i := range list.Items {
		name := serviceOf(&list.Items[i])
		e, known := exports[name]
		if !known {
			var err error
			if e, err = r.export(ctx, r.client, types.NamespacedName{Namespace: namespace, Name: name}); err != nil {
				return nil, err
			}
			exports[name] = e
		}
		if e == nil {
			continue
		}
		for _, endpoint := range endpointsOf(&list.Items[i]) {
			backends = append(backends, Backend{Export: *e, Endpoint: endpoint})
		}
	}
	return backends, nil
}

// foreign tells the user about an object that stands in our way.
func (r *ingressReconciler) foreign(ctx context.Context, key types.NamespacedName, want *submarinerv1.GlobalIngressIP) error {
	if want == nil {
		return nil
	}
	e, err := r.export(ctx, r.client, types.NamespacedName{Namespace: key.Namespace, Name: serviceRef(want)})
	if err != nil || e == nil {
		return err
	}
	r.warn(key.Namespace, *e, ReasonNotOurs, fmt.Sprintf("the GlobalIngressIP %s exists and was not made by Pelago: delete it", key.Name))
	return nil
}

func (r *ingressReconciler) warn(namespace string, e Export, reason, message string) {
	r.recorder.Event(&corev1.ObjectReference{
		APIVersion: e.Owner.APIVersion, Kind: e.Owner.Kind, Namespace: namespace, Name: e.Owner.Name, UID: e.Owner.UID,
	}, corev1.EventTypeWarning, reason, message)
}

// remove deletes a GlobalIngressIP once the API server confirms what the caches hold: after a
// restart one of them may be older than the object, and a service that is still exported must not
// lose its address.
func (r *ingressReconciler) remove(ctx context.Context, g *submarinerv1.GlobalIngressIP) error {
	key := client.ObjectKeyFromObject(g)
	needed, err := r.stillNeeded(ctx, g)
	if err != nil {
		return err
	}
	if needed {
		return apierrors.NewConflict(submarinerv1.GroupVersion.WithResource("globalingressips").GroupResource(), g.Name,
			fmt.Errorf("the cache is old"))
	}
	if err := r.client.Delete(ctx, g, client.Preconditions{UID: &g.UID}); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("delete GlobalIngressIP %s: %w", key, err))
	}
	return nil
}

// stillNeeded asks the API server whether the service or endpoint for which the object was created
// is still exported.
func (r *ingressReconciler) stillNeeded(ctx context.Context, g *submarinerv1.GlobalIngressIP) (bool, error) {
	e, err := r.export(ctx, r.live, types.NamespacedName{Namespace: g.Namespace, Name: serviceRef(g)})
	if err != nil || e == nil {
		return false, err
	}
	if g.Spec.Target == submarinerv1.ClusterIPService {
		return e.Kind == ClusterIP, nil
	}
	if e.Kind != Headless {
		return false, nil
	}
	var list discoveryv1.EndpointSliceList
	err = r.live.List(ctx, &list, client.InNamespace(g.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: e.Service})
	if err != nil {
		return false, fmt.Errorf("list EndpointSlices of Service %s/%s: %w", g.Namespace, e.Service, err)
	}
	for i := range list.Items {
		if slices.ContainsFunc(endpointsOf(&list.Items[i]), func(p Endpoint) bool {
			return p.name(e.Service) == g.Name && p.PodUID == podUID(g)
		}) {
			return true, nil
		}
	}
	return false, nil
}
