package peering

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// Options are the facts of the cluster that the controllers work with.
type Options struct {
	ClusterID    string
	ClusterIndex uint16
	// Subnets is what other clusters route to this one.
	Subnets                             []netip.Prefix
	PodCIDRs, ServiceCIDRs, GlobalCIDRs []netip.Prefix
	// ExternalCIDRs are those of hosts outside the cluster.
	ExternalCIDRs []netip.Prefix
	// GlobalRange is what the GlobalCIDRs of all clusters are taken from; not valid without globalnet.
	GlobalRange netip.Prefix
	// Fabric is the clusterset's range of node addresses.
	Fabric      netip.Prefix
	CableDriver string
	CablePort   uint16
	// NoNAT: gateways with a public address are not behind NAT.
	NoNAT bool
	// WireVersion is the newest version of the overlay header that the nodes accept.
	WireVersion     int
	SystemNamespace string
	BrokerNamespace string
	HubID           string
	// HubServers are the URLs of the hub's API server: the one in use and, while the hub moves,
	// another.
	HubServers []string
	// APIServers are the servers of this cluster's own API server, besides its endpoints: that of the
	// agent's connection, and the host of the kubeconfig that the cluster joined with. URL or host.
	APIServers []string
	Hub        *hubclient.Hub
}

// Setup adds the four controllers to the manager.
func Setup(mgr ctrl.Manager, o Options) error {
	r := reconciler{Options: o, silent: silence{}, local: mgr.GetClient(), events: kube.EventRecorder(mgr, "pelago-agent")}
	atHub := func(client.Object) []reconcile.Request { return once }
	onSync := func(context.Context) []reconcile.Request { return once }
	here := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return once })
	inSystem := builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
		return obj.GetNamespace() == o.SystemNamespace
	}))

	err := errors.Join(
		r.controller(mgr, "peers-publish").
			Watches(&corev1.Node{}, here, builder.WithPredicates(gatewayNodes)).
			Watches(&v1alpha1.NodeIndex{}, here).
			Watches(topology.RouteAgentMetadata(), here, builder.WithPredicates(reported)).
			WatchesRawSource(o.Hub.Source(&submarinerv1.Endpoint{}, atHub)).
			WatchesRawSource(o.Hub.OnSync(onSync)).
			Complete(reconcile.Func(r.publish)),
		r.controller(mgr, "peers-mirror").
			Watches(&submarinerv1.Cluster{}, here, inSystem).
			Watches(&submarinerv1.Endpoint{}, here, inSystem).
			WatchesRawSource(o.Hub.Source(&submarinerv1.Cluster{}, atHub)).
			WatchesRawSource(o.Hub.Source(&corev1.ConfigMap{}, atHub)).
			WatchesRawSource(o.Hub.Source(&submarinerv1.Endpoint{}, atHub)).
			WatchesRawSource(o.Hub.OnSync(onSync)).
			Complete(reconcile.Func(r.mirror)),
		r.controller(mgr, "peers-accept").
			Watches(&submarinerv1.Cluster{}, here, inSystem).
			Watches(&submarinerv1.Endpoint{}, here, inSystem).
			Watches(&v1alpha1.Peer{}, here).
			Watches(&corev1.Node{}, here, builder.WithPredicates(readdressed)).
			Watches(&v1alpha1.NodeIndex{}, here, builder.WithPredicates(otherNeeds)).
			Watches(&discoveryv1.EndpointSlice{}, here, builder.WithPredicates(ofAPIServer)).
			Watches(&corev1.Service{}, here, builder.WithPredicates(ofClusterDNS)).
			WatchesRawSource(o.Hub.OnSync(onSync)).
			Complete(reconcile.Func(r.accept)),
		r.controller(mgr, "peers-balance").
			Watches(&corev1.Node{}, here, builder.WithPredicates(gatewayNodes)).
			Watches(&v1alpha1.NodeIndex{}, here).
			Watches(&corev1.Service{}, here, inSystem).
			Watches(&discoveryv1.EndpointSlice{}, here, inSystem).
			Complete(reconcile.Func(r.balance)),
	)
	if err != nil {
		return fmt.Errorf("set up controllers peers: %w", err)
	}
	return nil
}

// once is the only request of each controller, which reconciles all of its objects together.
var once = []reconcile.Request{{}}

