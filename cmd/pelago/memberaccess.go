package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// errNoWay says that nothing at the hub leads to a member: its agent comes to the hub.
var errNoWay = errors.New("it is a pull member")

// memberConfig is the access to a member: a context of the kubeconfig if the user names one, else what the hub itself uses.
func (h *hub) memberConfig(
	ctx context.Context, c *clusterv1alpha1.Cluster, a *access, contexts map[string]string,
) (*rest.Config, error) {
	if name, ok := contexts[c.Name]; ok {
		return a.configOf(name)
	}
	if c.Spec.SyncMode == clusterv1alpha1.Pull {
		return nil, errNoWay
	}
	ref := c.Spec.SecretRef
	if ref == nil || c.Spec.APIEndpoint == "" {
		return nil, fmt.Errorf("the hub has neither Secret nor address of it: name a context with --member-context %s=CONTEXT", c.Name)
	}
	secret := &corev1.Secret{}
	if err := h.client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, secret); err != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w (or name a context with --member-context %s=CONTEXT)",
			ref.Namespace, ref.Name, err, c.Name)
	}
	return secretConfig(&c.Spec, secret.Data)
}

// secretConfig is pure.
func secretConfig(spec *clusterv1alpha1.ClusterSpec, data map[string][]byte) (*rest.Config, error) {
	cfg := &rest.Config{
		Host: spec.APIEndpoint, BearerToken: string(data[clusterv1alpha1.SecretKeyToken]), QPS: 50, Burst: 100,
		Timeout: 30 * time.Second, WarningHandler: rest.NoWarnings{},
	}
	if cfg.TLSClientConfig.Insecure = spec.InsecureSkipTLSVerification; !cfg.TLSClientConfig.Insecure {
		cfg.TLSClientConfig.CAData = data[clusterv1alpha1.SecretKeyCA]
	}
	if spec.ProxyURL != "" {
		proxy, err := url.Parse(spec.ProxyURL)
		if err != nil {
			return nil, fmt.Errorf("read proxyURL: %w", err)
		}
		if len(spec.ProxyHeader) > 0 {
			return nil, errors.New("its proxy wants headers, which this command does not send: name a context with --member-context")
		}
		cfg.Proxy = http.ProxyURL(proxy)
	}
	return cfg, nil
}
