package topology

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// List returns the ready gateways from a cache that has the index.
func (i GatewayIndex) List(ctx context.Context, cache client.Reader) (Gateways, error) {
	var list v1alpha1.NodeIndexList
	if err := cache.List(ctx, &list, client.MatchingFields{string(i): kube.IndexFlag}); err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	return list.Items, nil
}

// Gateways are the ready gateways of a cluster.
type Gateways []v1alpha1.NodeIndex

// Have reports whether every ready gateway has acknowledged the object; false without a ready
// gateway.
func (l Gateways) Have(object types.UID) bool {
	for i := range l {
		if !slices.Contains(l[i].Status.Acks, string(object)) {
			return false
		}
	}
	return len(l) > 0
}
