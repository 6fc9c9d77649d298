package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy"
)

// hubKubeconfig is the access of pelago-hub as a process outside of the hub: the token of its ServiceAccount, which Secret
// pelago-system/pelago-hub holds. It does not expire, as nobody would renew it; deleting the Secret takes it back.
func hubKubeconfig(ctx context.Context, c client.Client, cfg *rest.Config) ([]byte, error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: deploy.HubName, Namespace: deploy.SystemNamespace,
			Annotations: map[string]string{corev1.ServiceAccountNameKey: deploy.HubName}},
		Type: corev1.SecretTypeServiceAccountToken,
	}
	if err := c.Create(ctx, secret); client.IgnoreAlreadyExists(err) != nil {
		return nil, fmt.Errorf("create Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		last = c.Get(ctx, client.ObjectKeyFromObject(secret), secret)
		return last == nil && len(secret.Data[corev1.ServiceAccountTokenKey]) > 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the token in Secret %s/%s: %w: the hub needs the controller serviceaccount-token of "+
			"kube-controller-manager",
			secret.Namespace, secret.Name, errors.Join(err, last))
	}
	cluster := &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData, InsecureSkipTLSVerify: cfg.Insecure,
		TLSServerName: cfg.ServerName}
	if len(cluster.CertificateAuthorityData) == 0 && cfg.CAFile != "" {
		if cluster.CertificateAuthorityData, err = os.ReadFile(cfg.CAFile); err != nil {
			return nil, fmt.Errorf("read the hub's CA: %w", err)
		}
	}
	const name = "hub"
	kc := clientcmdapi.NewConfig()
	kc.Clusters[name] = cluster
	kc.AuthInfos[deploy.HubName] = &clientcmdapi.AuthInfo{Token: string(secret.Data[corev1.ServiceAccountTokenKey])}
	kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: deploy.HubName}
	kc.CurrentContext = name
	text, err := clientcmd.Write(*kc)
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig of pelago-hub: %w", err)
	}
	return text, nil
}

// writeSecretFile replaces a file by one that its owner alone can read.
func writeSecretFile(file string, text []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-") // mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}
