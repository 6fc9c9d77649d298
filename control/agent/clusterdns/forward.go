package clusterdns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelago-net/pelago/control/kube"
)

// service is in front of pelago-dns.
var service = types.NamespacedName{Namespace: "pelago-system", Name: "pelago-dns"}

// Reasons of the events, on what was to be changed or, where there is nothing, the Service.
const (
	reasonPatched = "CorefilePatched"
	reasonFailed  = "CorefileNotPatched"
)

// ForwardOptions are those of the forwarders.
type ForwardOptions struct {
	Zones []string
	Cache time.Duration // see Forward
	// Custom is the ConfigMap of TargetOf.
	Custom string
}

// SetupForward has the manager run a controller for each of Targets, and one for OpenShift's DNS
// operator where the API server has its kind.
func SetupForward(m manager.Manager, o ForwardOptions) error {
	events := kube.EventRecorder(m, "pelago-agent")
	var errs []error
	targets := Targets(o.Custom)
	for i, t := range targets {
		c := &forwarder{manager: m, events: events, options: o, object: &corev1.ConfigMap{}, name: t.ConfigMap,
			apply: func(obj client.Object, f *Forward) (bool, error) { return t.apply(obj.(*corev1.ConfigMap), f) }}
		if i == 0 {
			c.others = targets[1:]
		}
		if t.stubDomains {
			c.instead = []Target{targets[0], corefileOf("coredns"), targets[1]}
		}
		errs = append(errs, c.setup())
	}
	switch _, err := m.GetRESTMapper().RESTMapping(operatorKind.GroupKind(), operatorKind.Version); {
	case err == nil:
		c := &forwarder{manager: m, events: events, options: o, object: NewOperator(), name: types.NamespacedName{Name: OperatorName},
			apply: func(obj client.Object, f *Forward) (bool, error) {
				return ApplyOperator(obj.(*unstructured.Unstructured), f)
			}}
		errs = append(errs, c.setup())
	case !meta.IsNoMatchError(err):
		errs = append(errs, fmt.Errorf("look up kind %s: %w", operatorKind, err))
	}
	return errors.Join(errs...)
}

// forwarder keeps one object in sync with the Service: it forwards to the Service's ClusterIP, and
// no longer once the Service is gone.
type forwarder struct {
	manager manager.Manager
	events  record.EventRecorder
	options ForwardOptions
	object  client.Object // an empty one, to read into
	name    types.NamespacedName
	apply   func(client.Object, *Forward) (changed bool, err error)
	// others are looked for where the object is missing, before that is reported.
	others []Target
	// instead are what is changed where one of them is present, and not the object.
	instead []Target

	reader client.Reader // of the object
}

// setup gives the controller a cache of its one object, so that neither the rights to read others
// nor the memory for them are needed.
func (c *forwarder) setup() error {
	by := cache.ByObject{Field: fields.OneTermEqualSelector("metadata.name", c.name.Name)}
	if c.name.Namespace != "" {
		by.Namespaces = map[string]cache.Config{c.name.Namespace: {}}
	}
	objects, err := cache.New(c.manager.GetConfig(), cache.Options{
		Scheme: c.manager.GetScheme(), Mapper: c.manager.GetRESTMapper(), HTTPClient: c.manager.GetHTTPClient(),
		DefaultTransform: cache.TransformStripManagedFields(), ByObject: map[client.Object]cache.ByObject{c.object: by},
	})
	if err == nil {
		err = c.manager.Add(objects)
	}
	if err != nil {
		return fmt.Errorf("set up controller of %s: %w", c.name, err)
	}
	c.reader = objects
	request := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: c.name}}
	})
	isService := predicate.NewPredicateFuncs(func(o client.Object) bool { return client.ObjectKeyFromObject(o) == service })
	err = builder.ControllerManagedBy(c.manager).
		Named("corefile-"+c.name.Name).
		WatchesRawSource(source.Kind(objects, c.object, request)).
		Watches(&corev1.Service{}, request, builder.WithPredicates(isService)).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up controller of %s: %w", c.name, err)
	}
	return nil
}

