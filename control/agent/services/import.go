package services

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
)

const importWorkers = 4

// ImportOptions are the facts of the cluster that the controller works with.
type ImportOptions struct {
	ClusterID       string
	SystemNamespace string
	HubID           string
	// ModeMCS: an import of type ClusterSetIP needs a ClusterSetIP, and an endpoint without
	// hostname has its address as one.
	ModeMCS bool
	// UnreachableClusters calls set with the clusters that no gateway reaches; nil: none ever.
	UnreachableClusters func(ctx context.Context, set func(dead []string))
	Hub                 *hubclient.Hub
}

// SetupImports adds the controller to the manager and its indexes to the cache.
func SetupImports(mgr ctrl.Manager, o ImportOptions) error {
	counted, err := newCounted(mgr.GetClient(), "submariner_service_import", "Writes of imported services.", "none", "Remote ServiceImport")
	if err != nil {
		return fmt.Errorf("set up controller imports: %w", err)
	}
	r := &importReconciler{
		counted: counted,
		local:   mgr.GetClient(),
		hub:     o.Hub,
		told:    map[types.NamespacedName]map[string]string{},
		events:  kube.EventRecorder(mgr, "pelago-agent"),
		cluster: sourceCluster{
			id: o.ClusterID, systemNamespace: o.SystemNamespace, modeMCS: o.ModeMCS,
			owner: kube.Owner{HubID: o.HubID},
		},
	}
	if err := errors.Join(
		kube.AddIndex(mgr, &discoveryv1.EndpointSlice{}, indexLocal, ByService),
		kube.AddIndex(mgr, &discoveryv1.EndpointSlice{}, indexImported, importedService[*discoveryv1.EndpointSlice]),
		kube.AddIndex(mgr, &mcs.ServiceImport{}, indexImported, importedService[*mcs.ServiceImport]),
	); err != nil {
		return fmt.Errorf("set up controller imports: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("imports").
		Watches(&mcs.ServiceImport{}, handler.EnqueueRequestsFromMapFunc(ofImport)).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(ofSlice)).
		Watches(&corev1.Service{}, &handler.EnqueueRequestForObject{}).
		Watches(&mcs.ServiceExport{}, &handler.EnqueueRequestForObject{}).
		Watches(&v1alpha1.Peer{}, handler.EnqueueRequestsFromMapFunc(r.ofPeer), builder.WithPredicates(judged)).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespace)).
		Watches(&submarinerv1.Gateway{}, handler.EnqueueRequestsFromMapFunc(r.ofGateway), builder.WithPredicates(measured)).
		WatchesRawSource(o.Hub.Source(&v1alpha1.ServiceContribution{}, o.Hub.OfContribution)).
		WatchesRawSource(o.Hub.Source(&discoveryv1.EndpointSlice{}, ofLabelled)).
		WatchesRawSource(o.Hub.Source(&submarinerv1.Cluster{}, o.Hub.OfCluster)).
		WatchesRawSource(o.Hub.OnSync(r.all)).
		WithOptions(kube.HubControllerOptions(importWorkers)).
		WatchesRawSource(source.Func(r.watchDead(o.UnreachableClusters))).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up controller imports: %w", err)
	}
	return nil
}

type importReconciler struct {
	local   client.Client
	counted counted // writes merged imports
	hub     *hubclient.Hub
	events  record.EventRecorder
	cluster sourceCluster
	dead    atomic.Pointer[unreachableClusters] // nil: no verdict yet

	toldMu sync.Mutex
	told   map[types.NamespacedName]map[string]string // service → cause → what Events have reported
}

// Reconcile handles one service; the request is its namespace and name.
func (r *importReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	have, err := r.have(ctx, req)
	if err != nil {
		return reconcile.Result{}, err
	}
	s, err := r.read(ctx, req)
	if err != nil {
		return reconcile.Result{}, err
	}
	if r.hub.Synced() {
		s.dead = have.marked() // until there is a verdict
		if err := errors.Join(r.readHub(ctx, &s), r.readNearest(ctx, &s, have.imported)); err != nil {
			return reconcile.Result{}, err
		}
		r.tell(req.NamespacedName, s.notices(have.imported))
		err = r.apply(ctx, have, r.cluster.desired(s))
	} else {
		err = r.applyWithoutHub(ctx, have, s)
	}
	return hubclient.Result(err)
}

