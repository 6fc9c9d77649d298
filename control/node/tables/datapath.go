package tables

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane"
)

// PodDatapaths are the datapaths of this node's pods.
type PodDatapaths struct {
	// Node is that of pods whose namespace sets none.
	Node       dataplane.Datapath
	namespaces map[string]dataplane.Datapath
	policies   map[string][]labels.Selector // by namespace
	// Problems are invalid labels, and a datapath that the kernel does not have.
	Problems []string
}

// Datapaths reads the settings, the most specific first: the label of the pod's namespace, that of
// the node, the daemon's command line, the cluster's configuration. conntrack: the programs read
// it.
func Datapaths(objs Objects, option string, conntrack bool) PodDatapaths {
	d := PodDatapaths{namespaces: map[string]dataplane.Datapath{}, policies: map[string][]labels.Selector{}}
	parse := func(where, name string) (dataplane.Datapath, bool) {
		v, err := dataplane.ParseDatapath(name)
		if err != nil {
			d.Problems = append(d.Problems, fmt.Sprintf("%s: label %s: %v", where, pelagov1alpha1.LabelDatapath, err))
		}
		return v, err == nil
	}
	for _, name := range []string{objs.Config.Datapath, option} {
		if v, err := dataplane.ParseDatapath(name); err == nil {
			d.Node = v
		}
	}
	if name, ok := OwnNode(objs).Labels[pelagov1alpha1.LabelDatapath]; ok {
		if v, ok := parse("node "+objs.Name, name); ok {
			d.Node = v
		}
	}
	for namespace, name := range objs.Datapaths {
		if v, ok := parse("namespace "+namespace, name); ok {
			d.namespaces[namespace] = v
		}
	}
	hybrid := func(v dataplane.Datapath) bool {
		return v == dataplane.Hybrid || v == dataplane.Fast && len(objs.Policies) > 0
	}
	if !conntrack && slices.ContainsFunc(slices.AppendSeq([]dataplane.Datapath{d.Node}, maps.Values(d.namespaces)), hybrid) {
		d.Problems = append(d.Problems, "datapath hybrid, or fast under a NetworkPolicy: the kernel lacks the kfunc bpf_skb_ct_lookup (Linux 5.18, CONFIG_NF_CONNTRACK with BTF): all packets pass the node's stack, as with strict")
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

// Of returns the datapath of a pod. One that a NetworkPolicy selects is never fast: the policy
// engine would not see its connections.
func (d PodDatapaths) Of(p *corev1.Pod) dataplane.Datapath {
	v, ok := d.namespaces[p.Namespace]
	if !ok {
		v = d.Node
	}
	if v != dataplane.Fast {
		return v
	}
	for _, s := range d.policies[p.Namespace] {
		if s.Matches(labels.Set(p.Labels)) {
			return dataplane.Hybrid
		}
	}
	return v
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
