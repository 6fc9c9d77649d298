package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// refusal is an error about a field of the spec; without one, about unknown fields.
type refusal struct{ field, message string }

func (r refusal) Error() string {
	return strings.TrimPrefix(fmt.Sprintf("spec.%s: %s", r.field, r.message), "spec.: ")
}

// reason is that of the condition Degraded.
func (r refusal) reason() string {
	if r.field == "" {
		return "UnknownField"
	}
	return "Invalid" + strings.ToUpper(r.field[:1]) + r.field[1:]
}

// flagFields maps flags to the fields of the spec that set them, so that errors of pelago can name the field.
var flagFields = map[string]string{
	"clusterid": "clusterID", "clustercidr": "clusterCIDR", "servicecidr": "serviceCIDR", "globalnet-cidr": "globalCIDR",
	"clusterset-ip-cidr": "clustersetIPCIDR", "enable-clusterset-ip": "clustersetIPEnabled", "cable-driver": "cableDriver", "nattport": "ceIPSecNATTPort",
	"preferred-server": "ceIPSecPreferredServer", "natt": "natEnabled", "air-gapped": "airGappedDeployment", "load-balancer": "loadBalancerEnabled",
	"coredns-custom-configmap": "coreDNSCustomConfig", "image": "version", "node-selector": "nodeSelector", "toleration": "tolerations",
	"components": "components", "custom-domains": "defaultCustomDomains", "globalnet": "globalnetEnabled", "globalnet-cidr-range": "globalnetCIDRRange",
	"globalnet-cluster-size": "defaultGlobalnetClusterSize", "clusterset-ip-cidr-range": "clustersetIPCIDRRange",
}

// explain names the field in an error of pelago.
func explain(message string) error {
	for _, word := range strings.Fields(message) {
		flag, _, _ := strings.Cut(strings.Trim(word, `":,;()`), "=")
		if field, ok := flagFields[strings.TrimPrefix(flag, "--")]; ok && strings.HasPrefix(flag, "--") {
			return refusal{field, message}
		}
	}
	return errors.New(message)
}

// Flags that AnnotationFlags may add: those that have no field in the spec and access nothing but the cluster and the hub.
var (
	extraJoin = []string{"cable-tunnels", "datapath", "dns-cache", "dns-ttl", "external-cidr", "gateway-mode", "gateway-node",
		"globalnet", "globalnet-cluster-size", "http-proxy", "https-proxy", "image-pull-policy", "image-pull-secret", "label-gateway", "natt-discovery-port",
		"network-only", "no-proxy", "route-service-cidr", "workloads-only", "xdp"}
	// The subset of extraJoin that the hub has to grant.
	extraHub    = []string{"external-cidr", "globalnet", "globalnet-cluster-size", "network-only", "workloads-only"}
	extraBroker = []string{"auto-accept", "broker-url", "fabric-cidr", "mode"}
)

func extraFlags(annotations map[string]string, allowed []string) ([]string, error) {
	flags := strings.Fields(annotations[v1alpha1.AnnotationFlags])
	for _, flag := range flags {
		name, _, ok := strings.Cut(strings.TrimPrefix(flag, "--"), "=")
		if !ok || !strings.HasPrefix(flag, "--") || !slices.Contains(allowed, name) {
			return nil, fmt.Errorf("annotation %s: %q: write --name=value with one of the names %s", v1alpha1.AnnotationFlags, flag,
				strings.Join(allowed, ", "))
		}
	}
	return flags, nil
}

// deployBrokerFlags are the arguments of `pelago deploy-broker` for a Broker. Fields that may change are always among them, so that one
// that is removed has its default again.
func deployBrokerFlags(b *v1alpha1.Broker, file string) ([]string, error) {
	s := b.Spec
	args := []string{"deploy-broker", "--output", file, fmt.Sprintf("--globalnet=%t", s.GlobalnetEnabled),
		fmt.Sprintf("--enable-clusterset-ip=%t", s.ClustersetIPEnabled), "--custom-domains=" + strings.Join(s.DefaultCustomDomains, ",")}
	if len(s.Components) > 0 {
		args = append(args, "--components="+strings.Join(s.Components, ","))
	}
	if s.GlobalnetCIDRRange != "" {
		args = append(args, "--globalnet-cidr-range="+s.GlobalnetCIDRRange)
	}
	if s.DefaultGlobalnetClusterSize != 0 {
		args = append(args, fmt.Sprintf("--globalnet-cluster-size=%d", s.DefaultGlobalnetClusterSize))
	}
	if s.ClustersetIPCIDRRange != "" {
		args = append(args, "--clusterset-ip-cidr-range="+s.ClustersetIPCIDRRange)
	}
	extra, err := extraFlags(b.Annotations, extraBroker)
	return append(args, extra...), err
}

