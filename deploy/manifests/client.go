// Package manifests reads the manifests of Pelago and applies them to API servers.
//
// Hub installs what the broker needs, Member what a joined cluster needs; both may be run again at
// any time and lead to the same state. The packages broker, hub and member call them. Objects are
// written by server-side apply with the field manager "pelago". What belongs to one cluster (its
// configuration and its secrets) is not written here but by its caller.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Manager is the field manager of everything that is installed.
const Manager = "pelago"

// Names that the manifests use.
const (
	// BrokerNamespace is the namespace of the hub in which members meet.
	BrokerNamespace = "submariner-k8s-broker"
	// SystemNamespace is the namespace of a member in which Pelago runs.
	SystemNamespace = "pelago-system"
	// RegistrarAccount is the ServiceAccount, in BrokerNamespace, whose token broker-info.subm
	// carries.
	RegistrarAccount = "submariner-k8s-broker-admin"
	// MemberRole is the Role, in BrokerNamespace, of every member.
	MemberRole = "submariner-k8s-broker-cluster"
	// HubName is the ServiceAccount, the lease and the Deployment of pelago-hub, in SystemNamespace
	// of the hub.
	HubName = "pelago-hub"

	// NodeDaemonSet, AgentDeployment and DNSDeployment run in SystemNamespace; their pods carry the
	// label app with the same value, and their first container has the same name.
	NodeDaemonSet   = "pelago-node"
	AgentDeployment = "pelago-agent"
	DNSDeployment   = "pelago-dns"
	// ExecutionDeployment is pelago-agent in the role execution.
	ExecutionDeployment = "pelago-agent-execution"
)

// devImage is the image of a build without a release.
const devImage = "localhost/pelago:dev"

// DefaultImage is the image that is run when none is named. A release sets it at link time (make
// release IMAGE=…): -ldflags '-X
// github.com/pelago-net/pelago/deploy/manifests.DefaultImage=REGISTRY/pelago:VERSION'
var DefaultImage = devImage

// IsDefault reports whether an image is what an installation runs when none is named: that of this
// build, of another release, or of a build without a release.
func IsDefault(image string) bool {
	of := repository(image)
	return of == repository(DefaultImage) || of == repository(devImage)
}

// repository is the name of an image without its tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		image = image[:i]
	}
	return image
}

// tokenTimeout bounds the wait for the controllers of an API server to issue the token of a
// ServiceAccount.
const tokenTimeout = 3 * time.Minute

// Progress reports a step of an installation, one line each.
type Progress func(format string, args ...any)

// Scheme has all kinds that are read and written in hubs and members.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme,
		clusterv1alpha1.AddToScheme, policyv1alpha1.AddToScheme, workv1alpha1.AddToScheme, workv1alpha2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register the kinds: %w", err)
		}
	}
	return scheme, nil
}

// NewClient makes a client of a hub or a member.
func NewClient(cfg *rest.Config) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the API server at %s: %w", cfg.Host, err)
	}
	return c, nil
}

// Title is a key for messages: the name alone without a namespace.
func Title(key client.ObjectKey) string {
	if key.Namespace == "" {
		return key.Name
	}
	return key.String()
}

// Kind is the kind of an object for messages.
func Kind(c client.Client, obj client.Object) string {
	gvk, err := c.GroupVersionKindFor(obj)
	if err != nil {
		return fmt.Sprintf("%T", obj)
	}
	return gvk.Kind
}

// Put creates the object or changes the existing one, and retries on conflicts with other writers.
func Put(ctx context.Context, c client.Client, obj client.Object, set func()) error {
	retryable := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultBackoff, retryable, func() error {
		_, err := controllerutil.CreateOrUpdate(ctx, c, obj, func() error { set(); return nil })
		return err
	})
	if err != nil {
		return fmt.Errorf("write %s %s: %w", Kind(c, obj), Title(client.ObjectKeyFromObject(obj)), err)
	}
	return nil
}

// poll calls do every interval until it succeeds. The error of a timeout has the last error of do.
func poll(ctx context.Context, interval, timeout time.Duration, do func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(ctx context.Context) (bool, error) {
		last = do(ctx)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// AccountToken waits until the API server has issued the token of the Secret of a ServiceAccount,
// and returns it with the CA of the API server, PEM.
func AccountToken(ctx context.Context, c client.Client, key client.ObjectKey) (token, ca []byte, err error) {
	secret := &corev1.Secret{}
	err = poll(ctx, 100*time.Millisecond, tokenTimeout, func(ctx context.Context) error {
		if err := c.Get(ctx, key, secret); err != nil {
			return err
		}
		if len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			return errors.New("the Secret has no token yet")
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("wait for the token in Secret %s: %w: the controller serviceaccount-token of kube-controller-manager "+
			"must run there", key, err)
	}
	return secret.Data[corev1.ServiceAccountTokenKey], secret.Data[corev1.ServiceAccountRootCAKey], nil
}

// PublishedCA waits for the CA that the API server publishes in every namespace, PEM.
func PublishedCA(ctx context.Context, c client.Client, namespace string) ([]byte, error) {
	cm := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: namespace, Name: "kube-root-ca.crt"}
	err := poll(ctx, 200*time.Millisecond, 10*time.Second, func(ctx context.Context) error { return c.Get(ctx, key, cm) })
	if err != nil {
		return nil, fmt.Errorf("find the hub's CA: the kubeconfig has none, and ConfigMap %s: %w: use a kubeconfig with certificate-authority-data", key, err)
	}
	return []byte(cm.Data["ca.crt"]), nil
}
