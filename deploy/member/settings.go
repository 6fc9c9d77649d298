package member

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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Names of what join writes besides the manifests.
const (
	// ClusterEgress is the only ClusterGlobalEgressIP that is honoured.
	ClusterEgress = "cluster-egress.submariner.io"
)

// Former returns the configuration of an earlier join, or the zero value without one.
func Former(ctx context.Context, c client.Reader) (config.Config, error) {
	cm := &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, cm)
	if apierrors.IsNotFound(err) {
		return config.Config{}, nil
	}
	if err != nil {
		return config.Config{}, fmt.Errorf("get ConfigMap %s/%s: %w", config.SystemNamespace, config.ConfigMapName, err)
	}
	return config.Parse(cm.Data)
}

// SecretKey reads a key of a Secret of the system namespace; nil if none exists.
func SecretKey(ctx context.Context, c client.Client, name, key string) ([]byte, error) {
	secret := &corev1.Secret{}
	err := c.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w", config.SystemNamespace, name, err)
	}
	return secret.Data[key], nil
}

// configure writes what the components read; settings are valid.
func configure(ctx context.Context, c client.Client, info broker.Info, settings config.Config) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}}
	if err := manifests.Put(ctx, c, cm, func() { cm.Data = settings.Data() }); err != nil {
		return err
	}
	if settings.WorkloadsOnly {
		return nil
	}
	if err := changeSecret(ctx, c, config.PSKSecretName, func(data map[string][]byte) {
		data[config.KeyPSK] = info.IPSecPSK.Data["psk"]
	}); err != nil {
		return err
	}
	if err := changeSecret(ctx, c, config.OverlayTokenSecretName, func(data map[string][]byte) {
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
	egress := &submarinerv1.ClusterGlobalEgressIP{
		ObjectMeta: metav1.ObjectMeta{Name: ClusterEgress},
		Spec:       submarinerv1.ClusterGlobalEgressIPSpec{NumberOfIPs: ptr.To(submarinerv1.DefaultClusterEgressIPs)},
	}
	if err := c.Create(ctx, egress); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ClusterGlobalEgressIP %s: %w", ClusterEgress, err)
	}
	return nil
}

// coreDNSCustom returns the ConfigMap that the Corefile imports server blocks from, empty if there
// is none.
func coreDNSCustom(ctx context.Context, c client.Client) (string, error) {
	cm := &corev1.ConfigMap{}
	target := clusterdns.TargetOf("")
	if err := c.Get(ctx, target.ConfigMap, cm); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("get ConfigMap %s: %w", target.ConfigMap, err)
	}
	if !clusterdns.ImportsServers(cm.Data[target.Key]) {
		return "", nil
	}
	return clusterdns.CustomName, nil
}

// moveForward makes the ConfigMap that the agent forwards the zones in, and removes the block from
// where an earlier join had it: CoreDNS refuses two servers for one zone.
func moveForward(ctx context.Context, c client.Client, former, custom string, progress manifests.Progress) error {
	if former != custom {
		if err := RemoveForward(ctx, c, clusterdns.TargetOf(former)); err != nil {
			return err
		}
	}
	if custom == "" {
		return nil
	}
	name := clusterdns.TargetOf(custom).ConfigMap
	progress("CoreDNS is configured by ConfigMap %s", name)
	err := c.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ConfigMap %s: %w", name, err)
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
func changeSecret(ctx context.Context, c client.Client, name string, change func(data map[string][]byte)) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: name}}
	return manifests.Put(ctx, c, secret, func() {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		change(secret.Data)
	})
}

// loadBalancer creates the Service in front of the gateway, or removes that of a former join. It
// has no selector: the agent writes its endpoints.
func loadBalancer(ctx context.Context, c client.Client, settings config.Config) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.LoadBalancerService}}
	owner := kube.Owner{HubID: settings.HubID}
	if settings.LoadBalancer {
		return manifests.Put(ctx, c, s, func() {
			owner.Mark(s)
			s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.Ports = loadBalancerPorts(settings, s.Spec.Ports)
		})
	}
	err := c.Get(ctx, client.ObjectKeyFromObject(s), s)
	if err == nil && owner.Owns(s) {
		err = c.Delete(ctx, s)
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
