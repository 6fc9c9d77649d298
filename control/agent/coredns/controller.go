package coredns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
)

// Namespace is the one of CoreDNS' configuration.
const Namespace = "kube-system"

// CustomName is the ConfigMap of server blocks that the CoreDNS of AKS and k3s imports.
const CustomName = "coredns-custom"

// customImport is in a Corefile that imports the keys *.server of a ConfigMap as server blocks.
const customImport = "*.server"

// Target is the key of a ConfigMap that holds configuration of CoreDNS.
type Target struct {
	ConfigMap types.NamespacedName
	Key       string
	// Optional: the key is made if it is missing, and goes with its last line.
	Optional bool
}

// TargetOf is the key for a ConfigMap of server blocks that the Corefile imports; if custom is empty, the Corefile itself, in the
// ConfigMap that kubeadm and most distributions have.
func TargetOf(custom string) Target {
	if custom == "" {
		return Target{types.NamespacedName{Namespace: Namespace, Name: "coredns"}, "Corefile", false}
	}
	return Target{types.NamespacedName{Namespace: Namespace, Name: custom}, "pelago.server", true}
}

// ImportsServers reports whether a Corefile imports server blocks from another ConfigMap.
func ImportsServers(corefile string) bool { return strings.Contains(corefile, customImport) }

// set replaces the content of the key.
func (t Target) set(cm *corev1.ConfigMap, text string) {
	if text == "" && t.Optional {
		delete(cm.Data, t.Key)
		return
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[t.Key] = text
}

// Clean removes the block from a ConfigMap, and reports whether there was one.
func (t Target) Clean(cm *corev1.ConfigMap) (changed bool, err error) {
	text, err := Remove(cm.Data[t.Key])
	if err != nil {
		return false, fmt.Errorf("remove the block of pelago from ConfigMap %s: %w", t.ConfigMap, err)
	}
	if text == cm.Data[t.Key] {
		return false, nil
	}
	t.set(cm, text)
	return true, nil
}

// service is in front of pelago-dns.
var service = types.NamespacedName{Namespace: "pelago-system", Name: "pelago-dns"}

// Reasons of the events, on the ConfigMap or, where there is none, the Service.
const (
	reasonPatched = "CorefilePatched"
	reasonFailed  = "CorefileNotPatched"
)

// Controller keeps the Corefile's block in step with the Service: forwarding
// while it has a ClusterIP, gone when it is gone.
type Controller struct {
	client client.Client
	events record.EventRecorder
	zones  []string
	target Target
}

// New makes a controller that forwards zones. The client's cache must hold the
// target's ConfigMap; see ConfigMapCache.
func New(c client.Client, events record.EventRecorder, zones []string, target Target) *Controller {
	return &Controller{client: c, events: events, zones: zones, target: target}
}

// ConfigMapCache limits a manager's cache of ConfigMaps to the one needed here,
// so that neither the rights to read others nor the memory for them are.
func ConfigMapCache(target Target) cache.ByObject {
	return cache.ByObject{Namespaces: map[string]cache.Config{
		target.ConfigMap.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", target.ConfigMap.Name)},
	}}
}

// SetupWithManager has the manager run the controller.
func (c *Controller) SetupWithManager(m manager.Manager) error {
	named := func(want types.NamespacedName) predicate.Funcs {
		return predicate.NewPredicateFuncs(func(o client.Object) bool { return client.ObjectKeyFromObject(o) == want })
	}
	request := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: c.target.ConfigMap}}
	})
	err := builder.ControllerManagedBy(m).
		Named("corefile").
		For(&corev1.ConfigMap{}, builder.WithPredicates(named(c.target.ConfigMap))).
		Watches(&corev1.Service{}, request, builder.WithPredicates(named(service))).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up controller corefile: %w", err)
	}
	return nil
}

// Reconcile brings the Corefile in step. What only a person can mend becomes an
// event and is not tried again until one of the objects changes.
func (c *Controller) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var cm corev1.ConfigMap
	var svc corev1.Service
	hasConfig, err := c.get(ctx, c.target.ConfigMap, &cm)
	if err != nil {
		return reconcile.Result{}, err
	}
	hasService, err := c.get(ctx, service, &svc)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch {
	case !hasConfig && !hasService:
		return reconcile.Result{}, nil
	case !hasConfig:
		lines, err := c.desired("", true, svc.Spec.ClusterIP)
		if err != nil {
			return reconcile.Result{}, c.fail(&svc, err)
		}
		return reconcile.Result{}, c.fail(&svc, fmt.Errorf("find ConfigMap %s: this cluster's DNS is configured elsewhere; have it forward %v to %s, in CoreDNS by these lines:\n%s",
			c.target.ConfigMap, c.zones, svc.Spec.ClusterIP, lines))
	}
	text, ok := cm.Data[c.target.Key]
	if !ok && !c.target.Optional {
		return reconcile.Result{}, c.fail(&cm, fmt.Errorf("read ConfigMap %s: it has no key %s; this cluster's DNS is configured elsewhere", c.target.ConfigMap, c.target.Key))
	}
	want, err := c.desired(text, hasService, svc.Spec.ClusterIP)
	if err != nil {
		return reconcile.Result{}, c.fail(&cm, err)
	}
	if want == text {
		return reconcile.Result{}, nil
	}
	changed := cm.DeepCopy()
	c.target.set(changed, want)
	// The update carries the resourceVersion that was read: a concurrent change is
	// a conflict and not lost.
	if err := c.client.Update(ctx, changed, client.FieldOwner("pelago-agent")); err != nil {
		if apierrors.IsConflict(err) {
			return reconcile.Result{RequeueAfter: time.Second}, nil
		}
		return reconcile.Result{}, fmt.Errorf("update ConfigMap %s: %w", c.target.ConfigMap, err)
	}
	if hasService {
		c.events.Eventf(changed, corev1.EventTypeNormal, reasonPatched, "forwarding %v to %s", c.zones, svc.Spec.ClusterIP)
	} else {
		c.events.Eventf(changed, corev1.EventTypeNormal, reasonPatched, "no longer forwarding %v: Service %s is gone", c.zones, service)
	}
	return reconcile.Result{}, nil
}

// desired is the Corefile for the state of the Service.
func (c *Controller) desired(corefile string, hasService bool, clusterIP string) (string, error) {
	if !hasService {
		return Remove(corefile)
	}
	ip, err := netip.ParseAddr(clusterIP)
	if err != nil {
		return "", fmt.Errorf("read ClusterIP of Service %s: %w; it must not be headless", service, err)
	}
	return Patch(corefile, c.zones, ip)
}

// get reads an object; false if it does not exist.
func (c *Controller) get(ctx context.Context, name types.NamespacedName, o client.Object) (bool, error) {
	err := c.client.Get(ctx, name, o)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get %T %s: %w", o, name, err)
	}
	return true, nil
}

func (c *Controller) fail(about client.Object, err error) error {
	c.events.Event(about, corev1.EventTypeWarning, reasonFailed, err.Error())
	return reconcile.TerminalError(err)
}
