// Package hubclient is the client with which a program works at the hub: a transport that sets the
// current token and repeats reads while the hub is unreachable, and Hub, a cache of the objects in
// the broker namespace with their indexes and event sources. Objects that a restored hub lacks
// count as present for a while.
//
// The agent of a member uses all of it, pelago-hub the retrying transport. It never decides what to
// do with an object, and never holds up a program while the hub is away.
package hubclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/cluster"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// RequeueStale follows a write to the hub that met a newer object: kube.RequeueStale is too
	// short for a hub that may be far away.
	RequeueStale = time.Second
	// RequeueAway follows a write to a hub that cannot be reached, which the transport has logged.
	RequeueAway = 2 * time.Second

	// dialTimeout bounds one attempt to reach the hub.
	dialTimeout = 5 * time.Second
)

// Result is the result of a reconcile in a member that reads from or writes to the hub. It requeues
// without an error if err is due to a stale cache only (kube.IsStale).
func Result(err error) (reconcile.Result, error) {
	if kube.IsStale(err) {
		return reconcile.Result{RequeueAfter: RequeueStale}, nil
	}
	return reconcile.Result{}, err
}

// Options defines where the hub is and what it sees of the agent.
type Options struct {
	Server    string // https URL
	CA        []byte // PEM
	Namespace string // the broker namespace
	ClusterID string // of the member; empty: no object counts as its own
	// Token returns the bearer token to use now; it is asked for each request.
	Token func() string
	// MinPause and MaxPause bound the random pause between attempts to reach a hub that is away, so
	// that the members of a clusterset do not come back all at once.
	MinPause, MaxPause time.Duration
	QPS                float32
	Burst              int
	Logger             logr.Logger
}

// Config is the config of requests to the hub, for parts that keep a cache and a client of their
// own: each request carries the token of the moment, and reads wait while the hub is away. The
// collector
// has pelago_hub_connected and pelago_hub_failed_requests_total.
func Config(o Options) (*rest.Config, prometheus.Collector) {
	config, reach := access(o)
	return config, reach
}

func access(o Options) (*rest.Config, *reachability) {
	reach := newReachability(o.Logger)
	return &rest.Config{
		Host:            o.Server,
		TLSClientConfig: rest.TLSClientConfig{CAData: o.CA},
		QPS:             o.QPS,
		Burst:           o.Burst,
		UserAgent:       "pelago-agent",
		Dial:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return &resume{min: o.MinPause, max: o.MaxPause, reach: reach, next: &authenticate{token: o.Token, next: next}}
		},
	}, reach
}

// RetryingConfig is a copy of a config whose reads are retried in the transport while the API
// server is unreachable, at random intervals between min and max. It is for the informers of a
// process that runs next to the hub (pelago-hub): by default they would retry after up to a minute.
func RetryingConfig(config *rest.Config, min, max time.Duration, logger logr.Logger) *rest.Config {
	config = rest.CopyConfig(config)
	reach := newReachability(logger)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &resume{min: min, max: max, reach: reach, next: next}
	})
	return config
}

// Hub is the access. It is a runnable of the manager that is run by the leader only.
type Hub struct {
	namespace string
	cluster   cluster.Cluster
	informers []cache.Informer
	reach     *reachability
	missing   missing
	shares    *shares
	log       logr.Logger
}

// New prepares the access; no connection is made.
func New(o Options) (*Hub, error) {
	access, reach := access(o)
	ours, err := labels.NewRequirement(discoveryv1.LabelManagedBy, "=", []string{v1alpha1.ExportedSliceManager})
	if err != nil {
		return nil, fmt.Errorf("prepare access to the hub: %w", err)
	}
	shares := newShares(o.ClusterID)
	c, err := cluster.New(access, func(co *cluster.Options) {
		co.Scheme = scheme()
		co.Logger = o.Logger
		co.MapperProvider = mapper
		co.Cache = cache.Options{
			DefaultNamespaces: map[string]cache.Config{o.Namespace: {}},
			DefaultTransform:  shares.transform,
			ByObject: map[client.Object]cache.ByObject{
				&discoveryv1.EndpointSlice{}: {Label: labels.NewSelector().Add(*ours)},
				&corev1.ConfigMap{}:          {Field: fields.OneTermEqualSelector("metadata.name", config.ClustersetConfigMap)},
			},
		}
	})
	if err != nil {
		return nil, fmt.Errorf("prepare access to the hub at %s: %w", o.Server, err)
	}
	if err := addIndexes(c); err != nil {
		return nil, fmt.Errorf("prepare the cache of the hub's objects: %w", err)
	}
	h := &Hub{namespace: o.Namespace, cluster: c, reach: reach, missing: missing{grace: missingGrace}, shares: shares, log: o.Logger}
	for _, obj := range shared() {
		// Before the start an informer is made without a request and without waiting.
		i, err := c.GetCache().GetInformer(context.Background(), obj)
		if err != nil {
			return nil, fmt.Errorf("prepare the cache of the hub's objects: %w", err)
		}
		if _, err := i.AddEventHandler(shares.handler()); err != nil {
			return nil, fmt.Errorf("prepare the cache of the hub's objects: %w", err)
		}
		h.informers = append(h.informers, i)
	}
	return h, nil
}

