package services

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// readNearest adds the round-trip times to other clusters if an exporter prefers the nearest one.
// have: the present import, nil if none exists.
func (r *importReconciler) readNearest(ctx context.Context, s *importState, have *mcs.ServiceImport) error {
	if !slices.ContainsFunc(s.contributions, func(x v1alpha1.ServiceContribution) bool {
		return topology.PrefersNearest(x.Spec.ExportedAnnotations)
	}) {
		return nil
	}
	var gateways submarinerv1.GatewayList
	if err := r.local.List(ctx, &gateways, client.InNamespace(r.cluster.systemNamespace)); err != nil {
		return fmt.Errorf("read Gateways: %w", err)
	}
	s.roundTrips = topology.RoundTrips(gateways.Items)
	if have != nil {
		if order := have.Annotations[v1alpha1.AnnotationNearest]; order != "" {
			s.nearest = strings.Split(order, ",")
		}
	}
	return nil
}

// measured passes the events of a Gateway that change the round-trip times it reports.
var measured = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*submarinerv1.Gateway)
	after, ok2 := e.ObjectNew.(*submarinerv1.Gateway)
	if !ok1 || !ok2 {
		return true
	}
	return !slices.EqualFunc(before.Status.Connections, after.Status.Connections, func(a, b submarinerv1.Connection) bool {
		return a.Endpoint.ClusterID == b.Endpoint.ClusterID && a.Status == b.Status && average(a) == average(b)
	})
}}

// average is the mean round-trip time of a connection; empty: it is not measured.
func average(c submarinerv1.Connection) string {
	if c.LatencyRTT == nil {
		return ""
	}
	return c.LatencyRTT.Average
}

// ofGateway requests the imports that prefer the nearest cluster.
func (r *importReconciler) ofGateway(ctx context.Context, _ client.Object) []reconcile.Request {
	var imported mcs.ServiceImportList
	if err := r.local.List(ctx, &imported); err != nil {
		log.FromContext(ctx).Error(err, "ServiceImports cannot be read from the cache")
	}
	var requests []reconcile.Request
	for i := range imported.Items {
		if obj := &imported.Items[i]; topology.PrefersNearest(obj.Annotations) && r.cluster.owner.Owns(obj) {
			requests = append(requests, ofImport(ctx, obj)...)
		}
	}
	return requests
}
