package hub

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Names of a hub in a host cluster, in its namespace there. All its objects have the label.
const (
	HostedLabel = "app.kubernetes.io/part-of"
	HostedValue = "pelago-hub"
	// HostedCA holds PKI.Kept, HostedPKI holds PKI.Issued: Secrets.
	HostedCA  = "pelago-hub-ca"
	HostedPKI = "pelago-hub-pki"
	// HostedFormerCA is the HostedCA from before a restore: the former data, which stay on the
	// volumes, cannot be read without it.
	HostedFormerCA = "pelago-hub-ca-former"
	// HostedSettings is a ConfigMap with spec.Hub.Settings of the installation.
	HostedSettings = "pelago-hub-install"
	// HostedAPIServer is the Service and the Deployment of the API server, HostedEtcd those of
	// etcd.
	HostedAPIServer         = "pelago-hub-apiserver"
	HostedEtcd              = "pelago-hub-etcd"
	HostedControllerManager = "pelago-hub-controller-manager"
	// HostedKarmada is the Service by which Karmada's tools reach pelago-hub.
	HostedKarmada = "pelago-hub-karmada"
)

// Machine is where the processes of a hub run that has no host cluster: their directory, and the
// address of the API server, which listens on port. The others listen on the ports from there on,
// at 127.0.0.1.
type Machine struct {
	Dir, Address string
	Port         int
}

// optional is a text that a template tests with if: an empty text would be rendered quoted, and so
// count as true.
func optional(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// images are the images of etcd, kube-apiserver and kube-controller-manager, by program.
func images(h spec.Hub) (map[string]string, error) {
	text, err := deploy.Files.ReadFile("hosted/images.yaml")
	if err != nil {
		return nil, fmt.Errorf("read the names of the images: %w", err)
	}
	out := map[string]string{}
	if err := yaml.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read the names of the images: %w", err)
	}
	given := map[string]string{"etcd": h.EtcdImage, "kube-apiserver": h.APIServerImage, "kube-controller-manager": h.ControllerManagerImage}
	for program, name := range out {
		if _, rest, ok := strings.Cut(name, "/"); ok && h.ImageRegistry != "" {
			name = strings.TrimSuffix(h.ImageRegistry, "/") + "/" + rest
		}
		out[program] = cmp.Or(given[program], name)
	}
	return out, nil
}

// values are the parameters of the templates in hosted/.
func values(h spec.Hub) (map[string]any, error) {
	images, err := images(h)
	if err != nil {
		return nil, err
	}
	v := h.Options().Values()
	maps.Copy(v, map[string]any{
		"Hosted": true, "Namespace": h.Namespace, "Accounts": "system:serviceaccounts:" + h.Namespace, "EtcdReplicas": h.EtcdReplicas, "Replicas": min(h.EtcdReplicas, 2),
		"StorageClass": optional(h.StorageClass), "StorageSize": h.StorageSize, "EmptyDir": h.EtcdEmptyDir,
		"HostPath": optional(h.EtcdHostPath), "Node": optional(h.EtcdNode),
		"ServiceType": h.ServiceType, "NodePort": h.NodePort, "KarmadaTools": h.KarmadaTools, "EtcdImage": images["etcd"],
		"APIServerImage": images["kube-apiserver"], "ControllerManagerImage": images["kube-controller-manager"],
		"PKI": manifests.Raw("/etc/pelago"), "Audit": manifests.Raw("/etc/pelago-audit"), "AuditLog": manifests.Raw("-"), "Data": manifests.Raw("/var/lib/pelago"),
		"Tmp": manifests.Raw("/tmp"), "Advertise": manifests.Raw(""), "Bind": manifests.Raw("0.0.0.0"), "EtcdName": manifests.Raw("$(POD_NAME)"),
		"EtcdHost":    manifests.Raw(fmt.Sprintf("$(POD_NAME).%s.%s.svc", HostedEtcd, h.Namespace)),
		"ProxyHost":   manifests.Raw(fmt.Sprintf("%s.%s.svc:8443", manifests.HubName, h.Namespace)),
		"EtcdServers": manifests.Raw(strings.Join(members(h, "", ":2379"), ",")), "EtcdCluster": manifests.Raw(strings.Join(members(h, "=", ":2380"), ",")),
		"ClientPort": 2379, "PeerPort": 2380, "MetricsPort": 2381, "SecurePort": 6443, "ManagerPort": 10257,
	})
	return v, nil
}