// shared lists the kinds of which members read all objects, of ConfigMaps that of the clusterset.
func shared() []client.Object {
	return []client.Object{
		&submarinerv1.Cluster{}, &submarinerv1.Endpoint{}, &v1alpha1.ServiceContribution{}, &discoveryv1.EndpointSlice{}, &corev1.ConfigMap{},
	}
}

// Start runs the cache until ctx ends.
func (h *Hub) Start(ctx context.Context) error { return h.cluster.Start(ctx) }

// NeedLeaderElection: only the leader loads the hub.
func (h *Hub) NeedLeaderElection() bool { return true }

// Client reads from the cache and writes to the hub. Read only after Synced: before, a read waits.
func (h *Hub) Client() client.Client { return h.cluster.GetClient() }

// Metrics has pelago_hub_connected, pelago_hub_failed_requests_total and
// pelago_hub_objects_left_out.
func (h *Hub) Metrics() []prometheus.Collector { return []prometheus.Collector{h.reach, h.shares.left} }

// Namespace is the broker namespace.
func (h *Hub) Namespace() string { return h.namespace }

// Synced reports whether the cache has seen every shared object of the hub since the agent started.
// It stays true while the hub is away: the cache then holds the last known state.
func (h *Hub) Synced() bool {
	for _, i := range h.informers {
		if !i.HasSynced() {
			return false
		}
	}
	return true
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, submarinerv1.AddToScheme, v1alpha1.AddToScheme} {
		utilruntime.Must(add(s))
	}
	return s
}

// Indexes over the cache.
const (
	byService   = "service" // `<namespace>/<name>`
	byNamespace = "source-namespace"
	byCluster   = "cluster"
	byVIP       = "cluster-set-ip"
)

// addIndexes makes the reads below cheap.
func addIndexes(c cluster.Cluster) error {
	add := func(obj client.Object, field string, value func(client.Object) string) error {
		return c.GetFieldIndexer().IndexField(context.Background(), obj, field, func(o client.Object) []string { return []string{value(o)} })
	}
	errs := []error{add(&discoveryv1.EndpointSlice{}, byService, serviceOf)}
	for field, value := range contributionIndexes {
		errs = append(errs, add(&v1alpha1.ServiceContribution{}, field, value))
	}
	return errors.Join(errs...)
}

var contributionIndexes = map[string]func(client.Object) string{
	byService:   serviceOf,
	byNamespace: func(o client.Object) string { return ServiceOf(o).Namespace },
	byCluster:   func(o client.Object) string { return o.GetLabels()[submarinerv1.LabelClusterID] },
	byVIP: func(o client.Object) string {
		if c, ok := o.(*v1alpha1.ServiceContribution); ok {
			return c.Spec.ClusterSetIP
		}
		return ""
	},
}

func serviceOf(o client.Object) string { return ServiceOf(o).String() }

// ServiceOf is the service that a contribution or slice at the hub speaks of, by its labels.
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

// ContributionsNaming returns the contributions that name a ClusterSetIP.
func (h *Hub) ContributionsNaming(ctx context.Context, ip string) ([]v1alpha1.ServiceContribution, error) {
	return h.contributions(ctx, byVIP, ip)
}

func (h *Hub) contributions(ctx context.Context, index, value string) ([]v1alpha1.ServiceContribution, error) {
	var list v1alpha1.ServiceContributionList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace), client.MatchingFields{index: value}); err != nil {
		return nil, fmt.Errorf("read the contributions of %s %s at the hub: %w", index, value, err)
	}
	return withMissing(&h.missing, list.Items, time.Now(), func(c *v1alpha1.ServiceContribution) bool {
		return contributionIndexes[index](c) == value
	}), nil
}

// Slices returns the EndpointSlices of a service, those of all clusters.
func (h *Hub) Slices(ctx context.Context, service types.NamespacedName) ([]discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace), client.MatchingFields{byService: service.String()}); err != nil {
		return nil, fmt.Errorf("read the EndpointSlices of service %s at the hub: %w", service, err)
	}
	return withMissing(&h.missing, list.Items, time.Now(), func(s *discoveryv1.EndpointSlice) bool { return ServiceOf(s) == service }), nil
}

