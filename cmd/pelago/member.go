package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
)

// Names of what join writes besides the manifests.
const (
	// keyProof is the key of submariner-broker-secret that holds the UID of the registration at the hub.
	keyProof = "registration-uid"
	// clusterEgress is the only ClusterGlobalEgressIP that is honoured.
	clusterEgress = "cluster-egress.submariner.io"
	// clusterEgressIPs is the number of addresses that it asks for at first.
	clusterEgressIPs = 8
)

// member is a cluster that Pelago runs in, or will.
type member struct {
	config *rest.Config
	typed  kubernetes.Interface
	client client.Client
}

func openMember(cfg *rest.Config) (*member, error) {
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster at %s: %w", cfg.Host, err)
	}
	scheme, err := memberScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reach the cluster at %s: %w", cfg.Host, err)
	}
	return &member{config: cfg, typed: typed, client: c}, nil
}

// member opens the cluster that the flags name.
func (a *access) member() (*member, error) {
	cfg, err := a.config()
	if err != nil {
		return nil, err
	}
	return openMember(cfg)
}

// memberScheme has the kinds that are read and written in a member.
func memberScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("make a client: %w", err)
		}
	}
	return scheme, nil
}

// former is the configuration that an earlier join has left; the zero value if there is none.
func (m *member) former(ctx context.Context) (config.Config, error) {
	cm := &corev1.ConfigMap{}
	err := m.client.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, cm)
	if apierrors.IsNotFound(err) {
		return config.Config{}, nil
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("get ConfigMap %s/%s: %w", config.SystemNamespace, config.ConfigMapName, err)
	}
	return config.Parse(cm.Data)
}

// proof is what an earlier join has kept, "" if there is none.
func (m *member) proof(ctx context.Context) (types.UID, error) {
	value, err := m.secretKey(ctx, config.BrokerSecretName, keyProof)
	return types.UID(value), err
}

// secretKey reads a key of a Secret of the system namespace; nil if there is none.
func (m *member) secretKey(ctx context.Context, name, key string) ([]byte, error) {
	secret := &corev1.Secret{}
	err := m.client.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w", config.SystemNamespace, name, err)
	}
	return secret.Data[key], nil
}

// keepProof writes all of the member's credential but the token.
func (m *member) keepProof(ctx context.Context, info broker.Info, proof types.UID) error {
	return m.changeSecret(ctx, config.BrokerSecretName, func(data map[string][]byte) {
		data[config.KeyBrokerCA] = info.CA()
		data[config.KeyNamespace] = []byte(info.Namespace())
		data[config.KeyBrokerServer] = []byte(info.BrokerURL)
		data[keyProof] = []byte(proof)
	})
}

func (m *member) keepToken(ctx context.Context, token string) error {
	return m.changeSecret(ctx, config.BrokerSecretName, func(data map[string][]byte) {
		data[config.KeyBrokerToken] = []byte(token)
	})
}

// configure writes what the components read; c is valid.
func (m *member) configure(ctx context.Context, info broker.Info, c config.Config) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}}
	if err := m.put(ctx, cm, func() { cm.Data = c.Data() }); err != nil {
		return err
	}
	if err := m.changeSecret(ctx, config.PSKSecretName, func(data map[string][]byte) {
		data[config.KeyPSK] = info.IPSecPSK.Data["psk"]
	}); err != nil {
		return err
	}
	if err := m.changeSecret(ctx, config.OverlayTokenSecretName, func(data map[string][]byte) {
		if len(data[config.KeyTokenCurrent]) == 0 {
			data[config.KeyTokenCurrent] = []byte(overlayToken())
			data[config.KeyTokenPrev] = nil
		}
	}); err != nil {
		return err
	}
	if !c.Globalnet() {
		return nil
	}
	n := clusterEgressIPs
	egress := &submarinerv1.ClusterGlobalEgressIP{
		ObjectMeta: metav1.ObjectMeta{Name: clusterEgress},
		Spec:       submarinerv1.ClusterGlobalEgressIPSpec{NumberOfIPs: &n},
	}
	if err := m.client.Create(ctx, egress); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ClusterGlobalEgressIP %s: %w", clusterEgress, err)
	}
	return nil
}

// overlayToken is a random secret of the overlay header, six hexadecimal digits.
func overlayToken() string {
	b := make([]byte, config.OverlayTokenBits/8)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// changeSecret changes keys of a Secret of the system namespace and creates it if need be.
func (m *member) changeSecret(ctx context.Context, name string, change func(data map[string][]byte)) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: name}}
	return m.put(ctx, secret, func() {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		change(secret.Data)
	})
}

// put creates the object or changes what is there, retrying when somebody else was faster.
func (m *member) put(ctx context.Context, obj client.Object, set func()) error {
	retryable := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultBackoff, retryable, func() error {
		_, err := controllerutil.CreateOrUpdate(ctx, m.client, obj, func() error { set(); return nil })
		return err
	})
	if err != nil {
		return fmt.Errorf("write %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}
