// Package migrate lets Pelago take over from its predecessors, and gives back; Promote takes over
// one object of a cluster. It decides nothing about workloads: it stops who would write the same
// objects, and keeps what it removes. cmd/pelago calls it.
package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// AnnotationReplicas keeps, on a Deployment of Karmada that was stopped, the replicas that it
	// had.
	AnnotationReplicas = "pelago.io/karmada-replicas"
	// kept is the ConfigMap with the registrations that were removed, as JSON.
	kept = "karmada-registrations"
	// hubNamespace is that of Karmada's Leases at its API server, whatever the namespace of its
	// pods in the host cluster.
	hubNamespace = "karmada-system"
)

// Components of Karmada as Deployments of the host cluster. Controllers write what pelago-hub
// writes; servers answer for registrations. etcd, karmada-apiserver and kube-controller-manager
// stay: they become the hub's.
var (
	controllers = []string{"karmada-controller-manager", "karmada-scheduler", "karmada-descheduler"}
	servers     = []string{"karmada-webhook", "karmada-aggregated-apiserver", "karmada-search", "karmada-metrics-adapter"}
)

// registrations are the kinds by which an API server calls Karmada's servers.
var registrations = []schema.GroupVersionKind{
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration"},
	{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"},
}

// Karmada is a control plane of Karmada.
type Karmada struct {
	// Hub is its API server, which becomes the hub's. Host is the cluster with its Deployments in
	// Namespace; nil: another component stops and starts them.
	Hub, Host client.Client
	Namespace string
	// Kubeconfig is searched for URLs of Karmada's proxy.
	Kubeconfig clientcmdapi.Config
	// Timeout bounds the wait for Deployments to stop or start.
	Timeout  time.Duration
	Progress manifests.Progress
}

// Step is a change that a migration makes, what it cannot keep, or what goes on in another way.
type Step struct {
	Action string `json:"action"` // stop, remove, restore, start, install, change, lose
	Object string `json:"object"`
	Detail string `json:"detail"`
}

// Plan lists what Forward changes, and what has no counterpart in Pelago. Of a migration that was
// interrupted it lists the rest.
func (k *Karmada) Plan(ctx context.Context) ([]Step, error) {
	var steps []Step
	if err := k.deployments(ctx, controllers, func(d *appsv1.Deployment) error {
		if n := ptr.Deref(d.Spec.Replicas, 1); n > 0 {
			steps = append(steps, Step{"stop", "Deployment " + manifests.Title(client.ObjectKeyFromObject(d)), fmt.Sprintf("%d replicas; etcd, API server and kube-controller-manager stay", n)})
		}
		return nil
	}); err != nil {
		return nil, err
	}
	alive, err := k.alive(ctx)
	if err != nil {
		return nil, err
	}
	if k.Host == nil {
		for _, name := range alive {
			steps = append(steps, Step{"stop", name, "by hand, or name the host cluster with --host-context"})
		}
	}
	found, err := k.registered(ctx)
	if err != nil {
		return nil, err
	}
	for _, u := range found {
		steps = append(steps, Step{"remove", u.GetKind() + " " + u.GetName(), "kept in ConfigMap " + manifests.SystemNamespace + "/" + kept})
	}
	steps = append(steps, Step{"install", "hub of Pelago", "definitions that Karmada lacks, admission policies, rights of pelago-hub"})
	return k.losses(ctx, steps)
}

// list lists a kind that the API server may lack.
func (k *Karmada) list(ctx context.Context, kind schema.GroupVersionKind) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	err := k.Hub.List(ctx, list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of %s: %w", kind.Kind, kind.Group, err)
	}
	return list.Items, nil
}

