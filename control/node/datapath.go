package node

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vishvananda/netlink"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// datapaths are the datapaths of this node's pods.
type datapaths struct {
	node       dataplane.Datapath
	namespaces map[string]dataplane.Datapath
	policies   map[string][]labels.Selector // by namespace
	problems   []string
}

// datapathsOf reads the settings, the most specific first: the label of the pod's namespace, that of the node, the daemon's
// command line, the cluster's configuration.
func datapathsOf(objs Objects, option string) datapaths {
	d := datapaths{namespaces: map[string]dataplane.Datapath{}, policies: map[string][]labels.Selector{}}
	parse := func(where, name string) (dataplane.Datapath, bool) {
		v, err := dataplane.ParseDatapath(name)
		if err != nil {
			d.problems = append(d.problems, fmt.Sprintf("%s: label %s: %v", where, pelagov1alpha1.LabelDatapath, err))
		}
		return v, err == nil
	}
	for _, name := range []string{objs.Config.Datapath, option} {
		if v, err := dataplane.ParseDatapath(name); err == nil {
			d.node = v
		}
	}
	if name, ok := ownNode(objs).Labels[pelagov1alpha1.LabelDatapath]; ok {
		if v, ok := parse("node "+objs.Name, name); ok {
			d.node = v
		}
	}
	for namespace, name := range objs.Datapaths {
		if v, ok := parse("namespace "+namespace, name); ok {
			d.namespaces[namespace] = v
		}
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

// of returns the datapath of a pod. One that a NetworkPolicy selects is never fast: the policy engine would not see its
// connections.
func (d datapaths) of(p *corev1.Pod) dataplane.Datapath {
	v, ok := d.namespaces[p.Namespace]
	if !ok {
		v = d.node
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

// endpointRetries bounds how often the device of a pod that has not sent anything yet is looked up soon again.
const endpointRetries = 15

// endpoints finds the devices of pods, and keeps what was found while it exists: bridges and neighbour tables forget.
type endpoints struct {
	known map[types.UID]dataplane.Endpoint
	tries map[types.UID]int
}

// find returns the endpoints of the pods that are not strict, by address. again: a new pod has none yet.
func (e *endpoints) find(objs Objects, d datapaths) (found map[netip.Addr]dataplane.Endpoint, again bool, err error) {
	pods := map[netip.Addr]*corev1.Pod{}
	var addresses []netip.Addr
	for i := range objs.Pods {
		p := &objs.Pods[i]
		if a, ok := podIP(p); ok && isLocal(objs, p) && d.of(p) != dataplane.Strict {
			pods[a], addresses = p, append(addresses, a)
		}
	}
	known, tries := map[types.UID]dataplane.Endpoint{}, map[types.UID]int{}
	defer func() { e.known, e.tries = known, tries }()
	if len(pods) == 0 {
		return nil, false, nil
	}
	if found, err = netdev.Endpoints(addresses); err != nil {
		return nil, false, err
	}
	for a, p := range pods {
		v, ok := found[a]
		if !ok {
			if v, ok = e.known[p.UID]; ok {
				_, gone := netlink.LinkByIndex(int(v.Ifindex))
				ok = gone == nil
			}
		}
		if !ok {
			tries[p.UID] = e.tries[p.UID] + 1
			again = again || tries[p.UID] <= endpointRetries
			continue
		}
		v.Datapath = d.of(p)
		found[a], known[p.UID] = v, v
	}
	return found, again, nil
}

// isLocal reports whether a pod has a network of its own on this node.
func isLocal(objs Objects, p *corev1.Pod) bool {
	return !p.Spec.HostNetwork && p.Spec.NodeName == objs.Name && !finished(p)
}

// essentialPolicy leaves out the rules: only whether a policy selects a pod is of interest.
func essentialPolicy(p *networkingv1.NetworkPolicy) networkingv1.NetworkPolicy {
	return networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: p.Spec.PodSelector},
	}
}
