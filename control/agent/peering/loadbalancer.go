package peering

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
)

// balance writes the EndpointSlices of the Service that `join --load-balancer` created.
func (r *reconciler) balance(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var service corev1.Service
	var nodes corev1.NodeList
	var indexes v1alpha1.NodeIndexList
	var have discoveryv1.EndpointSliceList
	err := errors.Join(
		r.local.Get(ctx, client.ObjectKey{Namespace: r.SystemNamespace, Name: config.LoadBalancerService}, &service),
		r.local.List(ctx, &nodes, client.UnsafeDisableDeepCopy),
		r.local.List(ctx, &indexes),
		r.local.List(ctx, &have, client.InNamespace(r.SystemNamespace), client.MatchingLabels{discoveryv1.LabelServiceName: config.LoadBalancerService}),
	)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil // no load balancer; the slices go with their Service
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the load balancer's Service and the gateways: %w", err)
	}
	endpoints, _ := r.ownEndpoints(nodes.Items, indexes.Items, nil) // publish reports the problems
	set := kube.ObjectSet[*discoveryv1.EndpointSlice]{
		Client: r.local, Owns: kube.Owner{HubID: r.HubID}.Owns,
		Copy: func(dst, src *discoveryv1.EndpointSlice) { dst.Endpoints, dst.Ports = src.Endpoints, src.Ports },
	}
	return hubclient.Result(set.Apply(ctx, kube.Pointers(have.Items), r.balanced(service, endpoints)))
}

// balanced returns one slice for each gateway. Normally there is only one gateway, because the load
// balancer spreads packets over all of them. The ports are those of the Service, which are
// published to other clusters.
func (o Options) balanced(service corev1.Service, endpoints []*submarinerv1.Endpoint) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, e := range endpoints {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: o.SystemNamespace, Name: config.LoadBalancerService + "-" + e.Spec.Hostname,
				Labels:          map[string]string{discoveryv1.LabelServiceName: config.LoadBalancerService, discoveryv1.LabelManagedBy: "pelago"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.Name, UID: service.UID}},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{e.Spec.PrivateIP}, NodeName: &e.Spec.Hostname, Conditions: discoveryv1.EndpointConditions{Ready: yes()},
			}},
		}
		for _, p := range service.Spec.Ports {
			port, protocol := p.Port, corev1.ProtocolUDP
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port, Protocol: &protocol})
		}
		kube.Owner{HubID: o.HubID}.Mark(s)
		out = append(out, s)
	}
	return out
}

func yes() *bool {
	b := true
	return &b
}
