package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

const (
	publishTimeout = 8 * time.Second // leaves time to report
	workers        = 4
)

// ExportOptions are the facts of the cluster that the controller works with.
type ExportOptions struct {
	ClusterID string
	Globalnet bool
	// Routed, the ranges of pods and of hosts outside the cluster, and Fabric, the address of a
	// node by its index, are used without globalnet.
	Routed []netip.Prefix
	Fabric func(node uint16) (netip.Addr, error)
	// ClusterSetIPs: an export gets a ClusterSetIP unless its annotation says otherwise.
	ClusterSetIPs bool
	// DashedHostnames: an endpoint without hostname has its address as one (mode mcs), not the name
	// of its pod.
	DashedHostnames bool
	Hub             *hubclient.Hub
}

// SetupExports adds the controller to the manager and its indexes to the caches.
func SetupExports(mgr ctrl.Manager, o ExportOptions) error {
	counted, err := newCounted(o.Hub.Client(), "submariner_service_export", "Writes of exported services.", "localToRemote", "Local ServiceImport")
	if err != nil {
		return fmt.Errorf("set up controller export: %w", err)
	}
	r := &reconciler{
		counted: counted,
		local:   mgr.GetClient(),
		live:    mgr.GetAPIReader(),
		hub:     o.Hub,
		events:  kube.EventRecorder(mgr, "pelago-agent"),
		cluster: cluster{
			id: o.ClusterID, globalnet: o.Globalnet, brokerNamespace: o.Hub.Namespace(), routed: o.Routed, fabric: o.Fabric,
			clusterSetIPs: o.ClusterSetIPs, dashedHostnames: o.DashedHostnames,
		},
	}
	if err := errors.Join(
		kube.AddIndex(mgr, &discoveryv1.EndpointSlice{}, indexService, ByService),
		kube.AddIndex(mgr, &discoveryv1.EndpointSlice{}, indexPod, podsOf),
		kube.AddIndex(mgr, &v1alpha1.GlobalAddress{}, indexVIP, vipService),
	); err != nil {
		return fmt.Errorf("set up controller export: %w", err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named("export").
		For(&mcs.ServiceExport{}).
		Watches(&corev1.Service{}, &handler.EnqueueRequestForObject{}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(ofLocalSlice)).
		Watches(&v1alpha1.NodeIndex{}, handler.EnqueueRequestsFromMapFunc(r.ofNodeIndex), builder.WithPredicates(newNodes)).
		Watches(&submarinerv1.GlobalIngressIP{}, handler.EnqueueRequestsFromMapFunc(r.ofIngressIP)).
		Watches(&v1alpha1.Peer{}, handler.EnqueueRequestsFromMapFunc(r.ofPeer), builder.WithPredicates(newSubnets)).
		Watches(&v1alpha1.GlobalAddress{}, handler.EnqueueRequestsFromMapFunc(ofVIP)).
		WatchesRawSource(o.Hub.Source(&v1alpha1.ServiceContribution{}, o.Hub.OfContribution)).
		WatchesRawSource(o.Hub.Source(&discoveryv1.EndpointSlice{}, r.ofOwnHubSlice)).
		WatchesRawSource(o.Hub.Source(&submarinerv1.Cluster{}, r.ofCluster)).
		WatchesRawSource(o.Hub.OnSync(r.all)).
		WithOptions(kube.HubControllerOptions(workers)).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up controller export: %w", err)
	}
	return nil
}

type reconciler struct {
	local   client.Client
	live    client.Reader // past the cache
	hub     *hubclient.Hub
	counted counted // writes contributions at the hub
	events  record.EventRecorder
	cluster cluster

	awaits sync.Map // service → since when the claim of an older exporter is awaited (time.Time)
}

// Reconcile handles one service; the request is its namespace and name.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s, err := r.read(ctx, req)
	if err != nil {
		return reconcile.Result{}, err
	}
	o := outcome{synced: r.hub.Synced()}
	if o.synced {
		if s.members, err = r.hub.MemberLabels(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	o.offer = r.cluster.desired(s)
	var wait time.Duration // for a ClusterSetIP
	if o.synced {
		if o.vip, wait, err = r.assignVIP(ctx, req.NamespacedName, s.export, &o.offer); err != nil {
			return hubclient.Result(err)
		}
		o.err = r.publish(ctx, req, o.offer)
		o.published = o.err == nil
		if o.conflicts, err = r.conflicts(ctx, req, o); err != nil {
			return reconcile.Result{}, err
		}
	}
	if kube.IsStale(o.err) {
		return reconcile.Result{RequeueAfter: hubclient.RequeueStale}, nil
	}
	if s.export != nil && s.export.DeletionTimestamp == nil {
		if err := r.report(ctx, s.export, o); err != nil {
			return reconcile.Result{}, err
		}
	}
	if hubclient.IsUnreachable(o.err) { // its transport has logged it
		return reconcile.Result{RequeueAfter: hubclient.RequeueAway}, nil
	}
	if o.err != nil {
		return reconcile.Result{}, o.err
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// read collects the state of the service in the own cluster.
func (r *reconciler) read(ctx context.Context, req reconcile.Request) (state, error) {
	s := state{export: &mcs.ServiceExport{}, service: &corev1.Service{}, ingress: map[string]submarinerv1.GlobalIngressIP{}}
	if err := r.local.Get(ctx, req.NamespacedName, s.export); apierrors.IsNotFound(err) {
		return state{}, nil
	} else if err != nil {
		return s, fmt.Errorf("read ServiceExport %s: %w", req, err)
	}
	if err := r.local.Get(ctx, req.NamespacedName, s.service); apierrors.IsNotFound(err) {
		s.service = nil
		return s, nil
	} else if err != nil {
		return s, fmt.Errorf("read Service %s: %w", req, err)
	}
	var list discoveryv1.EndpointSliceList
	if err := r.local.List(ctx, &list, client.InNamespace(req.Namespace), client.MatchingFields{indexService: req.String()}); err != nil {
		return s, fmt.Errorf("read EndpointSlices of Service %s: %w", req, err)
	}
	s.slices = list.Items
	if err := errors.Join(r.readElsewhere(ctx, &s), r.readNodes(ctx, &s)); err != nil || !r.cluster.globalnet {
		return s, err
	}
	names := []string{req.Name}
	if s.service.Spec.ClusterIP == corev1.ClusterIPNone {
		names = endpointIngressNames(req.Name, s.slices)
	}
	for _, name := range names {
		var g submarinerv1.GlobalIngressIP
		err := r.local.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: name}, &g)
		if client.IgnoreNotFound(err) != nil {
			return s, fmt.Errorf("read GlobalIngressIP %s/%s: %w", req.Namespace, name, err)
		}
		if err == nil && g.DeletionTimestamp == nil {
			s.ingress[name] = g
		}
	}
	return s, nil
}

// readElsewhere adds the ranges of other clusters, if an endpoint is on no node.
func (r *reconciler) readElsewhere(ctx context.Context, s *state) error {
	if !slices.ContainsFunc(s.slices, func(slice discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool { return e.NodeName == nil })
	}) {
		return nil
	}
	var peers v1alpha1.PeerList
	if err := r.local.List(ctx, &peers); err != nil {
		return fmt.Errorf("read Peers: %w", err)
	}
	for _, p := range peers.Items {
		for _, text := range p.Spec.Subnets {
			// peering writes only valid prefixes
			if prefix, err := netip.ParsePrefix(text); err == nil {
				s.elsewhere = append(s.elsewhere, prefix)
			}
		}
	}
	return nil
}

// readNodes adds the nodes that endpoints are on; their indexes only where endpoints are published
// under them, those of a headless service without globalnet.
func (r *reconciler) readNodes(ctx context.Context, s *state) error {
	s.nodes = map[string]node{}
	for _, slice := range s.slices {
		for _, e := range slice.Endpoints {
			name := ptr.Deref(e.NodeName, "")
			if _, known := s.nodes[name]; known || name == "" {
				continue
			}
			var index v1alpha1.NodeIndex
			if !r.cluster.globalnet && s.service.Spec.ClusterIP == corev1.ClusterIPNone {
				if err := r.local.Get(ctx, client.ObjectKey{Name: name}, &index); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("read NodeIndex %s: %w", name, err)
				}
			}
			var on corev1.Node
			if err := r.local.Get(ctx, client.ObjectKey{Name: name}, &on); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("read Node %s: %w", name, err)
			}
			s.nodes[name] = node{uint16(index.Spec.Index), addressesOf(&on), !topology.HasDatapath(on.Labels)}
		}
	}
	return nil
}

