package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// memberTime bounds how long a hub may take to list its members.
const memberTime = 10 * time.Second

// Renew issues certificates of the hub again that are about to expire.
func (h *Hosted) Renew(ctx context.Context, host client.Client, now time.Time) ([]string, error) {
	secret := &corev1.Secret{}
	if err := host.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: HostedCA}, secret); err != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w: name the namespace of a hub with --namespace", h.Namespace, HostedCA, err)
	}
	_, renewed, err := CompletePKI(ctx, host, h.Namespace, PKINames{}, now)
	return renewed, err
}

// CheckRemoval refuses the removal of a hub that has members, or whose members are unknown.
func (h *Hosted) CheckRemoval(ctx context.Context, host client.Client, force bool) error {
	secret := &corev1.Secret{}
	err := host.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: HostedPKI}, secret)
	if apierrors.IsNotFound(err) {
		have, err := Read(ctx, host, h.Namespace)
		if err == nil && !have.Installed() {
			err = h.notInstalled()
		}
		return err // what an interrupted removal, or one without --purge, has left has no members
	}
	if err != nil {
		return fmt.Errorf("get Secret %s/%s: %w", h.Namespace, HostedPKI, err)
	}
	return checkMembers(ctx, secret.Data[AdminKubeconfig], force)
}

// CheckRemoval refuses the removal of a hub that has members, or whose members are unknown.
func (l *Local) CheckRemoval(ctx context.Context, force bool) error {
	admin, err := os.ReadFile(filepath.Join(l.Dir, "pki", AdminKubeconfig))
	if err != nil {
		return fmt.Errorf("find the hub in --dir %s: %w", l.Dir, err)
	}
	return checkMembers(ctx, admin, force)
}

func checkMembers(ctx context.Context, admin []byte, force bool) error {
	if force {
		return nil
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(admin)
	if err != nil {
		return fmt.Errorf("read the kubeconfig of the hub: %w", err)
	}
	cfg.Timeout = memberTime
	var names []string
	hub, err := manifests.NewClient(cfg)
	if err == nil {
		names, err = registered(ctx, hub)
	}
	return refuseMembers(names, err)
}

// CheckRemoval refuses the removal of a hub that has members, or whose members are unknown.
func (in Installed) CheckRemoval(ctx context.Context) error {
	return refuseMembers(registered(ctx, in.hub.Client))
}

// refuseMembers refuses the removal of a hub with these members; err: they could not be listed.
func refuseMembers(names []string, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("find out whether clusters are registered at the hub: %w: --force removes it all the same", err)
	case len(names) > 0:
		return fmt.Errorf("clusters are registered at the hub: %s: `pelago unjoin` each of them, or give --force, which leaves them as they are",
			strings.Join(names, ", "))
	}
	return nil
}

// Installed is what deploy-broker, and init without --host-context, have installed into an API
// server.
type Installed struct {
	hub                       manifests.Cluster
	broker, workloads, member bool // member: the cluster is also a member
}

// FindInstalled refuses an API server without a broker and a hub, and one whose pelago-hub runs
// outside of it.
func FindInstalled(ctx context.Context, api manifests.Cluster) (in Installed, err error) {
	exists := func(obj client.Object, namespace, name string) bool {
		failed := api.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj)
		if client.IgnoreNotFound(failed) != nil && err == nil {
			err = fmt.Errorf("get %s %s at %s: %w", manifests.Kind(api.Client, obj), name, api.Config.Host, failed)
		}
		return failed == nil
	}
	in = Installed{hub: api, broker: exists(&corev1.Namespace{}, "", manifests.BrokerNamespace),
		workloads: exists(&rbacv1.ClusterRole{}, "", manifests.HubName),
		member:    exists(&corev1.ConfigMap{}, config.SystemNamespace, config.ConfigMapName)}
	hosts := exists(&corev1.ConfigMap{}, manifests.SystemNamespace, HostedSettings)
	lease := &coordinationv1.Lease{}
	outside := exists(lease, manifests.SystemNamespace, manifests.HubName) && !exists(&appsv1.Deployment{}, manifests.SystemNamespace, manifests.HubName)
	switch {
	case err != nil:
		return in, err
	case !in.broker && !in.workloads:
		return in, fmt.Errorf("the API server at %s has neither a broker nor a hub: name it with --context, and with --host-context the "+
			"cluster of a hub that runs as pods", api.Config.Host)
	case in.workloads && hosts:
		return in, fmt.Errorf("a hub runs in namespace %s of this cluster: remove it first with --host-context", manifests.SystemNamespace)
	case !in.workloads || !outside:
		return in, nil
	}
	held, err := manifests.Held(ctx, api.Client, *lease)
	if err == nil && len(held) > 0 {
		err = fmt.Errorf("pelago-hub runs: %s holds Lease %s/%s: stop it first", *held[0].Spec.HolderIdentity, lease.Namespace, lease.Name)
	}
	return in, err
}