// Reconcile brings the object in sync. A problem that only a person can fix is reported by an
// Event, and not retried until one of the objects changes.
func (c *forwarder) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	obj := c.object.DeepCopyObject().(client.Object)
	var svc corev1.Service
	hasObject, err := get(ctx, c.reader, c.name, obj)
	if err != nil {
		return reconcile.Result{}, err
	}
	hasService, err := get(ctx, c.manager.GetClient(), service, &svc)
	if err != nil {
		return reconcile.Result{}, err
	}
	var want *Forward
	if hasService {
		f := ForwardTo(&svc, c.options.Zones, c.options.Cache)
		want = &f
	}
	if !hasObject {
		return reconcile.Result{}, c.missing(ctx, &svc, want)
	}
	if want != nil && c.instead != nil {
		if found, err := Present(ctx, c.manager.GetAPIReader(), c.instead); err != nil {
			return reconcile.Result{}, err
		} else if found {
			want = nil
		}
	}
	changed, err := c.apply(obj, want)
	if err != nil {
		return reconcile.Result{}, c.fail(obj, err)
	}
	if !changed {
		return reconcile.Result{}, nil
	}
	// The update carries the resourceVersion that was read: a concurrent change is
	// a conflict and not lost.
	if err := c.manager.GetClient().Update(ctx, obj, client.FieldOwner("pelago-agent")); err != nil {
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: time.Second}, nil
		}
		return reconcile.Result{}, fmt.Errorf("update %s: %w", c.name, err)
	}
	if want != nil {
		c.events.Eventf(obj, corev1.EventTypeNormal, reasonPatched, "forwarding %v to %s", want.Zones, want.To)
	} else {
		c.events.Eventf(obj, corev1.EventTypeNormal, reasonPatched, "no longer forwarding %v: Service %s is gone, or CoreDNS forwards them", c.options.Zones, service)
	}
	return reconcile.Result{}, nil
}

// missing reports that there is nothing to change, with the lines that a person has to add
// elsewhere.
func (c *forwarder) missing(ctx context.Context, svc *corev1.Service, want *Forward) error {
	if want == nil || c.others == nil {
		return nil
	}
	found, err := Present(ctx, c.manager.GetAPIReader(), c.others)
	if err != nil || found {
		return err
	}
	lines, err := want.Lines()
	if err != nil {
		return c.fail(svc, err)
	}
	return c.fail(svc, fmt.Errorf("find ConfigMap %s: this cluster's DNS is configured elsewhere; have it forward %v to %s, in CoreDNS by these lines:\n%s",
		c.name, want.Zones, want.To, lines))
}

// Present reports whether one of the targets is there, or OpenShift's DNS operator.
func Present(ctx context.Context, c client.Reader, targets []Target) (bool, error) {
	for _, t := range targets {
		if found, err := get(ctx, c, t.ConfigMap, &corev1.ConfigMap{}); found || err != nil {
			return found, err
		}
	}
	found, err := get(ctx, c, types.NamespacedName{Name: OperatorName}, NewOperator())
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	return found, err
}

// ForwardTo is what the cluster's DNS shall do with the Service pelago-dns.
func ForwardTo(svc *corev1.Service, zones []string, keep time.Duration) Forward {
	ip, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil {
		ip = netip.Addr{} // refused with the remedy by Patch
	}
	return Forward{Zones: zones, To: ip, Cache: keep}
}

// Lines are the server block for a Corefile that another component keeps.
func (f Forward) Lines() (string, error) { return f.Patch("") }

// get reads an object; false if it does not exist.
func get(ctx context.Context, c client.Reader, name types.NamespacedName, o client.Object) (bool, error) {
	err := c.Get(ctx, name, o)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get %T %s: %w", o, name, err)
	}
	return true, nil
}

func (c *forwarder) fail(about client.Object, err error) error {
	c.events.Event(about, corev1.EventTypeWarning, reasonFailed, err.Error())
	return reconcile.TerminalError(err)
}
