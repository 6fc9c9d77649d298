package gateways

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// Reasons of Events on the Node.
const (
	reasonAdded   = "GatewayAdded"
	reasonRemoved = "GatewayRemoved"
	reasonMissing = "GatewaysMissing"
)

// Options of the controller.
type Options struct {
	// Want is the number of gateways to keep; 0: none is labelled, only the metrics are written.
	Want int
}

type reconciler struct {
	Options
	client          client.Client
	events          record.EventRecorder
	now             func() time.Time
	wanted, serving *prometheus.GaugeVec
	missing         int // as of the last Event
}

// Setup adds the controller to the manager and returns its metrics.
func Setup(mgr ctrl.Manager, o Options) ([]prometheus.Collector, error) {
	r := &reconciler{Options: o, client: mgr.GetClient(), events: kube.EventRecorder(mgr, "pelago-agent"), now: time.Now,
		// vectors: an agent that does not lead has no value
		wanted: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pelago_gateways_wanted",
			Help: "Number of gateways that the agent keeps labelled; 0 if users label them"}, nil),
		serving: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pelago_gateways_serving",
			Help: "Number of gateways that are Ready, not drained, and known to all remote gateways"}, nil),
	}
	once := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{{}} })
	err := ctrl.NewControllerManagedBy(mgr).Named("gateways").
		Watches(&corev1.Node{}, once, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			return Of(e.ObjectOld.(*corev1.Node), nil) != Of(e.ObjectNew.(*corev1.Node), nil)
		}})).
		Watches(&v1alpha1.NodeIndex{}, once, builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
			was, is := e.ObjectOld.(*v1alpha1.NodeIndex).Status, e.ObjectNew.(*v1alpha1.NodeIndex).Status
			return was.Serving != is.Serving || was.Gateway != is.Gateway || was.Ready != is.Ready || was.NodeBootID != is.NodeBootID
		}})).
		Complete(r)
	if err != nil {
		return nil, fmt.Errorf("set up controller gateways: %w", err)
	}
	return []prometheus.Collector{r.wanted, r.serving}, nil
}

// Reconcile labels the nodes that are to be gateways.
func (r *reconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var list corev1.NodeList
	var indexes v1alpha1.NodeIndexList
	for _, l := range []client.ObjectList{&list, &indexes} {
		if err := r.client.List(ctx, l); err != nil {
			return reconcile.Result{}, fmt.Errorf("list %T: %w", l, err)
		}
	}
	of := map[string]*v1alpha1.NodeIndex{}
	for i := range indexes.Items {
		of[indexes.Items[i].Name] = &indexes.Items[i]
	}
	byName := map[string]*corev1.Node{}
	var nodes []Node
	for i := range list.Items {
		n := &list.Items[i]
		byName[n.Name] = n
		nodes = append(nodes, Of(n, of[n.Name]))
	}
	plan := Desired(nodes, r.Want, r.now())
	r.wanted.WithLabelValues().Set(float64(r.Want))
	r.serving.WithLabelValues().Set(float64(plan.Serving))
	var errs []error
	for _, name := range plan.Add {
		if err := r.label(ctx, byName[name], true); err != nil {
			errs = append(errs, err)
			continue
		}
		r.events.Eventf(byName[name], corev1.EventTypeNormal, reasonAdded, "the node becomes a gateway: %d are kept (join --gateways); label it "+
			"%s=false to exempt it", r.Want, submarinerv1.LabelGateway)
	}
	for _, name := range plan.Remove {
		if err := r.label(ctx, byName[name], false); err != nil {
			errs = append(errs, err)
			continue
		}
		r.events.Eventf(byName[name], corev1.EventTypeNormal, reasonRemoved, "the node is no gateway any more: %d others serve", r.Want)
	}
	if plan.Missing > 0 && plan.Missing != r.missing {
		for _, n := range nodes {
			if n.Gateway {
				r.events.Eventf(byName[n.Name], corev1.EventTypeWarning, reasonMissing, "%d of %d gateways are missing and no other node can become one: "+
					"add a node that is Ready and not cordoned, or run `pelago join` with another --gateways", plan.Missing, r.Want)
			}
		}
	}
	r.missing = plan.Missing
	return reconcile.Result{RequeueAfter: plan.Wait}, errors.Join(errs...)
}

// label sets or removes our label and its annotation, unless the node has changed meanwhile.
func (r *reconciler) label(ctx context.Context, n *corev1.Node, set bool) error {
	before := n.DeepCopy()
	n = n.DeepCopy()
	if set {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Labels[submarinerv1.LabelGateway], n.Annotations[v1alpha1.AnnotationGatewayKept] = "true", "true"
	} else {
		delete(n.Labels, submarinerv1.LabelGateway)
		delete(n.Annotations, v1alpha1.AnnotationGatewayKept)
	}
	if err := r.client.Patch(ctx, n, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("change label %s of Node %s: %w", submarinerv1.LabelGateway, n.Name, err)
	}
	return nil
}

// Of is what matters of a Node and its NodeIndex, which may be nil.
func Of(n *corev1.Node, index *v1alpha1.NodeIndex) Node {
	_, drained := topology.Drained(n)
	label, labelled := n.Labels[submarinerv1.LabelGateway]
	_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
	_, master := n.Labels["node-role.kubernetes.io/master"]
	out := Node{
		Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone], Gateway: topology.IsGateway(n), Kept: n.Annotations[v1alpha1.AnnotationGatewayKept] == "true",
		Refused:      labelled && label != "true" || !topology.HasDatapath(n.Labels),
		ControlPlane: controlPlane || master, Out: drained || n.DeletionTimestamp != nil,
		Serving: index != nil && index.Spec.NodeUID == string(n.UID) && topology.GatewayServing(n, index),
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			out.Ready, out.Since = c.Status == corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	return out
}