// membership is what a Submariner asks for.
type membership struct {
	info  broker.Info
	image string
	// hub are the flags that the hub has to grant, member the others.
	hub, member []string
}

// digest identifies what the hub is asked for.
func (m membership) digest() (string, error) {
	text, err := m.info.Encode()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(string(text) + strings.Join(m.hub, "\n")))
	return hex.EncodeToString(sum[:8]), nil
}

// args are the arguments of `pelago join`.
func (m membership) args(file string) []string {
	return slices.Concat([]string{"join", file, "--wait=false", "--image=" + m.image}, m.hub, m.member)
}

// membershipOf translates a Submariner. secrets are the Secrets that it names; own is the operator's image.
func membershipOf(s *v1alpha1.Submariner, secrets map[string]map[string][]byte, own string) (m membership, err error) {
	spec := s.Spec
	if spec.BrokerK8sInsecure {
		return m, refusal{"brokerK8sInsecure", "the certificate of the hub is always verified: remove the field, and give its CA in brokerK8sCA"}
	}
	if m.info, err = brokerInfo(spec, secrets); err != nil {
		return m, err
	}
	if m.image, err = image(spec, own); err != nil {
		return m, err
	}
	extra, err := extraFlags(s.Annotations, extraJoin)
	if err != nil {
		return m, err
	}
	m.hub = []string{"--clusterid=" + spec.ClusterID}
	var selector, tolerations []string
	for _, key := range slices.Sorted(maps.Keys(spec.NodeSelector)) {
		selector = append(selector, key+"="+spec.NodeSelector[key])
	}
	for i, t := range spec.Tolerations {
		text := t.Key
		if t.Operator != corev1.TolerationOpExists {
			text += "=" + t.Value
		}
		if t.Effect != "" {
			text += ":" + string(t.Effect)
		}
		if t.TolerationSeconds != nil {
			return m, refusal{"tolerations", fmt.Sprintf("item %d: tolerationSeconds has no counterpart: remove it", i)}
		}
		tolerations = append(tolerations, text)
	}
	m.member = []string{"--node-selector=" + strings.Join(selector, ","), "--toleration=" + strings.Join(tolerations, ",")}
	for _, flag := range extra {
		to := &m.member
		if name, _, _ := strings.Cut(strings.TrimPrefix(flag, "--"), "="); slices.Contains(extraHub, name) {
			to = &m.hub
		}
		*to = append(*to, flag)
	}
	if slices.Contains(extra, "--workloads-only=true") {
		return m, nil
	}
	m.hub = append(m.hub, "--clustercidr="+spec.ClusterCIDR, "--servicecidr="+spec.ServiceCIDR, fmt.Sprintf("--enable-clusterset-ip=%t", spec.ClustersetIPEnabled))
	for flag, value := range map[string]string{"globalnet-cidr": spec.GlobalCIDR, "clusterset-ip-cidr": spec.ClustersetIPCIDR} {
		if value != "" {
			m.hub = append(m.hub, "--"+flag+"="+value)
		}
	}
	slices.Sort(m.hub)
	driver, port, nat := spec.CableDriver, spec.CeIPSecNATTPort, spec.NatEnabled == nil || *spec.NatEnabled
	if driver == "" {
		driver = "wireguard"
	}
	if port == 0 {
		port = 4500
	}
	m.member = append(m.member, "--cable-driver="+driver, fmt.Sprintf("--nattport=%d", port), fmt.Sprintf("--natt=%t", nat),
		fmt.Sprintf("--preferred-server=%t", spec.CeIPSecPreferredServer), fmt.Sprintf("--air-gapped=%t", spec.AirGappedDeployment),
		fmt.Sprintf("--load-balancer=%t", spec.LoadBalancerEnabled))
	if c := spec.CoreDNSCustomConfig; c != nil && c.ConfigMapName != "" {
		name := c.ConfigMapName
		if c.Namespace != "" {
			name = c.Namespace + "/" + name
		}
		m.member = append(m.member, "--coredns-custom-configmap="+name)
	}
	return m, nil
}

