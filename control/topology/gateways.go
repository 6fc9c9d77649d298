package topology

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// Ready says whether the node is a gateway with its tables in the kernel.
func GatewayReady(n *v1alpha1.NodeIndex) bool { return n.Status.Gateway && n.Status.Ready }

// Changed says whether something may have got its last acknowledgement by an update.
func NodeIndexChanged(was, is *v1alpha1.NodeIndex) bool {
	return GatewayReady(was) != GatewayReady(is) || GatewayReady(is) && !slices.Equal(was.Status.Acks, is.Status.Acks)
}

// Index is the field of a cache by which a controller finds the ready gateways.
type GatewayIndex string

// AddTo adds the index to the manager's cache.
func (i GatewayIndex) AddTo(mgr ctrl.Manager) error {
	return kube.AddFlagIndex(mgr, &v1alpha1.NodeIndex{}, string(i), GatewayReady)
}

// List lists the ready gateways from a cache that has the index.
func (i GatewayIndex) List(ctx context.Context, cache client.Reader) (Gateways, error) {
	var list v1alpha1.NodeIndexList
	if err := cache.List(ctx, &list, client.MatchingFields{string(i): kube.IndexFlag}); err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	return list.Items, nil
}

// List is the ready gateways of a cluster.
type Gateways []v1alpha1.NodeIndex

// Have says whether every ready gateway lists the object; without a ready gateway nothing is acknowledged.
func (l Gateways) Have(object types.UID) bool {
	for i := range l {
		if !slices.Contains(l[i].Status.Acks, string(object)) {
			return false
		}
	}
	return len(l) > 0
}