// present is what the member has of one service now.
type present struct {
	imported *mcs.ServiceImport // nil: none
	copies   []*mcs.ServiceImport
	slices   []*discoveryv1.EndpointSlice
}

// marked are the clusters that an agent before this one found dead, by the marks on their slices.
func (p present) marked() (clusters []string) {
	for _, slice := range p.slices {
		if _, marked := slice.Annotations[v1alpha1.AnnotationUnreachable]; marked {
			clusters = append(clusters, slice.Labels[mcs.LabelSourceCluster])
		}
	}
	return clusters
}

func (r *importReconciler) have(ctx context.Context, req reconcile.Request) (present, error) {
	var p present
	var i mcs.ServiceImport
	switch err := r.local.Get(ctx, req.NamespacedName, &i); {
	case err == nil:
		p.imported = &i
	case !apierrors.IsNotFound(err):
		return p, fmt.Errorf("read ServiceImport %s: %w", req, err)
	}
	var copies mcs.ServiceImportList
	if err := r.local.List(ctx, &copies, client.InNamespace(r.cluster.systemNamespace), client.MatchingFields{indexImported: req.String()}); err != nil {
		return p, fmt.Errorf("read the ServiceImports of %s in the system namespace: %w", req, err)
	}
	var slices discoveryv1.EndpointSliceList
	if err := r.local.List(ctx, &slices, client.InNamespace(req.Namespace), client.MatchingFields{indexImported: req.String()}); err != nil {
		return p, fmt.Errorf("read the imported EndpointSlices of %s: %w", req, err)
	}
	p.copies, p.slices = kube.Pointers(copies.Items), kube.Pointers(slices.Items)
	return p, nil
}

// read collects what the own cluster says of the service.
func (r *importReconciler) read(ctx context.Context, req reconcile.Request) (importState, error) {
	s := importState{namespace: req.Namespace, name: req.Name}
	var namespace corev1.Namespace
	if err := r.local.Get(ctx, client.ObjectKey{Name: req.Namespace}, &namespace); err == nil {
		s.namespaceExists = namespace.DeletionTimestamp == nil
	} else if !apierrors.IsNotFound(err) {
		return s, fmt.Errorf("read Namespace %s: %w", req.Namespace, err)
	}
	var export mcs.ServiceExport
	if err := r.local.Get(ctx, req.NamespacedName, &export); err == nil {
		s.exported = export.DeletionTimestamp == nil
	} else if !apierrors.IsNotFound(err) {
		return s, fmt.Errorf("read ServiceExport %s: %w", req, err)
	}
	if !s.exported {
		return s, nil // the own Service is no part of what is imported
	}
	var service corev1.Service
	if err := r.local.Get(ctx, req.NamespacedName, &service); err == nil {
		s.service = &service
	} else if !apierrors.IsNotFound(err) {
		return s, fmt.Errorf("read Service %s: %w", req, err)
	}
	var slices discoveryv1.EndpointSliceList
	if err := r.local.List(ctx, &slices, client.InNamespace(req.Namespace), client.MatchingFields{indexLocal: req.String()}); err != nil {
		return s, fmt.Errorf("read the EndpointSlices of Service %s: %w", req, err)
	}
	s.localSlices = slices.Items
	return s, nil
}

// readHub adds what the hub says.
func (r *importReconciler) readHub(ctx context.Context, s *importState) error {
	service := client.ObjectKey{Namespace: s.namespace, Name: s.name}
	var err error
	if s.contributions, err = r.hub.Contributions(ctx, service); err != nil {
		return err
	}
	if s.hubSlices, err = r.hub.Slices(ctx, service); err != nil {
		return err
	}
	if err := r.readPeers(ctx, s); err != nil {
		return err
	}
	if dead := r.dead.Load(); dead != nil {
		s.dead, s.stale = dead.at(time.Now())
	} else {
		was, gone := r.recorded(ctx).at(time.Now())
		s.dead, s.stale = append(s.dead, was...), gone
	}
	if s.joined, err = r.hub.Members(ctx); err != nil {
		return err
	}
	s.vips, err = readVIPs(ctx, r.hub, s.contributions, s.joined)
	return err
}
