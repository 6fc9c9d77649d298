package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

const (
	// probeTime is how long workload controllers may take to observe a Deployment.
	probeTime = 5 * time.Second
	// leaseAlive is how old a lease may be whose holder counts as running.
	leaseAlive = 2 * time.Minute
)

// RunsWorkloads reports whether workload controllers run at the API server: they set the status of
// a Deployment, also of one without replicas. The Deployment is in a namespace that every API
// server has, and is removed again.
func RunsWorkloads(ctx context.Context, c client.Client) (runs bool, err error) {
	const namespace = metav1.NamespaceDefault
	labels := map[string]string{"app": "pelago-init-probe"}
	probe := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pelago-init-probe-", Namespace: namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "none", Image: manifests.DefaultImage}}}},
		},
	}
	if err := c.Create(ctx, probe); err != nil {
		return false, fmt.Errorf("create a Deployment without replicas in namespace %s, to find out whether its controller runs: %w",
			namespace, err)
	}
	defer func() {
		if failed := c.Delete(ctx, probe); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove the probe, Deployment %s/%s: %w", namespace, probe.Name, failed))
		}
	}()
	var failed error
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, probeTime, true, func(context.Context) (bool, error) {
		// not the limited context: the last request completes
		failed = c.Get(ctx, client.ObjectKeyFromObject(probe), probe)
		return probe.Status.ObservedGeneration >= 1, failed
	})
	if ctx.Err() != nil || failed != nil {
		return false, fmt.Errorf("get Deployment %s/%s: %w", namespace, probe.Name, err)
	}
	return err == nil, nil
}

// RefuseKarmada refuses an API server that Karmada uses: two controllers would write the same
// objects, and where its aggregated API is registered, Clusters of ours are not served.
func RefuseKarmada(ctx context.Context, c client.Client) error {
	service := &unstructured.Unstructured{}
	service.SetAPIVersion("apiregistration.k8s.io/v1")
	service.SetKind("APIService")
	const name = "v1alpha1.cluster.karmada.io"
	switch err := c.Get(ctx, client.ObjectKey{Name: name}, service); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("get APIService %s: %w", name, err)
	default:
		// The API server itself creates an APIService without a service for the group version of
		// every CRD.
		if spec, ok, err := unstructured.NestedMap(service.Object, "spec", "service"); err == nil && ok && spec != nil {
			return fmt.Errorf("this API server belongs to Karmada: APIService %s leads to its service %v/%v. Use another API server, or "+
				"remove Karmada first with `karmadactl deinit`",
				name, spec["namespace"], spec["name"])
		}
	}
	leases := &coordinationv1.LeaseList{}
	const namespace = "karmada-system"
	if err := c.List(ctx, leases, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the Leases of namespace %s: %w", namespace, err)
	}
	for _, l := range leases.Items {
		if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" || l.Spec.RenewTime == nil {
			continue
		}
		if age := time.Since(l.Spec.RenewTime.Time); age < leaseAlive {
			return fmt.Errorf("this API server is used by Karmada: Lease %s/%s of %s was renewed %s ago. Stop its controllers first; its "+
				"policies and bindings may stay",
				namespace, l.Name, *l.Spec.HolderIdentity, age.Round(time.Second))
		}
	}
	return nil
}

// Kubeconfig is the access of pelago-hub as a process outside of the hub: the token of its
// ServiceAccount, which Secret pelago-system/pelago-hub holds. The token does not expire, since no
// component could renew it; deleting the Secret revokes it.
func Kubeconfig(ctx context.Context, cfg *rest.Config, c client.Client) ([]byte, error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: manifests.HubName, Namespace: manifests.SystemNamespace,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: manifests.HubName}},
		Type: corev1.SecretTypeServiceAccountToken,
	}
	if err := c.Create(ctx, secret); client.IgnoreAlreadyExists(err) != nil {
		return nil, fmt.Errorf("create Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	token, _, err := manifests.AccountToken(ctx, c, client.ObjectKeyFromObject(secret))
	if err != nil {
		return nil, err
	}
	const name = "hub"
	kc := clientcmdapi.NewConfig()
	kc.Clusters[name] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData,
		InsecureSkipTLSVerify: cfg.Insecure, TLSServerName: cfg.ServerName}
	kc.AuthInfos[manifests.HubName] = &clientcmdapi.AuthInfo{Token: string(token)}
	kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: manifests.HubName}
	kc.CurrentContext = name
	text, err := clientcmd.Write(*kc)
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig of pelago-hub: %w", err)
	}
	return text, nil
}