// values are those parameters that differ from the ones of pods.
func (m Machine) values() map[string]any {
	local := func(port int) manifests.Raw { return manifests.Raw(fmt.Sprintf("https://127.0.0.1:%d", m.Port+port)) }
	dir := manifests.Raw(m.Dir)
	return map[string]any{
		"PKI": dir + "/pki", "Audit": dir, "AuditLog": dir + "/audit.log", "Data": dir, "Tmp": dir,
		"Advertise": manifests.Raw(m.Address), "Bind": manifests.Raw("127.0.0.1"), "EtcdName": manifests.Raw("etcd"), "EtcdHost": manifests.Raw("127.0.0.1"),
		"EtcdServers": local(1), "EtcdCluster": "etcd=" + local(2),
		"SecurePort": m.Port, "ClientPort": m.Port + 1, "PeerPort": m.Port + 2, "MetricsPort": m.Port + 3, "ManagerPort": m.Port + 4,
	}
}

// members are the URLs of etcd's members; with a separator, each after its name.
func members(h spec.Hub, separator, port string) (urls []string) {
	for i := range h.EtcdReplicas {
		name, url := fmt.Sprintf("%s-%d", HostedEtcd, i), ""
		if separator != "" {
			url = name + separator
		}
		urls = append(urls, fmt.Sprintf("%shttps://%s.%s.%s.svc%s", url, name, HostedEtcd, h.Namespace, port))
	}
	return urls
}

// Stages of Manifests.
const (
	stageService = iota
	stageEtcd
	stageAPIServer
	stageControllers
	stageHub
)

// Manifests returns the objects of the hub in the host cluster, in stages that depend on the
// previous ones: what the pods need to be admitted and the Service of the API server; etcd; the API
// server; controllers (never newer than the API server); and pelago-hub, which also needs its CRDs
// to be installed. Secrets are not included.
func Manifests(h spec.Hub) ([][]*unstructured.Unstructured, error) {
	values, err := values(h)
	if err != nil {
		return nil, err
	}
	return staged(h, values)
}

func staged(h spec.Hub, values map[string]any) (stages [][]*unstructured.Unstructured, err error) {
	stages = make([][]*unstructured.Unstructured, stageHub+1)
	for stage, files := range [][]string{
		stageService: {"hosted/namespace.yaml", "hosted/service.yaml"}, stageEtcd: {"hosted/etcd.yaml"}, stageAPIServer: {"hosted/apiserver.yaml"},
		stageControllers: {"hosted/controller-manager.yaml", "hosted/renewal.yaml"}, stageHub: {"propagation/workloads/hub.yaml"},
	} {
		if stages[stage], err = manifests.Objects(values, files...); err != nil {
			return nil, err
		}
	}
	// unjoin does not remove a namespace in which this account exists.
	stages[stageHub] = append(stages[stageHub], &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1",
		"kind": "ServiceAccount", "metadata": map[string]any{"name": manifests.HubName}}})
	for _, u := range slices.Concat(stages...) {
		own(h, u)
	}
	return stages, nil
}

func own(h spec.Hub, u *unstructured.Unstructured) {
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[HostedLabel] = HostedValue
	u.SetLabels(labels)
	u.SetNamespace(h.Namespace)
}

// RestorePod is the pod that puts a snapshot into the volume of etcd member i. restore is the name
// of the restore, used as a file name and the same in all attempts.
func RestorePod(h spec.Hub, i int, restore string) (*corev1.Pod, error) {
	values, err := values(h)
	if err != nil {
		return nil, err
	}
	member := fmt.Sprintf("%s-%d", HostedEtcd, i)
	values["RestorePod"], values["Claim"], values["Restore"] = fmt.Sprintf("pelago-hub-restore-%d", i), "data-"+member, manifests.Raw(restore)
	values["EtcdName"], values["EtcdHost"] = manifests.Raw(member), manifests.Raw(fmt.Sprintf("%s.%s.%s.svc", member, HostedEtcd, h.Namespace))
	objs, err := manifests.Objects(values, "hosted/restore.yaml")
	if err != nil {
		return nil, err
	}
	own(h, objs[0])
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objs[0].Object, pod); err != nil {
		return nil, fmt.Errorf("read manifest hosted/restore.yaml: %w", err)
	}
	return pod, nil
}

// Process is a program of the hub on one machine, with its arguments.
type Process struct {
	Name string
	Args []string
}

