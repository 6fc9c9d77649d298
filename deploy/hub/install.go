package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/rollout"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Hosted is a hub that runs in a host cluster.
type Hosted struct {
	spec.Hub
	Timeout time.Duration

	// Flags are those of which Hub was made; without, it is what the installation has kept.
	Flags *spec.HubFlags
}

// Plan completes the flags by those of an existing installation in the host cluster.
func (h *Hosted) Plan(ctx context.Context, host client.Client) (have Have, err error) {
	if have, err = Read(ctx, host, h.Namespace); err != nil {
		return have, err
	}
	given := func(string) bool { return false }
	if h.Flags != nil {
		given = h.Flags.Given
		if err := spec.Join(h.Flags.Read()); err != nil {
			return have, h.Flags.Names().Error(err)
		}
	} else { // what is kept alone
		namespace := h.Namespace
		h.Hub = spec.DefaultHub()
		h.Namespace = namespace
	}
	h.Hub, err = NewPlan(h.Hub, given, have)
	return have, spec.Flags(spec.Hub{}).Error(err)
}

// save writes what another run keeps.
func (h *Hosted) save(ctx context.Context, host client.Client) error {
	cm := &corev1.ConfigMap{ObjectMeta: h.meta(HostedSettings)}
	return manifests.Put(ctx, host, cm, func() { cm.Data, cm.Labels = h.Settings(), h.meta("").Labels })
}

func (h *Hosted) meta(name string) metav1.ObjectMeta { return HostedMeta(h.Namespace, name) }

// Install brings the hub up in the host cluster and returns the kubeconfig of its administrator.
// Running it again only creates what is missing, updates what is older than this program, and
// renews what is about to expire.
func (h *Hosted) Install(ctx context.Context, host manifests.Cluster, progress manifests.Progress) ([]byte, error) {
	c := host.Client
	stages, err := Manifests(h.Hub)
	if err != nil {
		return nil, err
	}
	if err := h.namespace(ctx, c); err != nil {
		return nil, err
	}
	if err := h.checkStorage(ctx, c); err != nil {
		return nil, err
	}
	progress("Installing the hub in namespace %s of %s", h.Namespace, host.Config.Host)
	if err := ApplyHosted(ctx, c, stages[0]); err != nil {
		return nil, err
	}
	names, err := h.address(ctx, c, progress)
	if err != nil {
		return nil, err
	}
	pki, renewed, err := CompletePKI(ctx, c, h.Namespace, names, time.Now())
	if err != nil {
		return nil, err
	}
	if len(renewed) > 0 {
		progress("Issued the certificates %v", renewed)
	}
	// After the address is known, which another run keeps.
	if err := h.save(ctx, c); err != nil {
		return nil, err
	}
	run := func(objs []*unstructured.Unstructured) error {
		if err := ApplyHosted(ctx, c, objs); err != nil {
			return err
		}
		return rollout.Await(ctx, host.Typed, h.Namespace, func(ctx context.Context) ([]rollout.Component, error) { return components(ctx, c, objs) },
			"init", h.Timeout, progress)
	}
	last := len(stages) - 1
	for _, objs := range stages[1:last] {
		if err := run(objs); err != nil {
			return nil, err
		}
	}
	admin := pki.Issued[AdminKubeconfig]
	cfg, err := clientcmd.RESTConfigFromKubeConfig(admin)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of the hub: %w", err)
	}
	if err := Propagation(ctx, cfg, h.Timeout, progress); err != nil {
		return nil, err
	}
	if err := run(stages[last]); err != nil {
		return nil, err
	}
	return admin, h.completeRestore(ctx, c)
}

// namespace creates the namespace unless it exists, with a label by which the removal recognizes
// that init has created it.
func (h *Hosted) namespace(ctx context.Context, host client.Client) error {
	m := h.meta(h.Namespace)
	m.Namespace = ""
	if err := host.Create(ctx, &corev1.Namespace{ObjectMeta: m}); client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("create namespace %s: %w", h.Namespace, err)
	}
	return nil
}

