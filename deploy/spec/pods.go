package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// Placement is how nodes pull the image of pods, and the nodes for pods of Deployments; pelago-node
// runs on every node.
type Placement struct {
	// PullSecrets are Secrets of the pods' namespace.
	PullSecrets []string `json:"imagePullSecrets" flag:"image-pull-secret"`
	// NodeSelector are labels of the nodes, other than the operating system's.
	NodeSelector map[string]string `json:"nodeSelector" flag:"node-selector"`
	// Tolerations are those of the pods besides that of the manifests.
	Tolerations []corev1.Toleration `json:"tolerations" flag:"toleration"`
}

// osLabel selects the nodes that every pod of ours can run on.
const osLabel = "kubernetes.io/os"

// Validate returns an error for each field that is not valid.
func (p Placement) Validate() field.ErrorList {
	var l list
	for _, name := range p.PullSecrets {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			l.add("imagePullSecrets", name, "spec.imagePullSecrets %q is no name of a Secret", name)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(p.NodeSelector)) {
		if err := checkSelector(key, p.NodeSelector[key]); err != nil {
			l.add("nodeSelector", key, "%v", err)
		}
	}
	for _, t := range p.Tolerations {
		if err := checkToleration(t); err != nil {
			l.add("tolerations", t.Key, "%v", err)
		}
	}
	return field.ErrorList(l)
}

// Apply writes the placement into the options of the manifests.
func (p Placement) Apply(o *manifests.MemberOptions) {
	o.PullSecrets, o.NodeSelector, o.Tolerations = p.PullSecrets, p.NodeSelector, p.Tolerations
	if o.NodeSelector == nil {
		o.NodeSelector = map[string]string{}
	}
}

func checkSelector(key, value string) error {
	if len(validation.IsQualifiedName(key))+len(validation.IsValidLabelValue(value)) > 0 || key == osLabel {
		return selectorError(key + "=" + value)
	}
	return nil
}

func selectorError(text string) error {
	return fmt.Errorf("spec.nodeSelector %q: use KEY=VALUE, a label of nodes other than %s", text, osLabel)
}

func checkToleration(t corev1.Toleration) error {
	effects := []corev1.TaintEffect{"", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	switch {
	case t.TolerationSeconds != nil:
		return fmt.Errorf("spec.tolerations %q: tolerationSeconds has no counterpart: remove it", tolerationText(t))
	case len(validation.IsQualifiedName(t.Key))+len(validation.IsValidLabelValue(t.Value)) > 0 || !slices.Contains(effects, t.Effect):
		return fmt.Errorf("spec.tolerations %q: use KEY[=VALUE][:EFFECT], the effect NoSchedule, PreferNoSchedule or NoExecute", tolerationText(t))
	}
	return nil
}

// parseToleration reads KEY[=VALUE][:EFFECT]; without a value any is tolerated, without an effect
// all are.
func parseToleration(text string) corev1.Toleration {
	taint, effect, _ := strings.Cut(text, ":")
	key, value, hasValue := strings.Cut(taint, "=")
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
	if hasValue {
		t.Operator, t.Value = corev1.TolerationOpEqual, value
	}
	return t
}

// tolerationText is the inverse of parseToleration.
func tolerationText(t corev1.Toleration) string {
	text := t.Key
	if t.Operator == corev1.TolerationOpEqual {
		text += "=" + t.Value
	}
	if t.Effect != "" {
		text += ":" + string(t.Effect)
	}
	return text
}

// normal is a toleration as parseToleration makes it: Equal is the operator that Kubernetes takes
// for none.
func normal(t corev1.Toleration) corev1.Toleration {
	if t.Operator == "" {
		t.Operator = corev1.TolerationOpEqual
	}
	return t
}

// PlacementFlags are the flags of a Placement. Their texts are parsed by Read.
type PlacementFlags struct {
	to                          *Placement
	secrets, selector, tolerate []string
	set                         *pflag.FlagSet
}

// AddFlags adds the flags about Secrets of a namespace for pulling images, and about the nodes of
// pods.
func (p *Placement) AddFlags(f *pflag.FlagSet, namespace, pods string) *PlacementFlags {
	b := &PlacementFlags{to: p, set: f}
	f.StringSliceVar(&b.secrets, "image-pull-secret", nil, "Secret of "+namespace+" by which nodes pull images; may be repeated")
	f.StringSliceVar(&b.selector, "node-selector", nil, "label `KEY=VALUE` of the nodes for "+pods+"; may be repeated")
	f.StringSliceVar(&b.tolerate, "toleration", nil, "taint `KEY[=VALUE][:EFFECT]` that "+pods+" tolerate; may be repeated")
	return b
}

// Read parses the flags, and returns an error for each whose form is wrong.
func (b *PlacementFlags) Read() field.ErrorList {
	selector, l := parseSelector(b.selector)
	b.to.PullSecrets, b.to.NodeSelector, b.to.Tolerations = b.secrets, selector, parseTolerations(b.tolerate)
	return field.ErrorList(l)
}

// parseSelector reads labels KEY=VALUE.
func parseSelector(texts []string) (selector map[string]string, l list) {
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			l.add("nodeSelector", text, "%v", selectorError(text))
			continue
		}
		if selector == nil {
			selector = map[string]string{}
		}
		selector[key] = value
	}
	return selector, l
}

func parseTolerations(texts []string) (all []corev1.Toleration) {
	for _, text := range texts {
		all = append(all, parseToleration(text))
	}
	return all
}