// Forward stops Karmada and removes its registrations, which it keeps. Afterwards the hub of Pelago
// can be installed. With force what has no counterpart stays without effect; else it is an error.
func (k *Karmada) Forward(ctx context.Context, force bool) error {
	steps, err := k.losses(ctx, nil)
	if err != nil {
		return err
	}
	steps = slices.DeleteFunc(steps, func(s Step) bool { return s.Action != lose })
	if len(steps) > 0 && !force {
		var all []string
		for _, s := range steps {
			all = append(all, s.Object+": "+s.Detail)
		}
		return fmt.Errorf("no counterpart in Pelago of what is in use; remove it, or give --force: %s", strings.Join(all, "; "))
	}
	if err := k.scale(ctx, controllers, false); err != nil {
		return err
	}
	if err := k.awaitDead(ctx); err != nil {
		return err
	}
	if err := k.unregister(ctx); err != nil {
		return err
	}
	return k.scale(ctx, servers, false)
}

// Back restores what Forward removed, and starts Karmada. pelago-hub must have been stopped.
func (k *Karmada) Back(ctx context.Context) error {
	leases := &coordinationv1.LeaseList{}
	if err := k.Hub.List(ctx, leases, client.InNamespace(manifests.SystemNamespace)); err != nil {
		return fmt.Errorf("list the Leases of namespace %s: %w", manifests.SystemNamespace, err)
	}
	leases.Items = slices.DeleteFunc(leases.Items, func(l coordinationv1.Lease) bool { return l.Name != manifests.HubName })
	held, err := manifests.Held(ctx, k.Hub, leases.Items...)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		l := held[0]
		return fmt.Errorf("pelago-hub runs: %s holds Lease %s/%s: stop it first, and run this command again", ptr.Deref(l.Spec.HolderIdentity, ""), l.Namespace, l.Name)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: kept}}
	err = k.Hub.Get(ctx, client.ObjectKeyFromObject(cm), cm)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("ConfigMap %s/%s does not exist: this API server was not migrated, or has been migrated back already", cm.Namespace, cm.Name)
	}
	if err != nil {
		return fmt.Errorf("get ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	k.Progress("Removing Pelago's admission policies and rights; its definitions stay")
	if err := manifests.RemovePropagation(ctx, k.Hub); err != nil {
		return err
	}
	if err := k.scale(ctx, servers, true); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(cm.Data)) {
		if err := restore(ctx, k.Hub, cm.Data[name], k.Progress); err != nil {
			return fmt.Errorf("restore what ConfigMap %s/%s keeps: %w", cm.Namespace, cm.Name, err)
		}
	}
	if err := k.scale(ctx, controllers, true); err != nil {
		return err
	}
	if err := k.Hub.Delete(ctx, cm); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete ConfigMap %s/%s: %w", cm.Namespace, cm.Name, err)
	}
	if k.Host == nil {
		k.Progress("Start Karmada's components now: %s", strings.Join(slices.Concat(servers, controllers), ", "))
	}
	return nil
}

// alive are Karmada's controllers that hold their Lease at the API server.
func (k *Karmada) alive(ctx context.Context) ([]string, error) {
	leases := &coordinationv1.LeaseList{}
	if err := k.Hub.List(ctx, leases, client.InNamespace(hubNamespace)); err != nil {
		return nil, fmt.Errorf("list the Leases of namespace %s: %w", hubNamespace, err)
	}
	leases.Items = slices.DeleteFunc(leases.Items, func(l coordinationv1.Lease) bool { return !slices.Contains(controllers, l.Name) })
	held, err := manifests.Held(ctx, k.Hub, leases.Items...)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range held {
		out = append(out, l.Name)
	}
	slices.Sort(out)
	return out, nil
}