// checkStorage refuses a host cluster without a default StorageClass if none is named, and volumes
// of etcd whose keys are missing.
func (h *Hosted) checkStorage(ctx context.Context, host client.Client) error {
	claims, secret := &corev1.PersistentVolumeClaimList{}, &corev1.Secret{}
	if err := host.List(ctx, claims, client.InNamespace(h.Namespace), client.MatchingLabels(h.meta("").Labels)); err != nil {
		return fmt.Errorf("list the volumes of etcd: %w", err)
	}
	err := host.Get(ctx, client.ObjectKey{Namespace: h.Namespace, Name: HostedCA}, secret)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Secret %s/%s: %w", h.Namespace, HostedCA, err)
	}
	switch {
	case err != nil && len(claims.Items) > 0:
		return fmt.Errorf("namespace %s has the volume %s of a former hub, but not Secret %s, without which its data cannot be read: put the "+
			"Secret back, or remove the volume with `pelago deinit --purge`", h.Namespace, claims.Items[0].Name, HostedCA)
	case h.StorageClass != "" || h.EtcdEmptyDir || h.EtcdHostPath != "" || len(claims.Items) > 0:
		return nil
	}
	classes := &storagev1.StorageClassList{}
	if err := host.List(ctx, classes); err != nil {
		return fmt.Errorf("list the StorageClasses of the host cluster: %w", err)
	}
	for _, class := range classes.Items {
		if class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" {
			return nil
		}
	}
	return errors.New("the host cluster has no default StorageClass: give --storage-class, or --etcd-host-path with --etcd-node, or " +
		"--etcd-empty-dir for a trial")
}

// address finds out at which addresses the API server, and pelago-hub by Karmada's tools, are
// reached, and keeps the former for other runs.
func (h *Hosted) address(ctx context.Context, host client.Client, progress manifests.Progress) (PKINames, error) {
	s, balancer, err := h.exposed(ctx, host, HostedAPIServer, h.APIAddress == "", progress)
	if err != nil {
		return PKINames{}, err
	}
	h.APIAddress = cmp.Or(h.APIAddress, balancer)
	port := "6443"
	if h.ServiceType == string(corev1.ServiceTypeNodePort) {
		h.NodePort = int(s.Spec.Ports[0].NodePort)
		port = strconv.Itoa(h.NodePort)
		if h.APIAddress == "" {
			if err := h.nodeAddress(ctx, host); err != nil {
				return PKINames{}, err
			}
		}
	}
	name := h.APIAddress
	if n, p, err := net.SplitHostPort(h.APIAddress); err == nil {
		name, port = n, p
	}
	svc := HostedAPIServer + "." + h.Namespace + ".svc"
	etcd := HostedEtcd + "." + h.Namespace + ".svc"
	names := PKINames{
		APIServer: []string{name, HostedAPIServer, svc, svc + ".cluster.local", "kubernetes.default.svc", "localhost", "127.0.0.1"},
		Etcd:      []string{etcd, "*." + etcd, "localhost", "127.0.0.1"},
		Internal:  "https://" + svc + ":6443", External: "https://" + net.JoinHostPort(name, port),
	}
	if !h.KarmadaTools {
		err := host.Delete(ctx, &corev1.Service{ObjectMeta: h.meta(HostedKarmada)}) // of an earlier run
		if client.IgnoreNotFound(err) != nil {
			return names, fmt.Errorf("delete Service %s/%s: %w", h.Namespace, HostedKarmada, err)
		}
		return names, nil
	}
	s, balancer, err = h.exposed(ctx, host, HostedKarmada, true, progress)
	if err != nil {
		return names, err
	}
	at, port := cmp.Or(balancer, name), "6444"
	if n := s.Spec.Ports[0].NodePort; h.ServiceType == string(corev1.ServiceTypeNodePort) {
		port = strconv.Itoa(int(n))
	}
	svc = HostedKarmada + "." + h.Namespace + ".svc"
	names.Karmada = []string{at, HostedKarmada, svc, svc + ".cluster.local", "localhost", "127.0.0.1"}
	names.KarmadaURL = "https://" + net.JoinHostPort(at, port)
	return names, nil
}