// gatewayNodes passes the events of Nodes that are or were gateways, so that heartbeats of other
// nodes cause no reconcile.
var gatewayNodes = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return isGateway(e.ObjectOld) || isGateway(e.ObjectNew) },
	CreateFunc: func(e event.CreateEvent) bool { return isGateway(e.Object) },
	DeleteFunc: func(e event.DeleteEvent) bool { return isGateway(e.Object) },
}

// readdressed passes the events of Nodes that change their addresses.
var readdressed = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Node)
		after, ok2 := e.ObjectNew.(*corev1.Node)
		return !ok1 || !ok2 || !slices.Equal(nodeAddresses(before), nodeAddresses(after))
	},
}

// reported passes the updates of RouteAgents that are another report.
var reported = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool { return !topology.SameReport(e.ObjectOld, e.ObjectNew) },
}

func isGateway(node client.Object) bool { return node.GetLabels()[submarinerv1.LabelGateway] == "true" }

type reconciler struct {
	Options
	local  client.Client
	events record.EventRecorder
	// silent has since when gateways answer no witness; written by the one worker of peers-publish.
	silent silence
	// servers are the last known results of resolve, written by the one worker of peers-accept.
	servers map[string][]netip.Addr
}

// resolveTimeout bounds a DNS query for a server's name.
const resolveTimeout = 2 * time.Second

// resolve returns the addresses of a server, a URL or a host; while its name does not resolve, the
// last known ones.
func (r *reconciler) resolve(ctx context.Context, server string) []netip.Addr {
	host := server
	if u, err := url.Parse(server); err == nil && u.Host != "" {
		host = u.Hostname()
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	if found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host); err == nil {
		var addresses []netip.Addr
		for _, a := range found {
			addresses = append(addresses, a.Unmap().WithZone(""))
		}
		slices.SortFunc(addresses, netip.Addr.Compare)
		if r.servers == nil {
			r.servers = map[string][]netip.Addr{}
		}
		r.servers[server] = addresses
	}
	return r.servers[server]
}

func (r *reconciler) controller(mgr ctrl.Manager, name string) *builder.Builder {
	return ctrl.NewControllerManagedBy(mgr).Named(name).WithOptions(kube.HubControllerOptions(1))
}

// publish writes the Endpoints of the own gateways at the hub.
func (r *reconciler) publish(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if !r.Hub.Synced() {
		return reconcile.Result{}, nil
	}
	var nodes corev1.NodeList
	var indexes v1alpha1.NodeIndexList
	var endpoints submarinerv1.EndpointList
	if err := errors.Join(
		// those without the label may still serve
		r.local.List(ctx, &nodes, client.UnsafeDisableDeepCopy),
		r.local.List(ctx, &indexes),
		r.Hub.Client().List(ctx, &endpoints, client.InNamespace(r.Hub.Namespace()), client.MatchingLabels{submarinerv1.LabelClusterID: r.ClusterID}),
	); err != nil {
		return reconcile.Result{}, fmt.Errorf("read gateways: %w", err)
	}
	reports, err := topology.Reports(ctx, r.local, time.Now())
	if err != nil {
		return reconcile.Result{}, err
	}
	silent, wait := r.silent.next(topology.Silent(reports), time.Now())
	want, problems := r.ownEndpoints(nodes.Items, indexes.Items, silent)
	r.report(problems)
	set := kube.ObjectSet[*submarinerv1.Endpoint]{
		Client: r.Hub.Client(),
		Owns:   func(obj client.Object) bool { return obj.GetLabels()[submarinerv1.LabelClusterID] == r.ClusterID },
		Copy:   func(dst, src *submarinerv1.Endpoint) { dst.Spec = src.Spec },
	}
	err = set.Apply(ctx, kube.Pointers(endpoints.Items), want)
	if hubclient.IsUnreachable(err) { // its transport has logged it
		return reconcile.Result{RequeueAfter: hubclient.RequeueAway}, nil
	}
	result, err := hubclient.Result(err)
	if err == nil && wait > 0 && (result.RequeueAfter == 0 || wait < result.RequeueAfter) {
		result.RequeueAfter = wait
	}
	return result, err
}

// silentHold is how long a gateway must answer no witness before its Endpoint is withdrawn: peers
// drop its tunnels then, which a short outage of the nodes' network must not cause. It is far below
// the time for which a released address rests.
const silentHold = 10 * time.Second