// Remove removes all of it except definitions.
func (in Installed) Remove(ctx context.Context, progress manifests.Progress) error {
	if in.workloads {
		if err := manifests.RemoveWorkloadsHub(ctx, in.hub.Client, in.member, progress); err != nil {
			return err
		}
	}
	if in.broker {
		if err := broker.Remove(ctx, in.hub.Client, progress); err != nil {
			return err
		}
	}
	progress("Removed; custom resource definitions and their objects stay, such as policies and bindings")
	if in.workloads && in.member {
		progress("Namespace %s stays: this cluster is a member as well", manifests.SystemNamespace)
	}
	return nil
}

// registered are the clusters that are registered at the hub.
func registered(ctx context.Context, hub client.Client) ([]string, error) {
	var names []string
	for list, options := range map[client.ObjectList][]client.ListOption{
		&clusterv1alpha1.ClusterList{}: nil, &submarinerv1.ClusterList{}: {client.InNamespace(manifests.BrokerNamespace)},
	} {
		if err := hub.List(ctx, list, options...); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("list the members of the hub: %w", err)
		}
		err := meta.EachListItem(list, func(o runtime.Object) error { names = append(names, o.(client.Object).GetName()); return nil })
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Remove removes the hub from the host cluster. The namespace goes with purge, if init has made it
// and nothing else of Pelago runs there.
func (h *Hosted) Remove(ctx context.Context, host client.Client, purge bool, progress manifests.Progress) error {
	progress("Removing the hub from namespace %s", h.Namespace)
	if err := RemoveHosted(ctx, host, h.Namespace, purge); err != nil {
		return err
	}
	progress("Waiting until its pods have ended")
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, h.Timeout, true, func(ctx context.Context) (bool, error) {
		for _, app := range []string{manifests.HubName, HostedAPIServer, HostedControllerManager, HostedEtcd} {
			pods := &corev1.PodList{}
			if err := host.List(ctx, pods, client.InNamespace(h.Namespace), client.MatchingLabels{"app": app}); err != nil || len(pods.Items) > 0 {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the pods of the hub in namespace %s have ended: %w", h.Namespace, err)
	}
	if !purge {
		progress("The volumes of etcd, Secret %s and ConfigMap %s stay in namespace %s; --purge removes them", HostedCA, HostedSettings, h.Namespace)
		return nil
	}
	ns := &corev1.Namespace{}
	if err := host.Get(ctx, client.ObjectKey{Name: h.Namespace}, ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	err = host.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: manifests.NodeDaemonSet}, &appsv1.DaemonSet{})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get DaemonSet %s/%s: %w", h.Namespace, manifests.NodeDaemonSet, err)
	}
	if err == nil || ns.Labels[HostedLabel] != HostedValue {
		progress("Namespace %s stays: it was there before the hub, or the cluster is a member as well", h.Namespace)
		return nil
	}
	if err := host.Delete(ctx, ns); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete namespace %s: %w", h.Namespace, err)
	}
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, h.Timeout, true, func(ctx context.Context) (bool, error) {
		err := host.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("wait until namespace %s is gone: %w: see what is left in it with `kubectl -n %s get all`", h.Namespace, err, h.Namespace)
	}
	progress("Removed the hub and namespace %s; what --etcd-host-path has on its node stays", h.Namespace)
	return nil
}