// image is what the components run.
func image(spec v1alpha1.SubmarinerSpec, own string) (string, error) {
	for name, image := range spec.ImageOverrides {
		if name != "pelago" || len(spec.ImageOverrides) > 1 {
			return "", refusal{"imageOverrides", fmt.Sprintf("%q: all components are one image: use the key pelago alone", name)}
		}
		return image, nil
	}
	repository, tag, _ := strings.Cut(own[strings.LastIndex(own, "/")+1:], ":")
	repository = own[:strings.LastIndex(own, "/")+1] + repository
	switch {
	case spec.Repository == "" && spec.Version == "":
		return own, nil
	case strings.Contains(own, "@") && (spec.Repository == "" || spec.Version == ""):
		return "", refusal{"version", fmt.Sprintf("the operator's image %s is named by its digest: give both repository and version", own)}
	}
	if spec.Repository != "" {
		repository = strings.TrimSuffix(spec.Repository, "/") + "/pelago"
	}
	if spec.Version != "" {
		tag = spec.Version
	}
	return repository + ":" + tag, nil
}

// brokerInfo collects what broker-info.subm has.
func brokerInfo(spec v1alpha1.SubmarinerSpec, secrets map[string]map[string][]byte) (broker.Info, error) {
	named := secrets[spec.BrokerK8sSecret]
	if file := named[v1alpha1.BrokerInfoKey]; len(file) > 0 {
		info, err := broker.DecodeInfo(file)
		if err != nil {
			return info, refusal{"brokerK8sSecret", fmt.Sprintf("key %s: %v", v1alpha1.BrokerInfoKey, err)}
		}
		return info, nil
	}
	token, ca, psk := named[corev1.ServiceAccountTokenKey], named[corev1.ServiceAccountRootCAKey], secrets[spec.CeIPSecPSKSecret]["psk"]
	if len(token) == 0 {
		token = []byte(spec.BrokerK8sApiServerToken)
	}
	namespace := spec.BrokerK8sRemoteNamespace
	if namespace == "" {
		namespace = deploy.BrokerNamespace
	}
	for field, to := range map[string]*[]byte{"brokerK8sCA": &ca, "ceIPSecPSK": &psk} {
		text := map[string]string{"brokerK8sCA": spec.BrokerK8sCA, "ceIPSecPSK": spec.CeIPSecPSK}[field]
		if len(*to) > 0 || text == "" {
			continue
		}
		decoded, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return broker.Info{}, refusal{field, "it is no base64: " + err.Error()}
		}
		*to = decoded
	}
	for _, field := range []struct {
		name, remedy string
		missing      bool
	}{
		{"brokerK8sApiServer", "give the URL of the hub, or a brokerK8sSecret with the key " + v1alpha1.BrokerInfoKey, spec.BrokerK8sApiServer == ""},
		{"brokerK8sApiServerToken", "give it, or a brokerK8sSecret that has the key token", len(token) == 0},
		{"brokerK8sCA", "give it, or a brokerK8sSecret that has the key ca.crt", len(ca) == 0},
		{"ceIPSecPSK", "give it, or a ceIPSecPSKSecret that has the key psk", len(psk) == 0},
	} {
		if field.missing {
			return broker.Info{}, refusal{field.name, "it is missing: " + field.remedy}
		}
	}
	url := spec.BrokerK8sApiServer
	if !strings.Contains(url, "://") {
		url = "https://" + url
	}
	return broker.Info{BrokerURL: url, IPSecPSK: &corev1.Secret{Data: map[string][]byte{"psk": psk}}, ClientToken: &corev1.Secret{Data: map[string][]byte{
		corev1.ServiceAccountTokenKey: token, corev1.ServiceAccountRootCAKey: ca, corev1.ServiceAccountNamespaceKey: []byte(namespace)}}}, nil
}

// secretsOf are the Secrets that a Submariner names.
func secretsOf(namespace string, s *v1alpha1.Submariner) (out []types.NamespacedName) {
	for _, name := range []string{s.Spec.BrokerK8sSecret, s.Spec.CeIPSecPSKSecret} {
		if name != "" {
			out = append(out, types.NamespacedName{Namespace: namespace, Name: name})
		}
	}
	return out
}
