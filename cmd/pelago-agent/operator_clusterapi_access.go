package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy"
)

// hubAccess is the hub; kubeconfig is empty if it is the operator's own API server.
type hubAccess struct {
	client.Client
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
	cfg.Timeout = 30 * time.Second
	c, err := deploy.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	r.hub = &hubAccess{c, kubeconfig}
	return r.hub, nil
}

// kubeconfig is the administrator's access to a cluster.
func (r *capi) kubeconfig(ctx context.Context, key client.ObjectKey) (credential, error) {
	secret := &corev1.Secret{}
	name := client.ObjectKey{Namespace: key.Namespace, Name: key.Name + "-kubeconfig"}
	f := credential{name: "member", from: "Secret " + name.String()}
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

// credential is a file to pass to pelago: arguments refer to it as @name, and error messages as from.
type credential struct {
	name, from string
	content    []byte
}

func (h *hubAccess) flags() []string {
	if len(h.kubeconfig) == 0 {
		return nil
	}
	return []string{"--kubeconfig=@hub"}
}

func (h *hubAccess) files() []credential {
	if len(h.kubeconfig) == 0 {
		return nil
	}
	return []credential{{"hub", "that of the hub", h.kubeconfig}}
}

// run runs pelago with files.
func (r *capi) run(ctx context.Context, files []credential, args ...string) error {
	return inDirectory(func(dir string) error {
		paths, names := []string{}, []string{}
		for _, f := range files {
			path := filepath.Join(dir, f.name)
			if err := os.WriteFile(path, f.content, 0o600); err != nil {
				return fmt.Errorf("write %s for pelago: %w", f.from, err)
			}
			paths, names = append(paths, "@"+f.name, path), append(names, path, f.from)
		}
		replace := strings.NewReplacer(paths...)
		with := slices.Clone(args)
		for i, arg := range with {
			with[i] = replace.Replace(arg)
		}
		err := r.pelago(ctx, with...)
		if err == nil {
			return nil
		}
		message := err.Error()
		if refused := (refusal{}); errors.As(err, &refused) { // the fields are those of another kind
			message = refused.message
		}
		return errors.New(strings.NewReplacer(names...).Replace(message))
	})
}
