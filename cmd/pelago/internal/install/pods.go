package install

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
)

// Image are the flags about the image that join installs.
type Image struct{ Name, PullPolicy string }

// Add adds the flags.
func (i *Image) Add(f *pflag.FlagSet) {
	f.StringVar(&i.Name, "image", deploy.DefaultImage, "image of all components")
	view.AddChoice(f, &i.PullPolicy, "image-pull-policy", "IfNotPresent", "Always, IfNotPresent or Never", "Always", "IfNotPresent", "Never")
}

// Pods are the flags of join and init about their pods, besides the image.
type Pods struct {
	pullSecrets, nodeSelector, tolerations []string
	httpProxy, httpsProxy, noProxy         string
}

// PodFlags are the names of those of join.
var PodFlags = []string{"image-pull-secret", "node-selector", "toleration", "http-proxy", "https-proxy", "no-proxy"}

// osLabel selects the nodes that every pod of ours can run on.
const osLabel = "kubernetes.io/os"

// AddPlacement adds the flags about Secrets of a namespace for pulling images, and about the nodes of pods.
func (p *Pods) AddPlacement(f *pflag.FlagSet, namespace, pods string) {
	f.StringSliceVar(&p.pullSecrets, "image-pull-secret", nil, "Secret of "+namespace+" by which nodes pull images; may be repeated")
	f.StringSliceVar(&p.nodeSelector, "node-selector", nil, "label `KEY=VALUE` of the nodes for "+pods+"; may be repeated")
	f.StringSliceVar(&p.tolerations, "toleration", nil, "taint `KEY[=VALUE][:EFFECT]` that "+pods+" tolerate; may be repeated")
}

// Add adds the flags of join.
func (p *Pods) Add(f *pflag.FlagSet) {
	p.AddPlacement(f, "namespace "+config.SystemNamespace, "all pods except pelago-node, which runs on every node,")
	f.StringVar(&p.httpProxy, "http-proxy", "", "URL of the proxy for the agents' http connections")
	f.StringVar(&p.httpsProxy, "https-proxy", "", "URL of the proxy for the agents' https connections, such as those to the hub")
	f.StringVar(&p.noProxy, "no-proxy", "", "names, addresses and ranges that the agents reach without a proxy, separated by commas, besides the own cluster's")
}

// Apply validates the flags and writes them into the options of the manifests.
func (p *Pods) Apply(o *deploy.MemberOptions) error {
	for flag, text := range map[string]string{"http-proxy": p.httpProxy, "https-proxy": p.httpsProxy} {
		if u, err := url.Parse(text); text != "" && (err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme)) {
			return fmt.Errorf("--%s %q: it is no URL such as http://192.0.2.1:3128", flag, text)
		}
	}
	if p.noProxy != "" && p.httpProxy == "" && p.httpsProxy == "" {
		return fmt.Errorf("--no-proxy %s: give --https-proxy or --http-proxy as well", p.noProxy)
	}
	for _, name := range p.pullSecrets {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return fmt.Errorf("--image-pull-secret %q is no name of a Secret", name)
		}
	}
	o.PullSecrets, o.NodeSelector, o.Tolerations = p.pullSecrets, map[string]string{}, nil
	o.HTTPProxy, o.HTTPSProxy, o.NoProxy = p.httpProxy, p.httpsProxy, p.noProxy
	for _, text := range p.nodeSelector {
		key, value, ok := strings.Cut(text, "=")
		if !ok || len(validation.IsQualifiedName(key))+len(validation.IsValidLabelValue(value)) > 0 || key == osLabel {
			return fmt.Errorf("--node-selector %q: use KEY=VALUE, a label of nodes other than %s", text, osLabel)
		}
		o.NodeSelector[key] = value
	}
	for _, text := range p.tolerations {
		t, err := toleration(text)
		if err != nil {
			return err
		}
		o.Tolerations = append(o.Tolerations, t)
	}
	return nil
}

// toleration reads KEY[=VALUE][:EFFECT]; without a value any is tolerated, without an effect all are.
func toleration(text string) (corev1.Toleration, error) {
	taint, effect, _ := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(taint, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if hasValue {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	effects := []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if len(validation.IsQualifiedName(key))+len(validation.IsValidLabelValue(value)) > 0 || !slices.Contains(effects, t.Effect) {
		return t, fmt.Errorf("--toleration %q: use KEY[=VALUE][:EFFECT], the effect NoSchedule, PreferNoSchedule or NoExecute", text)
	}
	return t, nil
}

// podFlags are the flags that have led to a pod of an agent.
func podFlags(pod corev1.PodSpec) map[string]string {
	var secrets, selector, tolerations []string
	for _, s := range pod.ImagePullSecrets {
		secrets = append(secrets, s.Name)
	}
	for key, value := range pod.NodeSelector {
		if key != osLabel {
			selector = append(selector, key+"="+value)
		}
	}
	slices.Sort(selector)
	for i, t := range pod.Tolerations {
		if i == 0 { // of the manifest
			continue
		}
		text := t.Key
		if t.Operator == corev1.TolerationOpEqual {
			text += "=" + t.Value
		}
		if t.Effect != "" {
			text += ":" + string(t.Effect)
		}
		tolerations = append(tolerations, text)
	}
	flags := map[string]string{"image-pull-secret": strings.Join(secrets, ","), "node-selector": strings.Join(selector, ","),
		"toleration": strings.Join(tolerations, ",")}
	for _, e := range pod.Containers[0].Env {
		switch e.Name {
		case "HTTP_PROXY", "HTTPS_PROXY":
			flags[strings.ToLower(strings.Replace(e.Name, "_", "-", 1))] = e.Value
		case "NO_PROXY":
			flags["no-proxy"] = strings.TrimPrefix(strings.TrimPrefix(e.Value, deploy.NoProxyCluster), ",")
		}
	}
	maps.DeleteFunc(flags, func(_, value string) bool { return value == "" })
	return flags
}

// ImageFlags are the flags about pods of the join that has installed them. An image of the default repository is left out: its
// tag is the version, which another join updates.
func ImageFlags(ctx context.Context, c client.Client) (map[string]string, error) {
	d := &appsv1.Deployment{}
	for _, name := range []string{deploy.AgentDeployment, deploy.ExecutionDeployment} { // a member has one of them
		key := client.ObjectKey{Namespace: config.SystemNamespace, Name: name}
		err := c.Get(ctx, key, d)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("get Deployment %s: %w", key, err)
		}
		if err == nil {
			break
		}
	}
	pod := d.Spec.Template.Spec
	if len(pod.Containers) == 0 {
		return nil, nil
	}
	first := pod.Containers[0]
	flags := podFlags(pod)
	flags["image-pull-policy"] = string(first.ImagePullPolicy)
	if repository(first.Image) != repository(deploy.DefaultImage) {
		flags["image"] = first.Image
	}
	return flags, nil
}

// repository is the name of an image without its tag and digest.
func repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name, _ := view.SplitImage(image)
	return name
}
