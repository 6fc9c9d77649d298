package peering

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelago-net/pelago/control/kube"
)

// Well-known properties of a member of a clusterset (KEP-2149): its id in the clusterset, and the
// clusterset's.
const (
	propertyCluster    = "cluster.clusterset.k8s.io"
	propertyClusterSet = "clusterset.k8s.io"
)

// clusterProperty is the kind of the About API; its Go module is not published.
var clusterProperty = schema.GroupKind{Group: "about.k8s.io", Kind: "ClusterProperty"}

const reasonOtherIdentity = "OtherIdentity"

// IdentityOptions of the controller.
type IdentityOptions struct {
	// ClusterID is the value of property cluster.clusterset.k8s.io.
	ClusterID string
	// HubID identifies the clusterset, the value of clusterset.k8s.io.
	HubID string
}

// SetupIdentity adds a controller that keeps the ClusterProperties of the cluster's membership. A
// property that another tool has set to another value stays, and has an Event.
func SetupIdentity(mgr ctrl.Manager, o IdentityOptions) error {
	mapping, err := mgr.GetRESTMapper().RESTMapping(clusterProperty)
	if meta.IsNoMatchError(err) {
		mgr.GetLogger().Info("the cluster's identity is not published: the API server has no kind ClusterProperty; `pelago join` installs it")
		return nil
	} else if err != nil {
		return fmt.Errorf("find kind ClusterProperty: %w", err)
	}
	r := &identityReconciler{
		kind:   mapping.GroupVersionKind,
		client: mgr.GetClient(), events: kube.EventRecorder(mgr, "pelago-agent"), owner: kube.Owner{HubID: o.HubID},
		values: map[string]string{propertyCluster: o.ClusterID, propertyClusterSet: o.HubID},
	}
	property := &unstructured.Unstructured{}
	property.SetGroupVersionKind(r.kind)
	err = ctrl.NewControllerManagedBy(mgr).
		Named("identity").
		Watches(property, &handler.EnqueueRequestForObject{}).
		WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			for name := range r.values {
				queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
			}
			return nil
		})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up controller identity: %w", err)
	}
	return nil
}

type identityReconciler struct {
	kind   schema.GroupVersionKind // in the version that the API server prefers
	client client.Client
	events record.EventRecorder
	owner  kube.Owner
	values map[string]string // by property
}

// Reconcile handles one property; the request is its name.
func (r *identityReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	value, ours := r.values[req.Name]
	if !ours {
		return reconcile.Result{}, nil
	}
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(r.kind)
	if err := r.client.Get(ctx, req.NamespacedName, have); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read ClusterProperty %s: %w", req.Name, err)
	} else if err == nil && !r.owner.Owns(have) {
		if got, _, _ := unstructured.NestedString(have.Object, "spec", "value"); got != value {
			r.events.Eventf(have, corev1.EventTypeWarning, reasonOtherIdentity,
				"the cluster is member %q of its clusterset, and another tool has set this property to %q: delete it to let it be set", value, got)
		}
		return reconcile.Result{}, nil
	}
	want := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"value": value}}}
	want.SetGroupVersionKind(r.kind)
	want.SetName(req.Name)
	r.owner.Mark(want)
	var present []*unstructured.Unstructured
	if have.GetUID() != "" {
		present = append(present, have)
	}
	set := kube.ObjectSet[*unstructured.Unstructured]{
		Client: r.client, Owns: r.owner.Owns,
		Copy: func(dst, src *unstructured.Unstructured) { dst.Object["spec"] = src.Object["spec"] },
	}
	return reconcile.Result{}, set.Ensure(ctx, present, []*unstructured.Unstructured{want})
}
