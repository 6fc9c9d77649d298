package broker

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Follower is a member that does not use the address that the hub announces.
type Follower struct {
	ClusterID string
	// Server is the address that it uses; empty: it has not reported one.
	Server string
	// Problem is why it does not use the announced one; empty: it has not tried yet.
	Problem string
}

// String is the line that is printed of it.
func (f Follower) String() string {
	switch {
	case f.Server == "":
		return f.ClusterID + ": has not reported what it uses: its agent does not run, or is of an earlier release"
	case f.Problem == "":
		return fmt.Sprintf("%s: uses %s", f.ClusterID, f.Server)
	}
	return fmt.Sprintf("%s: uses %s; %s", f.ClusterID, f.Server, f.Problem)
}

// NotFollowing returns the members that do not use the announced address, by id. None does not if
// none is announced.
func NotFollowing(ctx context.Context, hub client.Client, namespace string) ([]Follower, error) {
	set, err := readClusterset(ctx, hub, namespace)
	if err != nil || set.BrokerURL == "" {
		return nil, err
	}
	var clusters submarinerv1.ClusterList
	if err := hub.List(ctx, &clusters, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the Clusters at the hub: %w", err)
	}
	var leases coordinationv1.LeaseList
	if err := hub.List(ctx, &leases, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the Leases of the members at the hub: %w", err)
	}
	reports := map[string]*coordinationv1.Lease{}
	for i := range leases.Items {
		reports[leases.Items[i].Name] = &leases.Items[i]
	}
	var out []Follower
	for _, c := range clusters.Items { // sorted by the API server
		f := Follower{ClusterID: c.Name}
		if r := reports[AccountName(c.Name)]; r != nil && r.Spec.HolderIdentity != nil {
			f.Server, f.Problem = *r.Spec.HolderIdentity, r.Annotations[pelagov1alpha1.AnnotationHubProblem]
		}
		if f.Server != set.BrokerURL {
			out = append(out, f)
		}
	}
	return out, nil
}
