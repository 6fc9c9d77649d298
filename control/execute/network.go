package execute

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// readGateways reads the Gateways of a member; none if it has no data plane of ours, or they may not be read.
func readGateways(ctx context.Context, member rest.Interface) ([]submarinerv1.Gateway, error) {
	text, err := member.Get().AbsPath("/apis", submarinerv1.GroupVersion.String(), "gateways").DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list Gateways: %w", err)
	}
	var list submarinerv1.GatewayList
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the list of Gateways: %w", err)
	}
	return list.Items, nil
}

// network is which clusters the gateways reach, by name. The Gateway of a node that is not ready is not up to date.
func network(gateways []submarinerv1.Gateway, nodes []node) []clusterv1alpha1.NetworkPath {
	reachable := map[string]bool{}
	for i := range gateways {
		g := &gateways[i]
		if !slices.ContainsFunc(nodes, func(n node) bool { return n.name == g.Name && n.ready }) {
			continue
		}
		for k := range g.Status.Connections {
			c := &g.Status.Connections[k]
			if of := c.Endpoint.ClusterID; of != "" {
				reachable[of] = reachable[of] || c.Status == submarinerv1.Connected
			}
		}
	}
	var out []clusterv1alpha1.NetworkPath
	for _, name := range slices.Sorted(maps.Keys(reachable)) {
		out = append(out, clusterv1alpha1.NetworkPath{Cluster: name, Reachable: reachable[name]})
	}
	return out
}
