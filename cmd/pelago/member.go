package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/deploy"
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

// former is the configuration that an earlier join has left; the zero value if there is none.
func (c *cluster) former(ctx context.Context) (config.Config, error) {
	cm := &corev1.ConfigMap{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, cm)
	if apierrors.IsNotFound(err) {
		return config.Config{}, nil
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("get ConfigMap %s/%s: %w", config.SystemNamespace, config.ConfigMapName, err)
	}
	return config.Parse(cm.Data)
}

// proof is what an earlier join has kept, "" if there is none.
func (c *cluster) proof(ctx context.Context) (types.UID, error) {
	value, err := c.secretKey(ctx, config.BrokerSecretName, keyProof)
	return types.UID(value), err
}

// secretKey reads a key of a Secret of the system namespace; nil if there is none.
func (c *cluster) secretKey(ctx context.Context, name, key string) ([]byte, error) {
	secret := &corev1.Secret{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w", config.SystemNamespace, name, err)
	}
	return secret.Data[key], nil
}

// keepProof writes all of the member's credential but the token.
func (c *cluster) keepProof(ctx context.Context, info broker.Info, proof types.UID) error {
	return c.changeSecret(ctx, config.BrokerSecretName, func(data map[string][]byte) {
		data[config.KeyBrokerCA] = info.CA()
		data[config.KeyNamespace] = []byte(info.Namespace())
		data[config.KeyBrokerServer] = []byte(info.BrokerURL)
		data[keyProof] = []byte(proof)
	})
}

func (c *cluster) keepToken(ctx context.Context, token string) error {
	return c.changeSecret(ctx, config.BrokerSecretName, func(data map[string][]byte) {
		data[config.KeyBrokerToken] = []byte(token)
	})
}

// configure writes what the components read; settings are valid.
func (c *cluster) configure(ctx context.Context, info broker.Info, settings config.Config) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}}
	if err := deploy.Put(ctx, c.client, cm, func() { cm.Data = settings.Data() }); err != nil {
		return err
	}
	if err := c.changeSecret(ctx, config.PSKSecretName, func(data map[string][]byte) {
		data[config.KeyPSK] = info.IPSecPSK.Data["psk"]
	}); err != nil {
		return err
	}
	if err := c.changeSecret(ctx, config.OverlayTokenSecretName, func(data map[string][]byte) {
		if len(data[config.KeyTokenCurrent]) == 0 {
			data[config.KeyTokenCurrent] = []byte(overlayToken())
			data[config.KeyTokenPrev] = nil
		}
	}); err != nil {
		return err
	}
	if !settings.Globalnet() {
		return nil
	}
	n := clusterEgressIPs
	egress := &submarinerv1.ClusterGlobalEgressIP{
		ObjectMeta: metav1.ObjectMeta{Name: clusterEgress},
		Spec:       submarinerv1.ClusterGlobalEgressIPSpec{NumberOfIPs: &n},
	}
	if err := c.client.Create(ctx, egress); err != nil && !apierrors.IsAlreadyExists(err) {
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
func (c *cluster) changeSecret(ctx context.Context, name string, change func(data map[string][]byte)) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: name}}
	return deploy.Put(ctx, c.client, secret, func() {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		change(secret.Data)
	})
}

// loadBalancer creates the Service in front of the gateway, or removes that of a former join. It has no selector: the agent
// writes its endpoints.
func (c *cluster) loadBalancer(ctx context.Context, settings config.Config) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.LoadBalancerService}}
	owner := kube.Owner{HubID: settings.HubID}
	if settings.LoadBalancer {
		return deploy.Put(ctx, c.client, s, func() {
			owner.Mark(s)
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.Ports = loadBalancerPorts(settings, s.Spec.Ports)
		})
	}
	err := c.client.Get(ctx, client.ObjectKeyFromObject(s), s)
	if err == nil && owner.Owns(s) {
		err = c.client.Delete(ctx, s)
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove Service %s/%s of a former join: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// loadBalancerPorts are the wire's ports and that of NAT discovery. Allocated node ports stay.
func loadBalancerPorts(c config.Config, have []corev1.ServicePort) []corev1.ServicePort {
	ports := append(cable.Ports(c.CableDriver, cable.Local{Listen: c.CablePort, Tunnels: c.CableTunnels}),
		cmp.Or(c.DiscoveryPort, natt.DefaultPort))
	slices.Sort(ports)
	var out []corev1.ServicePort
	for _, port := range ports {
		p := corev1.ServicePort{Name: fmt.Sprintf("udp-%d", port), Protocol: corev1.ProtocolUDP, Port: int32(port)}
		if i := slices.IndexFunc(have, func(h corev1.ServicePort) bool { return h.Name == p.Name }); i >= 0 {
			p = have[i]
		}
		out = append(out, p)
	}
	return out
}
