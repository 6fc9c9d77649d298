package peering

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// need is an address that this cluster works by.
type need struct {
	who     string
	address netip.Addr
}

const (
	apiServer  = "the API server"
	clusterDNS = "kube-dns"
)

// ofAPIServer passes the EndpointSlices of the cluster's own API server, ofClusterDNS the Services
// of its name server, otherNeeds the events of NodeIndexes that report other needed addresses.
var (
	ofAPIServer = predicate.NewPredicateFuncs(func(obj client.Object) bool {
		return obj.GetNamespace() == metav1.NamespaceDefault && obj.GetLabels()[discoveryv1.LabelServiceName] == "kubernetes"
	})
	ofClusterDNS = predicate.NewPredicateFuncs(func(obj client.Object) bool {
		return obj.GetNamespace() == metav1.NamespaceSystem && obj.GetLabels()["k8s-app"] == clusterDNS
	})
	otherNeeds = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*v1alpha1.NodeIndex)
		after, ok2 := e.ObjectNew.(*v1alpha1.NodeIndex)
		return !ok1 || !ok2 || !slices.Equal(before.Status.Needed, after.Status.Needed)
	}}
)

// needed reads what this cluster works by: its API server, its name server, and what its nodes
// report. No peer's range may contain such an address: its packets would go to the other cluster,
// and without its API server no node could be notified that the peer is gone.
func (r *reconciler) needed(ctx context.Context) ([]need, error) {
	var slicesOf discoveryv1.EndpointSliceList
	var services corev1.ServiceList
	var indexes v1alpha1.NodeIndexList
	if err := errors.Join(
		r.local.List(ctx, &slicesOf, client.InNamespace(metav1.NamespaceDefault), client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}),
		r.local.List(ctx, &services, client.InNamespace(metav1.NamespaceSystem), client.MatchingLabels{"k8s-app": clusterDNS}),
		r.local.List(ctx, &indexes, client.UnsafeDisableDeepCopy),
	); err != nil {
		return nil, fmt.Errorf("read what the cluster needs: %w", err)
	}
	var out []need
	for _, s := range r.APIServers {
		for _, a := range r.resolve(ctx, s) {
			out = append(out, need{apiServer, a})
		}
	}
	return needs(out, slicesOf.Items, services.Items, indexes.Items), nil
}

// needs adds the addresses of the API server's endpoints, of the name server and those that nodes
// report; each once, without those that no other host can have.
func needs(servers []need, endpoints []discoveryv1.EndpointSlice, dns []corev1.Service, indexes []v1alpha1.NodeIndex) []need {
	var out []need
	seen := map[netip.Addr]bool{}
	add := func(who string, a netip.Addr) {
		if a = a.Unmap(); a.IsGlobalUnicast() && !seen[a] {
			seen[a] = true
			out = append(out, need{who, a})
		}
	}
	parse := func(who string, texts []string) {
		for _, text := range texts {
			if a, err := netip.ParseAddr(text); err == nil {
				add(who, a)
			}
		}
	}
	for _, s := range endpoints {
		for _, e := range s.Endpoints {
			parse(apiServer, e.Addresses)
		}
	}
	for _, s := range servers {
		add(s.who, s.address)
	}
	for _, s := range dns {
		parse(clusterDNS, s.Spec.ClusterIPs)
	}
	for _, i := range indexes {
		parse(fmt.Sprintf("a server or resolver of node %s", i.Name), i.Status.Needed)
	}
	return out
}