// Processes are etcd, kube-apiserver and kube-controller-manager of a hub on one machine, with the
// arguments that they have in a host cluster, and the audit policy.
func (m Machine) Processes() (processes []Process, audit string, err error) {
	h := spec.Hub{EtcdReplicas: 1}
	values, err := values(h)
	if err != nil {
		return nil, "", err
	}
	maps.Copy(values, m.values())
	stages, err := staged(h, values)
	if err != nil {
		return nil, "", err
	}
	for _, u := range slices.Concat(stages[stageEtcd:stageHub]...) {
		containers, ok, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return nil, "", fmt.Errorf("read the containers of %s: %w", u.GetName(), err)
		}
		if u.GetKind() == "ConfigMap" {
			audit, _, _ = unstructured.NestedString(u.Object, "data", "audit.yaml")
		}
		if !ok {
			continue
		}
		c := containers[0].(map[string]any)
		args, _, err := unstructured.NestedStringSlice(c, "args")
		if err != nil {
			return nil, "", fmt.Errorf("read the arguments of %s: %w", u.GetName(), err)
		}
		processes = append(processes, Process{Name: c["name"].(string), Args: args})
	}
	return processes, audit, nil
}

// ApplyHosted writes objects of the hub into the host cluster.
func ApplyHosted(ctx context.Context, host client.Client, objs []*unstructured.Unstructured) error {
	return manifests.ApplyAll(ctx, host, objs)
}

// RemoveHosted removes from the namespace of the host cluster what has the label. Volumes of etcd,
// and the Secrets without which their data cannot be read, go with purge only.
func RemoveHosted(ctx context.Context, host client.Client, namespace string, purge bool) error {
	kinds := []client.Object{&batchv1.CronJob{}, &appsv1.Deployment{}, &appsv1.StatefulSet{}, &policyv1.PodDisruptionBudget{},
		&corev1.Service{}, &corev1.Pod{}, &corev1.ResourceQuota{}, &rbacv1.RoleBinding{}, &rbacv1.Role{}, &corev1.ServiceAccount{}}
	if purge {
		kinds = append(kinds, &corev1.PersistentVolumeClaim{})
	}
	var errs []error
	for _, kind := range kinds {
		if err := deleteHosted(ctx, host, kind, namespace, nil); err != nil {
			errs = append(errs, err)
		}
	}
	keep := []string{HostedCA, HostedFormerCA, HostedSettings}
	if purge {
		keep = nil
	}
	return errors.Join(append(errs, deleteHosted(ctx, host, &corev1.Secret{}, namespace, keep),
		deleteHosted(ctx, host, &corev1.ConfigMap{}, namespace, keep))...)
}

// deleteHosted deletes the objects of a kind that have the label; Services cannot be deleted as a
// collection by old API servers.
func deleteHosted(ctx context.Context, host client.Client, kind client.Object, namespace string, keep []string) error {
	gvk, err := host.GroupVersionKindFor(kind)
	if err != nil {
		return fmt.Errorf("find kind %T: %w", kind, err)
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk)
	if err := host.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{HostedLabel: HostedValue}); err != nil {
		return fmt.Errorf("list %ss of namespace %s: %w", gvk.Kind, namespace, err)
	}
	var errs []error
	for i := range list.Items {
		obj := &list.Items[i]
		if slices.Contains(keep, obj.Name) {
			continue
		}
		if err := host.Delete(ctx, obj, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("delete %s %s/%s: %w", gvk.Kind, namespace, obj.Name, err))
		}
	}
	return errors.Join(errs...)
}

// HostedMeta names an object of the hub, with the label.
func HostedMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{HostedLabel: HostedValue}}
}

// CompletePKI reads the keys and certificates of the hub from their Secrets, completes them and
// writes what has changed.
func CompletePKI(ctx context.Context, host client.Client, namespace string, names PKINames, now time.Time) (PKI, []string, error) {
	var pki PKI
	parts := map[string]*map[string][]byte{HostedCA: &pki.Kept, HostedPKI: &pki.Issued}
	secrets := map[string]*corev1.Secret{}
	for name, data := range parts {
		s := &corev1.Secret{}
		err := host.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, s)
		if client.IgnoreNotFound(err) != nil {
			return pki, nil, fmt.Errorf("get Secret %s/%s: %w", namespace, name, err)
		}
		if err == nil {
			secrets[name], *data = s, maps.Clone(s.Data)
		}
	}
	renewed, err := pki.Complete(names, now)
	if err != nil {
		return pki, nil, err
	}
	// The authorities first: nothing is signed by one that is lost.
	for _, name := range []string{HostedCA, HostedPKI} {
		s, data := secrets[name], *parts[name]
		switch {
		case s == nil:
			err = host.Create(ctx, &corev1.Secret{ObjectMeta: HostedMeta(namespace, name), Data: data})
		case !maps.EqualFunc(s.Data, data, bytes.Equal):
			s.Data = data
			err = host.Update(ctx, s)
		}
		if err != nil {
			return pki, nil, fmt.Errorf("write Secret %s/%s: %w", namespace, name, err)
		}
	}
	return pki, renewed, nil
}