// Clusters returns the Clusters at the hub.
func (h *Hub) Clusters(ctx context.Context) ([]submarinerv1.Cluster, error) {
	var list submarinerv1.ClusterList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace)); err != nil {
		return nil, fmt.Errorf("read the Clusters at the hub: %w", err)
	}
	return withMissing(&h.missing, list.Items, time.Now(), func(*submarinerv1.Cluster) bool { return true }), nil
}

// ClusterRanges returns the ranges in which clusters without globalnet may have pods, services and
// hosts, as the hub has them, comma-separated; empty: any. No member writes them.
func (h *Hub) ClusterRanges(ctx context.Context) (string, error) {
	var set corev1.ConfigMap
	if err := h.Client().Get(ctx, client.ObjectKey{Namespace: h.namespace, Name: config.ClustersetConfigMap}, &set); client.IgnoreNotFound(err) != nil {
		return "", fmt.Errorf("read ConfigMap %s at the hub: %w", config.ClustersetConfigMap, err)
	}
	return set.Data[config.KeySetClusterRanges], nil
}

// Endpoints returns the Endpoints at the hub.
func (h *Hub) Endpoints(ctx context.Context) ([]submarinerv1.Endpoint, error) {
	var list submarinerv1.EndpointList
	if err := h.Client().List(ctx, &list, client.InNamespace(h.namespace)); err != nil {
		return nil, fmt.Errorf("read the Endpoints at the hub: %w", err)
	}
	taken := slices.DeleteFunc(list.Items, func(e submarinerv1.Endpoint) bool { return leftOut(&e) })
	all := withMissing(&h.missing, taken, time.Now(), func(e *submarinerv1.Endpoint) bool { return !leftOut(e) })
	return newest(all, len(taken)), nil
}

// newest leaves out the older of two Endpoints of one gateway if one of them is missing: the
// gateway has moved, and the name of an Endpoint contains its address. all has the present ones
// first (present is their number), then the missing ones.
func newest(all []submarinerv1.Endpoint, present int) []submarinerv1.Endpoint {
	older := map[string]bool{}
	for i, missing := range all[present:] {
		for j, other := range all {
			if j == present+i || other.Spec.ClusterID != missing.Spec.ClusterID || other.Spec.Hostname != missing.Spec.Hostname {
				continue
			}
			if other.CreationTimestamp.Before(&missing.CreationTimestamp) {
				older[other.Name] = true
			} else {
				older[missing.Name] = true
			}
		}
	}
	return slices.DeleteFunc(all, func(e submarinerv1.Endpoint) bool { return older[e.Name] })
}

// ClusterSetIPRanges returns the clusters' ranges of ClusterSetIPs.
func (h *Hub) ClusterSetIPRanges(ctx context.Context) (map[string][]netip.Prefix, error) {
	clusters, err := h.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	ranges := map[string][]netip.Prefix{}
	for i := range clusters {
		if of := clusterSetIPRanges(&clusters[i]); len(of) > 0 {
			ranges[clusters[i].Spec.ClusterID] = of
		}
	}
	return ranges, nil
}

// clusterSetIPRanges leaves out what is no IPv4 range; the admission policies of the hub refuse it.
func clusterSetIPRanges(c *submarinerv1.Cluster) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.Spec.ClusterSetIPCIDR {
		if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
			out = append(out, p)
		}
	}
	return out
}

// InNetwork reports whether a cluster of the hub takes part in the network; the others have joined
// with --workloads-only.
func InNetwork(c *submarinerv1.Cluster) bool {
	return c.Annotations[v1alpha1.AnnotationWorkloadsOnly] != "true"
}

// MemberLabels returns the ids of the clusterset's clusters and the labels that each has at the
// hub.
func (h *Hub) MemberLabels(ctx context.Context) (map[string]map[string]string, error) {
	clusters, err := h.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	members := make(map[string]map[string]string, len(clusters))
	for i := range clusters {
		if c := &clusters[i]; InNetwork(c) {
			members[c.Spec.ClusterID] = c.Labels
		}
	}
	return members, nil
}

// Members returns the ids of the clusterset's clusters and when each joined.
func (h *Hub) Members(ctx context.Context) (map[string]time.Time, error) {
	clusters, err := h.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	joined := make(map[string]time.Time, len(clusters))
	for i := range clusters {
		if c := &clusters[i]; InNetwork(c) {
			joined[c.Spec.ClusterID] = c.CreationTimestamp.Time
		}
	}
	return joined, nil
}
