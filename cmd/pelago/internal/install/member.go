// Package install has what init, join and unjoin read and write besides the manifests: checks of a hub, discovered ranges, settings
// and what another run keeps of them, credentials and registration of members, gateways, and the wait for the rollout.
package install

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// Names of what join writes besides the manifests.
const (
	// ClusterEgress is the only ClusterGlobalEgressIP that is honoured.
	ClusterEgress = "cluster-egress.submariner.io"
)

// Former is the configuration that an earlier join has left; the zero value if there is none.
func Former(ctx context.Context, c client.Client) (config.Config, error) {
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

// SecretKey reads a key of a Secret of the system namespace; nil if there is none.
func SecretKey(ctx context.Context, c client.Client, name, key string) ([]byte, error) {
	secret := &corev1.Secret{}
	err := c.Get(ctx, client.ObjectKey{Namespace: config.SystemNamespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("get Secret %s/%s: %w", config.SystemNamespace, name, err)
	}
	return secret.Data[key], nil
}

// Configure writes what the components read; settings are valid.
func Configure(ctx context.Context, c client.Client, info broker.Info, settings config.Config) error {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}}
	if err := deploy.Put(ctx, c, cm, func() { cm.Data = settings.Data() }); err != nil {
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

// CoreDNSCustom returns the ConfigMap that the Corefile imports server blocks from, empty if there is none.
func CoreDNSCustom(ctx context.Context, c client.Client) (string, error) {
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

// MoveForward makes the ConfigMap that the agent forwards the zones in, and removes the block from where an earlier join had it:
// CoreDNS refuses two servers for one zone.
func MoveForward(ctx context.Context, c client.Client, former, custom string, progress deploy.Progress) error {
	if former != custom {
		if err := deploy.RemoveForward(ctx, c, clusterdns.TargetOf(former)); err != nil {
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
	return deploy.Put(ctx, c, secret, func() {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		change(secret.Data)
	})
}

// LoadBalancer creates the Service in front of the gateway, or removes that of a former join. It has no selector: the agent
// writes its endpoints.
func LoadBalancer(ctx context.Context, c client.Client, settings config.Config) error {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.LoadBalancerService}}
	owner := kube.Owner{HubID: settings.HubID}
	if settings.LoadBalancer {
		return deploy.Put(ctx, c, s, func() {
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

// ChooseGateways returns the nodes to label: the given ones; none if some have the label; else one that the user chooses, or the
// first candidate without answers. It sorts nodes by name.
func ChooseGateways(ctx context.Context, nodes []corev1.Node, given []string, label bool, answers *view.Answers, out io.Writer) ([]string, error) {
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	if len(given) > 0 {
		for _, name := range given {
			if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
				return nil, fmt.Errorf("--gateway-node %q: the cluster has no such node; it has %s", name, strings.Join(nodeNames(nodes), ", "))
			}
		}
		return given, nil
	}
	if slices.ContainsFunc(nodes, func(n corev1.Node) bool { return topology.IsGateway(&n) }) {
		return nil, nil
	}
	if !label {
		return nil, fmt.Errorf("no node is a gateway: label one with `kubectl label node NODE %s=true`, or leave --label-gateway=false out", submarinerv1.LabelGateway)
	}
	candidates := gatewayCandidates(nodes)
	if len(candidates) == 0 {
		return nil, errors.New("the cluster has no node")
	}
	if len(candidates) == 1 || answers == nil {
		return candidates[:1], nil
	}
	return prompt(ctx, candidates, answers, out)
}

// gatewayCandidates are the workers, or all nodes if there is none; ready ones first, else in the order of nodes.
func gatewayCandidates(nodes []corev1.Node) []string {
	workers := slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool {
		_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
		_, master := n.Labels["node-role.kubernetes.io/master"]
		return controlPlane || master
	})
	if len(workers) == 0 {
		workers = nodes
	}
	notReady := func(n corev1.Node) bool {
		return !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	ready := slices.DeleteFunc(slices.Clone(workers), notReady)
	others := slices.DeleteFunc(slices.Clone(workers), func(n corev1.Node) bool { return !notReady(n) })
	return nodeNames(append(ready, others...))
}

func nodeNames(nodes []corev1.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

// prompt lets the user choose one or several by number.
func prompt(ctx context.Context, candidates []string, answers *view.Answers, out io.Writer) ([]string, error) {
	fmt.Fprintln(out, "No node is a gateway yet. Choose the gateways:")
	for i, name := range candidates {
		fmt.Fprintf(out, "  %d  %s\n", i+1, name)
	}
	for {
		fmt.Fprint(out, "Numbers, separated by spaces [1]: ")
		line, err := answers.Line(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the choice of gateways: %w", err)
		}
		chosen, err := pick(candidates, line)
		if err == nil {
			return chosen, nil
		}
		fmt.Fprintln(out, err)
	}
}

// pick reads numbers from 1; nothing is 1.
func pick(candidates []string, line string) ([]string, error) {
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' || r == '\r' })
	if len(fields) == 0 {
		fields = []string{"1"}
	}
	var chosen []string
	for _, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > len(candidates) {
			return nil, fmt.Errorf("%q is no number from 1 to %d", field, len(candidates))
		}
		if !slices.Contains(chosen, candidates[n-1]) {
			chosen = append(chosen, candidates[n-1])
		}
	}
	return chosen, nil
}

// LabelGateways labels the nodes as gateways.
func LabelGateways(ctx context.Context, c client.Client, nodes []string, progress deploy.Progress) error {
	for _, name := range nodes {
		progress("Labelling node %s as gateway", name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, submarinerv1.LabelGateway))
		if err := c.Patch(ctx, node, patch, client.FieldOwner(deploy.Manager)); err != nil {
			return fmt.Errorf("label node %s: %w", name, err)
		}
	}
	return nil
}

// PatchNode sets one of the labels or annotations of a node; value is JSON, null removes it.
func PatchNode(ctx context.Context, c kubernetes.Interface, node, field, key, value string) error {
	patch := fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, field, key, value)
	_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: deploy.Manager})
	if err != nil {
		return fmt.Errorf("patch %s of node %s: %w", field, node, err)
	}
	return nil
}

// AwaitRollout waits until every component runs its newest template. The error of a timeout has the reasons of the pods.
func AwaitRollout(ctx context.Context, c kubernetes.Interface, workloadsOnly bool, timeout time.Duration, progress deploy.Progress) error {
	installed := func(ctx context.Context) ([]view.Component, error) { return view.Installed(ctx, c, workloadsOnly) }
	return awaitRollout(ctx, c, deploy.SystemNamespace, installed, "join", timeout, progress)
}

// explainAfter is the time between two looks at why pods do not run.
const explainAfter = 10 * time.Second

func awaitRollout(
	ctx context.Context, c kubernetes.Interface, namespace string, installed func(context.Context) ([]view.Component, error), verb string,
	timeout time.Duration, progress deploy.Progress,
) error {
	shown := map[string]string{}
	var waiting []string
	var unread error
	explained := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		components, err := installed(ctx)
		if err != nil {
			unread = err // retried until the timeout
			return false, nil
		}
		waiting = nil
		for _, component := range components {
			name, ready := component.Kind+" "+component.Name, fmt.Sprintf("%d of %d ready", component.Ready, component.Want)
			if component.Current && shown[name] != ready {
				shown[name] = ready
				progress("%s: %s", name, ready)
			}
			if !component.Done() {
				waiting = append(waiting, fmt.Sprintf("%s (%s)", name, ready))
			}
		}
		if len(waiting) > 0 && time.Since(explained) > explainAfter {
			explained = time.Now()
			reasons, err := view.PodReasons(ctx, c, namespace)
			unread = err
			for _, reason := range reasons {
				if shown[reason] == "" {
					shown[reason] = reason
					progress("%s", strings.TrimSpace(reason))
				}
			}
		}
		return len(waiting) == 0, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || waiting == nil {
		return fmt.Errorf("wait for the components: %w", errors.Join(err, unread))
	}
	reasons, err := view.PodReasons(ctx, c, namespace)
	if err != nil {
		return err
	}
	return fmt.Errorf("after %s these do not run: %s: %s again when the cause is gone\n%s",
		timeout, strings.Join(waiting, ", "), verb, strings.Join(reasons, "\n"))
}