// exposed returns a Service of the hub and, if it is a load balancer and that is wanted, waits for
// its address.
func (h *Hosted) exposed(ctx context.Context, host client.Client, name string, address bool,
	progress manifests.Progress) (s *corev1.Service, at string, err error) {
	s = &corev1.Service{}
	if address = address && h.ServiceType == string(corev1.ServiceTypeLoadBalancer); address {
		progress("Waiting for the address of the load balancer")
	}
	key := client.ObjectKey{Namespace: h.Namespace, Name: name}
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, h.Timeout, true, func(ctx context.Context) (bool, error) {
		if err := host.Get(ctx, key, s); err != nil || !address {
			return err == nil, err
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			at = cmp.Or(in.Hostname, in.IP)
		}
		return at != "", nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("wait for the address of Service %s: %w: give --api-address, and not --karmada-tools, if the "+
			"host cluster assigns none", key, err)
	}
	return s, at, nil
}

// nodeAddress takes the address of the first node, in the order of their names, those of the
// control plane first.
func (h *Hosted) nodeAddress(ctx context.Context, host client.Client) error {
	nodes := &corev1.NodeList{}
	if err := host.List(ctx, nodes); err != nil {
		return fmt.Errorf("list the nodes of the host cluster: %w", err)
	}
	var workers, control []string
	for _, node := range nodes.Items {
		for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
			i := slices.IndexFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == kind })
			if i < 0 {
				continue
			}
			if _, ok := node.Labels["node-role.kubernetes.io/control-plane"]; ok {
				control = append(control, node.Status.Addresses[i].Address)
			} else {
				workers = append(workers, node.Status.Addresses[i].Address)
			}
			break
		}
	}
	all := append(control, workers...)
	if len(all) == 0 {
		return errors.New("no node of the host cluster has an address: give --api-address")
	}
	h.APIAddress = all[0]
	return nil
}

// components are the StatefulSets and Deployments among the objects.
func components(ctx context.Context, host client.Client, objs []*unstructured.Unstructured) (out []rollout.Component, err error) {
	for _, u := range objs {
		key, component := client.ObjectKeyFromObject(u), rollout.Component{Kind: u.GetKind(), Name: u.GetName()}
		switch u.GetKind() {
		case "StatefulSet":
			s := &appsv1.StatefulSet{}
			err = host.Get(ctx, key, s)
			component.Ready, component.Want = min(s.Status.ReadyReplicas, s.Status.UpdatedReplicas), ptr.Deref(s.Spec.Replicas, 1)
			component.Current = s.Status.ObservedGeneration >= s.Generation
		case "Deployment":
			d := &appsv1.Deployment{}
			err = host.Get(ctx, key, d)
			component.Ready, component.Want = min(d.Status.ReadyReplicas, d.Status.UpdatedReplicas), ptr.Deref(d.Spec.Replicas, 1)
			component.Current = d.Status.ObservedGeneration >= d.Generation
		default:
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get %s %s: %w", u.GetKind(), key, err)
		}
		out = append(out, component)
	}
	return out, nil
}

// Propagation waits for an API server that has just started, and installs what propagation needs.
func Propagation(ctx context.Context, cfg *rest.Config, timeout time.Duration, progress manifests.Progress) error {
	progress("Waiting for the API server at %s", cfg.Host)
	cfg.QPS, cfg.Burst, cfg.WarningHandler = 50, 100, rest.NoWarnings{}
	probe := rest.CopyConfig(cfg)
	probe.Timeout = 5 * time.Second
	typed, err := kubernetes.NewForConfig(probe)
	if err != nil {
		return fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	c := typed.Discovery().RESTClient()
	var last error
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		if last = c.Get().AbsPath("/readyz").Do(ctx).Error(); last == nil {
			// It is made after readiness.
			last = c.Get().AbsPath("/api/v1/namespaces/default").Do(ctx).Error()
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("reach the API server at %s: %w: members and this command must reach that address; --api-address names another",
			cfg.Host, errors.Join(err, last))
	}
	hub, err := manifests.NewClient(cfg)
	if err != nil {
		return err
	}
	return manifests.Propagation(ctx, hub, manifests.PropagationOptions{}, progress)
}