// addressesOf are a node's own addresses.
func addressesOf(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

func endpointIngressNames(service string, slices []discoveryv1.EndpointSlice) []string {
	var names []string
	for _, s := range slices {
		for _, e := range s.Endpoints {
			names = append(names, ingressName(service, e))
		}
	}
	return names
}

// publish writes the own objects at the hub. The contribution announces the slices: it is created
// after them and deleted before them.
func (r *reconciler) publish(ctx context.Context, req reconcile.Request, o offer) error {
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	slices, err := r.hub.Slices(ctx, req.NamespacedName)
	if err != nil {
		return err
	}
	contributions, err := r.hub.Contributions(ctx, req.NamespacedName)
	if err != nil {
		return err
	}
	presentSlices, present := hubclient.Present(r.hub, slices), hubclient.Present(r.hub, contributions)
	var wanted []*v1alpha1.ServiceContribution
	if o.contribution != nil {
		wanted = append(wanted, o.contribution)
	}
	contributionSet := kube.ObjectSet[*v1alpha1.ServiceContribution]{Client: r.counted, Owns: r.owns, Copy: func(dst, src *v1alpha1.ServiceContribution) { dst.Spec = src.Spec }}
	sliceObjects := sliceSet(r.hub.Client(), r.owns)
	if err := sliceObjects.Ensure(ctx, presentSlices, o.slices); err != nil {
		return err
	}
	return errors.Join(contributionSet.Apply(ctx, present, wanted), sliceObjects.Prune(ctx, presentSlices, o.slices))
}

func (r *reconciler) owns(obj client.Object) bool {
	return obj.GetLabels()[submarinerv1.LabelClusterID] == r.cluster.id
}

// conflicts reads all contributions to the service, and merges them if one of them is the own
// cluster's.
func (r *reconciler) conflicts(ctx context.Context, req reconcile.Request, o outcome) ([]MergeConflict, error) {
	contributions, err := r.hub.Contributions(ctx, req.NamespacedName)
	if err != nil {
		return nil, err
	}
	joined, err := r.hub.Members(ctx)
	if err != nil {
		return nil, err
	}
	if o.published {
		contributions = withOwn(contributions, r.cluster.id, o.offer.contribution)
	}
	return conflictsOf(contributions, joined, r.cluster.id), nil
}

// withOwn replaces a cluster's contribution by the one that it has just published (nil: none): the
// cache may be behind.
func withOwn(contributions []v1alpha1.ServiceContribution, id string, own *v1alpha1.ServiceContribution) []v1alpha1.ServiceContribution {
	var created metav1.Time // of the former one; zero: none is cached yet
	out := slices.DeleteFunc(slices.Clone(contributions), func(c v1alpha1.ServiceContribution) bool {
		if c.Spec.Cluster == id {
			created = c.CreationTimestamp
		}
		return c.Spec.Cluster == id
	})
	if own != nil {
		own = own.DeepCopy()
		own.CreationTimestamp = created
		out = append(out, *own)
	}
	return out
}

// conflictsOf returns the conflicts among the contributions that meet a cluster's own (see
// meeting); none if it has no contribution.
func conflictsOf(contributions []v1alpha1.ServiceContribution, joined map[string]time.Time, id string) []MergeConflict {
	all := meeting(OfMembers(contributions, joined), id)
	if len(all) == 0 {
		return nil
	}
	return Merge(all, joined).Conflicts
}

// report writes the conditions if they changed.
func (r *reconciler) report(ctx context.Context, export *mcs.ServiceExport, o outcome) error {
	next := export.DeepCopy()
	next.Status.Conditions = conditions(export, o)
	if equality.Semantic.DeepEqual(export.Status, next.Status) {
		return nil
	}
	if err := r.local.Status().Update(ctx, next); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("write the conditions of ServiceExport %s/%s: %w", export.Namespace, export.Name, err)
	}
	return nil // after a conflict the newer export makes another request
}
