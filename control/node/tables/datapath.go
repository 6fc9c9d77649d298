package tables

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
)

// PodDatapaths are the datapaths of this node's pods.
type PodDatapaths struct {
	// Node is the setting for pods whose namespace has none, one of config.Datapaths.
	Node       string
	namespaces map[string]string
	policies   map[string][]labels.Selector // by namespace
	others     map[string]string            // Objects.OtherPolicies
	conntrack  bool
	// Problems are invalid labels, and a datapath that the kernel does not have.
	Problems []string
}

// Datapaths reads the settings, the most specific first: the label of the pod's namespace, that of
// the node, the daemon's command line, the cluster's configuration. conntrack: the programs read
// it.
func Datapaths(objs Objects, option string, conntrack bool) PodDatapaths {
	d := PodDatapaths{
		Node: cmp.Or(option, objs.Config.Datapath, config.DatapathStrict), namespaces: map[string]string{},
		policies: map[string][]labels.Selector{}, others: objs.OtherPolicies, conntrack: conntrack,
	}
	valid := func(where, name string) bool {
		ok := slices.Contains(config.Datapaths(), name)
		if !ok {
			d.Problems = append(d.Problems, fmt.Sprintf("%s: label %s: datapath %q: use one of %s", where, pelagov1alpha1.LabelDatapath, name, strings.Join(config.Datapaths(), ", ")))
		}
		return ok
	}
	if name, ok := OwnNode(objs).Labels[pelagov1alpha1.LabelDatapath]; ok && valid("node "+objs.Name, name) {
		d.Node = name
	}
	for namespace, name := range objs.Datapaths {
		if valid("namespace "+namespace, name) {
			d.namespaces[namespace] = name
		}
	}
	hybrid := func(name string) bool {
		return name == dataplane.Hybrid.String() || name == dataplane.Fast.String() && len(objs.Policies)+len(objs.OtherPolicies) > 0
	}
	if !conntrack && slices.ContainsFunc(slices.AppendSeq([]string{d.Node}, maps.Values(d.namespaces)), hybrid) {
		d.Problems = append(d.Problems, "datapath hybrid, or fast under a policy: the kernel lacks the kfunc bpf_skb_ct_lookup (Linux 5.18, CONFIG_NF_CONNTRACK with BTF): all packets pass the node's stack, as with strict")
	}
	for i := range objs.Policies {
		p := &objs.Policies[i]
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		if err != nil {
			selector = labels.Everything() // the policy engine may read it otherwise
		}
		d.policies[p.Namespace] = append(d.policies[p.Namespace], selector)
	}
	return d
}

// setting is that of a pod's namespace, or else of the node.
func (d PodDatapaths) setting(p *corev1.Pod) string {
	return cmp.Or(d.namespaces[p.Namespace], d.Node)
}

// Of returns the datapath of a pod. One that a policy may select is never fast: the policy engine
// would not see its connections. With auto, such a pod is hybrid where the kernel has it, and the
// others are fast.
func (d PodDatapaths) Of(p *corev1.Pod) dataplane.Datapath {
	name, selected := d.setting(p), d.selected(p)
	switch {
	case name == config.DatapathAuto && selected && !d.conntrack:
		return dataplane.Strict
	case name == config.DatapathAuto || name == dataplane.Fast.String():
		if selected {
			return dataplane.Hybrid
		}
		return dataplane.Fast
	case name == dataplane.Hybrid.String():
		return dataplane.Hybrid
	}
	return dataplane.Strict
}

// Adapts reports whether the setting of a pod asks for the datapath that it can have.
func (d PodDatapaths) Adapts(p *corev1.Pod) bool { return d.setting(p) == config.DatapathAuto }

// selected reports whether a policy may select the pod.
func (d PodDatapaths) selected(p *corev1.Pod) bool {
	if d.others[""] != "" || d.others[p.Namespace] != "" {
		return true
	}
	return slices.ContainsFunc(d.policies[p.Namespace], func(s labels.Selector) bool { return s.Matches(labels.Set(p.Labels)) })
}

// NeedsDevice reports whether programs run at the pod's own device: its packets may bypass the
// stack, or go to a ClusterSetIP that this cluster serves.
func (d PodDatapaths) NeedsDevice(objs Objects, p *corev1.Pod) bool {
	return IsLocal(objs, p) && (len(objs.Imports) > 0 || d.Of(p) != dataplane.Strict)
}

// IsLocal reports whether a pod has a network of its own on this node.
func IsLocal(objs Objects, p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Spec.NodeName == objs.Name && !Finished(p)
}

// essentialPolicy leaves out the rules: only whether a policy selects a pod is of interest.
func essentialPolicy(p *networkingv1.NetworkPolicy) networkingv1.NetworkPolicy {
	return networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: p.Spec.PodSelector},
	}
}