// silence has since when gateways answer no witness.
type silence map[string]time.Time

// next takes in which gateways answer no witness, and returns those for which it has lasted, and
// the time until another one counts; 0: none does.
func (s silence) next(silent map[string]bool, now time.Time) (lasting map[string]bool, wait time.Duration) {
	lasting = map[string]bool{}
	for name := range s {
		if !silent[name] {
			delete(s, name)
		}
	}
	for name := range silent {
		if s[name].IsZero() {
			s[name] = now
		}
		if left := s[name].Add(silentHold).Sub(now); left <= 0 {
			lasting[name] = true
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	return lasting, wait
}

// mirror copies the hub's Clusters and Endpoints into the member. Endpoints are created before
// their Cluster and deleted after it, so that no Peer is without gateways in between.
func (r *reconciler) mirror(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if !r.Hub.Synced() {
		return reconcile.Result{}, nil
	}
	var clusters submarinerv1.ClusterList
	var endpoints submarinerv1.EndpointList
	hubClusters, err1 := r.Hub.Clusters(ctx)
	hubEndpoints, err2 := r.Hub.Endpoints(ctx)
	allowed, err3 := r.Hub.ClusterRanges(ctx)
	if err := errors.Join(err1, err2, err3,
		r.local.List(ctx, &clusters, client.InNamespace(r.SystemNamespace)),
		r.local.List(ctx, &endpoints, client.InNamespace(r.SystemNamespace)),
	); err != nil {
		return reconcile.Result{}, fmt.Errorf("read Clusters and Endpoints: %w", err)
	}
	owner := kube.Owner{HubID: r.HubID}
	clusterSet := kube.ObjectSet[*submarinerv1.Cluster]{Client: r.local, Owns: owner.Owns, Copy: copyCluster}
	endpointSet := kube.ObjectSet[*submarinerv1.Endpoint]{
		Client: r.local, Owns: owner.Owns, Copy: func(dst, src *submarinerv1.Endpoint) { dst.Spec = src.Spec },
	}
	haveEndpoints, wantEndpoints := kube.Pointers(endpoints.Items), r.endpointCopies(hubEndpoints)
	return hubclient.Result(errors.Join(
		endpointSet.Ensure(ctx, haveEndpoints, wantEndpoints),
		clusterSet.Apply(ctx, kube.Pointers(clusters.Items), r.clusterCopies(hubClusters, allowed)),
		endpointSet.Prune(ctx, haveEndpoints, wantEndpoints),
	))
}

// accept writes the Peers that follow from the copies.
func (r *reconciler) accept(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	var clusters submarinerv1.ClusterList
	var endpoints submarinerv1.EndpointList
	var peers v1alpha1.PeerList
	var nodes corev1.NodeList
	if err := errors.Join(
		r.local.List(ctx, &clusters, client.InNamespace(r.SystemNamespace)),
		r.local.List(ctx, &endpoints, client.InNamespace(r.SystemNamespace)),
		r.local.List(ctx, &peers),
		r.local.List(ctx, &nodes),
	); err != nil {
		return reconcile.Result{}, fmt.Errorf("read Clusters, Endpoints, Peers and Nodes: %w", err)
	}
	owner := kube.Owner{HubID: r.HubID}
	needed, err := r.needed(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	k := known{nodes: nodes.Items, needed: needed}
	for _, server := range r.HubServers {
		k.hub = append(k.hub, r.resolve(ctx, server)...)
	}
	for _, p := range peers.Items {
		if owner.Owns(&p) {
			k.peers = append(k.peers, p)
		}
	}
	for _, c := range clusters.Items {
		if owner.Owns(&c) {
			k.clusters = append(k.clusters, c)
		}
	}
	for _, e := range endpoints.Items {
		if owner.Owns(&e) {
			k.endpoints = append(k.endpoints, e)
		}
	}
	want, problems := r.peers(k)
	r.report(problems)
	have := kube.Pointers(peers.Items)
	errs := []error{r.ensurePeers(ctx, have, want)}
	if r.Hub.Synced() {
		errs = append(errs, r.peerSet().Prune(ctx, have, want))
	}
	return hubclient.Result(errors.Join(errs...))
}

func (r *reconciler) report(problems []problem) {
	for _, p := range problems {
		r.events.Event(p.object, corev1.EventTypeWarning, p.reason, p.message)
	}
}
