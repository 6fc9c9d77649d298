package access

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
)

const (
	// renewBefore is the remaining validity below which the certificate is replaced, of a year.
	renewBefore = 120 * 24 * time.Hour
	// registerEvery is the interval in which the registration is verified, registerAgain that after
	// an error.
	registerEvery = 10 * time.Minute
	registerAgain = 5 * time.Second
	// keyFormer is the key of the Secret with the certificate before, which replicas serve until
	// they read the Secret again.
	keyFormer = "former.crt"
	// defaultPort is that of the Service of the Deployment.
	defaultPort = "8443"
)

// registration makes the server known to the hub's API server: Secret with its certificate,
// Service, APIService.
type registration struct {
	Options
	client client.Client
	live   client.Reader
	port   string // of Address
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *registration) NeedLeaderElection() bool { return true }

// Start keeps the registration until ctx ends.
func (r *registration) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		next := registerEvery
		if err := r.register(ctx); err != nil && ctx.Err() == nil {
			r.Log.Error("registering the access to members failed", "error", err, "again", registerAgain)
			next = registerAgain
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait.Jitter(next, 0.1)):
		}
	}
	return nil
}

// register trusts a new certificate before a replica serves it.
func (r *registration) register(ctx context.Context) error {
	key := r.secret()
	secret := &corev1.Secret{}
	err := r.live.Get(ctx, key, secret)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("get Secret %s: %w", key, err)
	}
	missing := apierrors.IsNotFound(err)
	renewed := false
	if c, err := readCertificate(ctx, r.live, key); err != nil || time.Until(c.Leaf.NotAfter) < renewBefore {
		// which the API server verifies, whatever the address
		name := r.Name + "." + r.Namespace + ".svc"
		text, private, err := cert.GenerateSelfSignedCertKey(name, nil, nil)
		if err != nil {
			return fmt.Errorf("make the certificate of %s: %w", name, err)
		}
		secret.Namespace, secret.Name, secret.Type = key.Namespace, key.Name, corev1.SecretTypeTLS
		secret.Data = map[string][]byte{corev1.TLSCertKey: text, corev1.TLSPrivateKeyKey: private, keyFormer: secret.Data[corev1.TLSCertKey]}
		renewed = true
	}
	port, err := r.service(ctx)
	if err != nil {
		return err
	}
	owners, err := r.owners(ctx)
	if err != nil {
		return err
	}
	for _, gv := range r.groups() {
		service := r.apiService(gv, port, append(secret.Data[corev1.TLSCertKey], secret.Data[keyFormer]...))
		service.SetOwnerReferences(owners)
		if err := r.apply(ctx, service); err != nil {
			return err
		}
	}
	switch {
	case missing:
		err = r.client.Create(ctx, secret)
	case renewed:
		err = r.client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", key, err)
	}
	return nil
}

// service makes the Service, or finds that of the Deployment, and returns the port to ask it for.
func (r *registration) service(ctx context.Context) (int64, error) {
	host, port := r.Host, r.port
	if before, after, ok := strings.Cut(r.Host, ":"); ok {
		host, port = before, after
	}
	if r.Host == "" {
		port = defaultPort
		key := client.ObjectKey{Namespace: r.Namespace, Name: r.Name}
		if err := r.live.Get(ctx, key, &corev1.Service{}); err != nil {
			return 0, fmt.Errorf("find Service %s, which leads the hub's API server to pelago-hub: %w: give --proxy-host, or run `pelago init`",
				key, err)
		}
	}
	n, err := strconv.ParseInt(port, 10, 32)
	if err != nil || r.Host == "" {
		return n, err
	}
	return n, r.apply(ctx, object("v1", "Service", r.Namespace, r.Name, map[string]any{
		"type": string(corev1.ServiceTypeExternalName), "externalName": host,
		"ports": []any{map[string]any{"name": "https", "protocol": "TCP", "port": n}},
	}))
}

// owners returns the owner references of the APIServices: the ClusterRole of pelago-hub, so that
// they are deleted with it, whatever removes it (helm uninstall). While an APIService is
// unavailable, the API server does not complete the deletion of any namespace.
func (r *registration) owners(ctx context.Context) ([]metav1.OwnerReference, error) {
	role := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"}}
	if err := r.live.Get(ctx, client.ObjectKey{Name: r.Name}, role); err != nil {
		if apierrors.IsNotFound(err) { // of other rights, such as an administrator's
			return nil, nil
		}
		return nil, fmt.Errorf("get ClusterRole %s, which owns the APIServices: %w", r.Name, err)
	}
	return []metav1.OwnerReference{{APIVersion: role.APIVersion, Kind: role.Kind, Name: role.Name, UID: role.UID}}, nil
}

func (r *registration) groups() []schema.GroupVersion {
	groups := []schema.GroupVersion{{Group: pelagov1alpha1.ProxyGroup, Version: pelagov1alpha1.ProxyVersion}}
	if r.Hub != nil {
		groups = append(groups, searchv1alpha1.GroupVersion)
	}
	return groups
}

// apiService sets the automanaged label to a value that keeps the hub's API server from managing
// the APIService, as it otherwise does for each version of a CRD. The priorities are those of CRDs,
// except that of the version: v1alpha1 is preferred to stored.
func (r *registration) apiService(gv schema.GroupVersion, port int64, ca []byte) *unstructured.Unstructured {
	u := object("apiregistration.k8s.io/v1", "APIService", "", gv.Version+"."+gv.Group, map[string]any{
		"group": gv.Group, "version": gv.Version,
		"groupPriorityMinimum": int64(1000), "versionPriority": int64(200), "caBundle": base64.StdEncoding.EncodeToString(ca),
		"service": map[string]any{"namespace": r.Namespace, "name": r.Name, "port": port},
	})
	u.SetLabels(map[string]string{"app": r.Name, "kube-aggregator.kubernetes.io/automanaged": "false"})
	return u
}

func (r *registration) apply(ctx context.Context, u *unstructured.Unstructured) error {
	err := r.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(r.Name), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", u.GetKind(), u.GetName(), err)
	}
	return nil
}

func object(version, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	meta := map[string]any{"name": name, "labels": map[string]any{"app": name}}
	if namespace != metav1.NamespaceNone {
		meta["namespace"] = namespace
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}}
}