// awaitDead waits until no controller renews its Lease.
func (k *Karmada) awaitDead(ctx context.Context) error {
	var last []string
	err := wait.PollUntilContextTimeout(ctx, time.Second, k.Timeout, true, func(context.Context) (bool, error) {
		alive, err := k.alive(ctx) // not the limited context: the last request completes
		if len(alive) > 0 && !slices.Equal(alive, last) {
			k.Progress("Waiting until the Leases of %s run out", strings.Join(alive, ", "))
		}
		last = alive
		return len(alive) == 0, err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		return fmt.Errorf("%s of Karmada still renew their Leases in namespace %s: stop them, or name the host cluster with --host-context; nothing was changed at the API server",
			strings.Join(last, ", "), hubNamespace)
	}
	return err
}

// registered are the registrations of Karmada's servers: webhooks with names of its domain, and API
// services that lead to its namespace.
func (k *Karmada) registered(ctx context.Context) ([]unstructured.Unstructured, error) {
	var out []unstructured.Unstructured
	for _, kind := range registrations {
		all, err := k.list(ctx, kind)
		if err != nil {
			return nil, err
		}
		for _, u := range all {
			if karmadas(&u, k.Namespace) {
				out = append(out, u)
			}
		}
	}
	return out, nil
}

func karmadas(u *unstructured.Unstructured, namespace string) bool {
	if in, _, _ := unstructured.NestedString(u.Object, "spec", "service", "namespace"); in != "" {
		return in == namespace || in == hubNamespace
	}
	hooks, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	return slices.ContainsFunc(hooks, func(h any) bool {
		hook, _ := h.(map[string]any)
		name, _ := hook["name"].(string)
		return strings.HasSuffix(name, ".karmada.io")
	})
}

// unregister keeps and then removes the registrations.
func (k *Karmada) unregister(ctx context.Context) error {
	found, err := k.registered(ctx)
	if err != nil {
		return err
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: manifests.SystemNamespace}}
	if err := k.Hub.Create(ctx, ns); client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("create namespace %s: %w", ns.Name, err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: kept}}
	var failed error
	if err := manifests.Put(ctx, k.Hub, cm, func() {
		if cm.Data == nil {
			cm.Data = map[string]string{}
		}
		for _, u := range found {
			text, err := json.Marshal(restorable(&u))
			failed = errors.Join(failed, err)
			cm.Data[strings.ToLower(u.GetKind())+"."+u.GetName()] = string(text)
		}
	}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	for i := range found {
		u := &found[i]
		k.Progress("Removing %s %s, kept in ConfigMap %s/%s", u.GetKind(), u.GetName(), cm.Namespace, cm.Name)
		if err := k.Hub.Delete(ctx, u); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

// restorable is an object without what the API server sets.
func restorable(u *unstructured.Unstructured) map[string]any {
	out := u.DeepCopy()
	for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"} {
		unstructured.RemoveNestedField(out.Object, "metadata", field)
	}
	unstructured.RemoveNestedField(out.Object, "status")
	return out.Object
}

// restore writes a kept object as it was. The API server may have made another meanwhile, as an API
// service for a definition of its group.
func restore(ctx context.Context, c client.Client, text string, progress manifests.Progress) error {
	want, have := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &want.Object); err != nil {
		return err
	}
	title := want.GetKind() + " " + manifests.Title(client.ObjectKeyFromObject(want))
	progress("Restoring %s", title)
	have.SetGroupVersionKind(want.GroupVersionKind())
	err := c.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		err = c.Create(ctx, want)
	case err == nil:
		want.SetResourceVersion(have.GetResourceVersion())
		err = c.Update(ctx, want)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", title, err)
	}
	return nil
}

// deployments calls do with those of the named Deployments that the host cluster has.
func (k *Karmada) deployments(ctx context.Context, names []string, do func(*appsv1.Deployment) error) error {
	if k.Host == nil {
		return nil
	}
	return k.scaler().each(ctx, names, do)
}

func (k *Karmada) scale(ctx context.Context, names []string, up bool) error {
	if k.Host == nil {
		return nil
	}
	return k.scaler().scale(ctx, names, up)
}

func (k *Karmada) scaler() scaler {
	return scaler{k.Host, k.Namespace, AnnotationReplicas, "the host cluster", k.Timeout, k.Progress}
}
