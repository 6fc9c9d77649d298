package operator

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
)

// hubAccess is the hub; kubeconfig is empty if it is the operator's own API server.
type hubAccess struct {
	client.Client
	cluster    manifests.Cluster
	kubeconfig []byte
}

// openHub opens the hub of Secret HubSecret, or the operator's own API server.
func (r *capi) openHub(ctx context.Context) (*hubAccess, error) {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: r.namespace, Name: v1alpha1.HubSecret}
	err := r.live.Get(ctx, key, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s: %w", key, err)
	}
	cfg := rest.CopyConfig(r.manager.GetConfig())
	var kubeconfig []byte
	if err == nil {
		if kubeconfig, err = vetted(secret.Data[v1alpha1.HubSecretKey]); err != nil {
			return nil, fmt.Errorf("key %s of Secret %s, the access to the hub: %w", v1alpha1.HubSecretKey, key, err)
		}
		if cfg, err = clientcmd.RESTConfigFromKubeConfig(kubeconfig); err != nil {
			return nil, fmt.Errorf("key %s of Secret %s gives no access to a hub: check its certificates", v1alpha1.HubSecretKey, key)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hub != nil && string(r.hub.kubeconfig) == string(kubeconfig) {
		return r.hub, nil
	}
	c, err := manifests.Open(cfg)
	if err != nil {
		return nil, err
	}
	r.hub = &hubAccess{c.Client, c, kubeconfig}
	return r.hub, nil
}

// kubeconfig is the administrator's access to a cluster.
func (r *capi) kubeconfig(ctx context.Context, key client.ObjectKey) (credential, error) {
	secret := &corev1.Secret{}
	name := client.ObjectKey{Namespace: key.Namespace, Name: key.Name + "-kubeconfig"}
	f := credential{from: "Secret " + name.String()}
	err := r.live.Get(ctx, name, secret)
	switch {
	case apierrors.IsNotFound(err):
		return f, reported{reasonJoinPending, f.from + " is missing: Cluster API makes it with the control plane"}
	case err != nil:
		return f, fmt.Errorf("get %s: %w", f.from, err)
	case secret.Type != capiSecretType:
		return f, refusal{"", fmt.Sprintf("%s has type %q, not %s: it is not Cluster API's", f.from, secret.Type, capiSecretType)}
	case len(secret.Data[capiSecretKey]) == 0:
		return f, reported{reasonJoinPending, f.from + " has no key " + capiSecretKey + " yet"}
	}
	if f.content, err = vetted(secret.Data[capiSecretKey]); err != nil {
		return f, refusal{"", fmt.Sprintf("%s: %v", f.from, err)}
	}
	return f, nil
}

// credential is the administrator's access to a cluster.
type credential struct {
	from    string // the Secret, for messages
	content []byte // a kubeconfig
}

// config is the access as client-go has it.
func (c credential) config() (*rest.Config, error) {
	cfg, err := clientcmd.RESTConfigFromKubeConfig(c.content)
	if err != nil {
		// the cause could quote it
		return nil, fmt.Errorf("%s gives no access to a cluster: check its certificates", c.from)
	}
	return cfg, nil
}

func (c credential) open() (manifests.Cluster, error) {
	cfg, err := c.config()
	if err != nil {
		return manifests.Cluster{}, err
	}
	return manifests.Open(cfg)
}

// push opens a cluster that the hub is to write, and returns the URL of the proxy on the way to it.
func (c credential) push() (manifests.Cluster, string, error) {
	cfg, err := c.config()
	if err != nil {
		return manifests.Cluster{}, "", err
	}
	opened, proxy, err := member.OpenPush(cfg)
	if err != nil {
		return opened, "", fmt.Errorf("reach the cluster by %s: %w", c.from, err)
	}
	return opened, proxy, nil
}
