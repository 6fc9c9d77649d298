package topology

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// GatewayReady reports whether the node is a gateway with its tables in the kernel.
func GatewayReady(n *v1alpha1.NodeIndex) bool { return n.Status.Gateway && n.Status.Ready }

// GatewayServing reports whether the node has reported in its present boot that it is a gateway
// which all remote gateways know. It is not proof of life: the status of a node that has crashed
// remains until its daemon runs again.
func GatewayServing(node *corev1.Node, n *v1alpha1.NodeIndex) bool {
	return GatewayReady(n) && n.Status.Serving && ThisBoot(node, n)
}

// ThisBoot reports whether the status of the NodeIndex is not known to be of an earlier boot of the
// node.
func ThisBoot(node *corev1.Node, n *v1alpha1.NodeIndex) bool {
	now, then := node.Status.NodeInfo.BootID, n.Status.NodeBootID
	return now == "" || then == "" || now == then
}

// NodeIndexChanged reports whether an update may have brought the last missing acknowledgement of
// an object.
func NodeIndexChanged(was, is *v1alpha1.NodeIndex) bool {
	return GatewayReady(was) != GatewayReady(is) || GatewayReady(is) && !slices.Equal(was.Status.Acks, is.Status.Acks)
}

// GatewayIndex is the field of a cache by which a controller finds the ready gateways.
type GatewayIndex string

// AddTo adds the index to the cache of the manager.
func (i GatewayIndex) AddTo(mgr ctrl.Manager) error {
	return kube.AddFlagIndex(mgr, &v1alpha1.NodeIndex{}, string(i), GatewayReady)
}

// List returns the gateways whose acknowledgements count, from a cache that has the index, Nodes,
// and RouteAgentMetadata.
func (i GatewayIndex) List(ctx context.Context, cache client.Reader) (Gateways, error) {
	var list v1alpha1.NodeIndexList
	if err := cache.List(ctx, &list, client.MatchingFields{string(i): kube.IndexFlag}); err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	nodes := map[string]*corev1.Node{}
	for _, n := range list.Items {
		node := new(corev1.Node)
		switch err := cache.Get(ctx, client.ObjectKey{Name: n.Name}, node); {
		case err == nil:
			nodes[n.Name] = node
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read Node %s: %w", n.Name, err)
		}
	}
	reports, err := Reports(ctx, cache, time.Now())
	if err != nil {
		return nil, err
	}
	return InService(list.Items, nodes, Silent(reports)), nil
}

// Gateways are the gateways of a cluster whose acknowledgement an object needs before it is used.
type Gateways []v1alpha1.NodeIndex

// InService returns those of the ready gateways whose acknowledgement counts; nodes are by name. A
// gateway that is down acknowledges nothing, and its last report remains: one whose Node is gone,
// not Ready, or has booted since the report. While another gateway serves, so are one that answers
// no witness (silent) and one whose label was removed.
//
// One that is left out but alive, only cut off, serves no stale NAT. It drops the packets of an
// object that it does not have. It could mislead those of an address that had another owner, but
// had the removal of that owner before it was cut off, unless it has been cut off for most of the
// time for which an address rests (ipam.AddressRest, 120 s). Long before, agent/peering withdraws
// its Endpoint: no other cluster sends to it or accepts its packets. Ports that had another owner
// lead to a node that has no flow in them. When it is back, its daemon reads all objects before it
// acknowledges anything, and it is asked again.
func InService(ready []v1alpha1.NodeIndex, nodes map[string]*corev1.Node, silent map[string]bool) Gateways {
	var alive, serving Gateways
	for _, n := range ready {
		node := nodes[n.Name]
		if node == nil || n.Spec.NodeUID != "" && n.Spec.NodeUID != string(node.UID) || !ThisBoot(node, &n) || !NodeReady(node) {
			continue
		}
		alive = append(alive, n)
		if !silent[n.Name] && IsGateway(node) {
			serving = append(serving, n)
		}
	}
	if len(serving) == 0 {
		return alive
	}
	return serving
}

// Missing returns the names of the gateways that have not acknowledged the object, sorted.
func (l Gateways) Missing(object types.UID) (names []string) {
	for i := range l {
		if !slices.Contains(l[i].Status.Acks, string(object)) {
			names = append(names, l[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// Have reports whether every gateway has acknowledged the object; false without a gateway.
func (l Gateways) Have(object types.UID) bool { return len(l) > 0 && len(l.Missing(object)) == 0 }

// GatewayNodeChanged reports whether an update of a Node may change which gateways are in service.
func GatewayNodeChanged(was, is *corev1.Node) bool {
	return was.UID != is.UID || NodeReady(was) != NodeReady(is) || IsGateway(was) != IsGateway(is) ||
		was.Status.NodeInfo.BootID != is.Status.NodeInfo.BootID
}
