package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Indexes over the cache.
const (
	byService   = "service" // `<namespace>/<name>`
	byNamespace = "source-namespace"
	byCluster   = "cluster"
)

// addIndexes makes the reads below cheap.
func addIndexes(c cluster.Cluster) error {
	add := func(obj client.Object, field string, value func(client.Object) string) error {
		return c.GetFieldIndexer().IndexField(context.Background(), obj, field, func(o client.Object) []string { return []string{value(o)} })
	}
	service := func(o client.Object) string { return ServiceOf(o).String() }
	return errors.Join(
		add(&discoveryv1.EndpointSlice{}, byService, service),
		add(&v1alpha1.ServiceContribution{}, byService, service),
		add(&v1alpha1.ServiceContribution{}, byNamespace, func(o client.Object) string { return ServiceOf(o).Namespace }),
		add(&v1alpha1.ServiceContribution{}, byCluster, func(o client.Object) string { return o.GetLabels()[submarinerv1.LabelClusterID] }),
	)
}

// Service is the service that a contribution or slice at the hub speaks of, by its labels.
func ServiceOf(obj client.Object) types.NamespacedName {
	labels := obj.GetLabels()
	return types.NamespacedName{Namespace: labels[submarinerv1.LabelSourceNamespace], Name: labels[mcs.LabelServiceName]}
}

// Contributions returns all clusters' contributions to a service.
func (h *Hub) Contributions(ctx context.Context, service types.NamespacedName) ([]v1alpha1.ServiceContribution, error) {
	return h.contributions(ctx, byService, service.String())
}

// ContributionsOf returns what a cluster contributes.
func (h *Hub) ContributionsOf(ctx context.Context, cluster string) ([]v1alpha1.ServiceContribution, error) {
	return h.contributions(ctx, byCluster, cluster)
}

// ContributionsIn returns the contributions to the services of a namespace.
func (h *Hub) ContributionsIn(ctx context.Context, namespace string) ([]v1alpha1.ServiceContribution, error) {
	return h.contributions(ctx, byNamespace, namespace)
}

func (h *Hub) contributions(ctx context.Context, index, value string) ([]v1alpha1.ServiceContribution, error) {
	var list v1alpha1.ServiceContributionList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace), client.MatchingFields{index: value}); err != nil {
		return nil, fmt.Errorf("read the contributions of %s %s at the hub: %w", index, value, err)
	}
	return list.Items, nil
}

// Slices returns the EndpointSlices of a service, those of all clusters.
func (h *Hub) Slices(ctx context.Context, service types.NamespacedName) ([]discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace), client.MatchingFields{byService: service.String()}); err != nil {
		return nil, fmt.Errorf("read the EndpointSlices of service %s at the hub: %w", service, err)
	}
	return list.Items, nil
}

// Members returns the ids of the clusterset's clusters and when each joined.
func (h *Hub) Members(ctx context.Context) (map[string]time.Time, error) {
	var list submarinerv1.ClusterList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace)); err != nil {
		return nil, fmt.Errorf("read the Clusters at the hub: %w", err)
	}
	joined := make(map[string]time.Time, len(list.Items))
	for _, c := range list.Items {
		joined[c.Spec.ClusterID] = c.CreationTimestamp.Time
	}
	return joined, nil
}
