// Package collect reports the status of one cluster to the hub: readiness, version, API
// enablements, nodes, resource sums and round-trip times to other clusters, and renews a pull
// member's Lease. It runs where package execute runs, and changes nothing in the member.
package collect

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/discovery"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

// Defaults of CollectorOptions. Karmada probes every 10 s, and its failure threshold is 30 s.
const (
	DefaultEvery            = 4 * time.Second
	DefaultFailureThreshold = 10 * time.Second
	DefaultSuccessThreshold = 30 * time.Second
	// DefaultDelay coalesces changes of nodes and pods into one write.
	DefaultDelay = time.Second
)

const (
	// fillTimeout is how long the first status waits for the lists of nodes and pods.
	fillTimeout = 3 * time.Second
	// discoveryTimeout bounds the requests for version and discovery.
	discoveryTimeout = 10 * time.Second
	// discoverEvery is the number of successful probes per discovery: without aggregated discovery
	// it costs a request per group.
	discoverEvery = 3
)

// CollectorOptions are the options of a Collector.
type CollectorOptions struct {
	// Cluster is the name of the Cluster.
	Cluster string
	// Hub reads the Cluster and writes its status, and the Lease if that is set. It may read from a
	// cache.
	Hub client.Client
	// Member connects to the cluster, with rights to get /readyz and /healthz, to get, list and
	// watch nodes, pods and ResourceQuotas, and perhaps to list Gateways.
	Member *rest.Config
	// Every is the time between two probes.
	Every time.Duration
	// FailureThreshold and SuccessThreshold are how long probes must agree before Ready becomes
	// False, or True.
	FailureThreshold, SuccessThreshold time.Duration
	// Delay is the time between a change of nodes or pods and the write.
	Delay time.Duration
	// Lease makes the collector renew the Lease karmada-cluster/<Cluster>: it runs in the cluster.
	Lease bool
	// Took, if set, observes the duration of each probe in seconds.
	Took prometheus.Observer
	Log  *slog.Logger
}

// Collector collects the status of one cluster.
type Collector struct {
	CollectorOptions
	discovery *discovery.DiscoveryClient
	core      corev1client.CoreV1Interface
	inventory *inventory
	changed   chan struct{} // capacity 1: a write is requested
	threshold threshold
	observed  observation
	fresh     int    // successful probes until the next discovery
	logged    string // the last error
}

// NewCollector prepares a collector; it does not connect.
func NewCollector(o CollectorOptions) (*Collector, error) {
	o.Every = cmp.Or(o.Every, DefaultEvery)
	o.FailureThreshold = cmp.Or(o.FailureThreshold, DefaultFailureThreshold)
	o.SuccessThreshold = cmp.Or(o.SuccessThreshold, DefaultSuccessThreshold)
	o.Delay = cmp.Or(o.Delay, DefaultDelay)
	c := &Collector{CollectorOptions: o, changed: make(chan struct{}, 1)}
	c.threshold = threshold{failure: o.FailureThreshold, success: o.SuccessThreshold}
	c.inventory = newInventory(c.trigger)

	requests := rest.CopyConfig(o.Member)
	requests.Timeout, requests.QPS = discoveryTimeout, -1
	watches := rest.CopyConfig(o.Member)
	watches.QPS = -1
	watches.ContentType = runtime.ContentTypeProtobuf
	watches.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	var err error
	if c.discovery, err = discovery.NewDiscoveryClientForConfig(requests); err != nil {
		return nil, fmt.Errorf("prepare access to cluster %s: %w", o.Cluster, err)
	}
	if c.core, err = corev1client.NewForConfig(watches); err != nil {
		return nil, fmt.Errorf("prepare access to cluster %s: %w", o.Cluster, err)
	}
	return c, nil
}

// Start runs until ctx ends. Requests to member and hub that fail are retried.
func (c *Collector) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.inventory.run(ctx, c.core.RESTClient()) })
	if c.Lease {
		running.Go(func() { c.renew(ctx) })
	}
	ticker := time.NewTicker(c.Every)
	defer ticker.Stop()
	c.probe(ctx)
	c.awaitInventory(ctx)
	c.write(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.probe(ctx)
		case <-c.changed:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(c.Delay):
			}
		}
		c.write(ctx)
	}
}

// trigger requests a write after the delay.
func (c *Collector) trigger() {
	select {
	case c.changed <- struct{}{}:
	default: // already requested
	}
}

// awaitInventory waits up to fillTimeout for the first lists of a healthy member.
func (c *Collector) awaitInventory(ctx context.Context) {
	end := time.After(fillTimeout)
	for c.observed.ready.Status == metav1.ConditionTrue {
		if synced, err := c.inventory.synced(); synced || err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-c.changed:
		}
	}
}

// probe probes the member and, if it is healthy, reads its version and APIs every discoverEvery
// probes, and its Gateways if it serves them.
func (c *Collector) probe(ctx context.Context) {
	began := time.Now()
	c.observed.began = began
	c.observed.ready = probe(ctx, c.discovery.RESTClient())
	if c.observed.ready.Status == metav1.ConditionTrue {
		if c.fresh--; c.fresh <= 0 && c.discover(ctx) {
			c.fresh = discoverEvery
		}
		if !c.observed.mayServeGateways() {
			c.observed.gateways = nil
		} else if gateways, err := readGateways(ctx, c.discovery.RESTClient()); err == nil {
			// else those of the last probe
			c.observed.gateways = gateways
		}
	} else {
		c.fresh = 0 // it may come back upgraded
	}
	if c.Took != nil {
		c.Took.Observe(time.Since(began).Seconds())
	}
}

// discover reads the version and the APIs of the member, and reports whether it has got all of
// them.
func (c *Collector) discover(ctx context.Context) bool {
	v, err := c.discovery.ServerVersionWithContext(ctx)
	if err == nil { // else the former version stays
		c.observed.version = v.GitVersion
	}
	_, lists, partial := c.discovery.ServerGroupsAndResourcesWithContext(ctx)
	var complete metav1.Condition
	c.observed.enablements, complete = enablements(lists, partial, c.observed.enablements)
	c.observed.complete = &complete
	return err == nil && complete.Status == metav1.ConditionTrue
}

// write updates the status at the hub. A failed write is retried: after the delay on a conflict,
// else after the next probe.
func (c *Collector) write(ctx context.Context) {
	before := c.threshold
	err := c.tryWrite(ctx)
	switch {
	case err == nil:
		c.logOnce("")
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		c.threshold = before
		c.trigger()
	default:
		c.threshold = before // the first result passes at once, even if its first write failed
		c.logOnce(err.Error())
	}
}

func (c *Collector) tryWrite(ctx context.Context) error {
	cluster := &clusterv1alpha1.Cluster{}
	if err := c.Hub.Get(ctx, client.ObjectKey{Name: c.Cluster}, cluster); apierrors.IsNotFound(err) {
		return nil // deleted
	} else if err != nil {
		return fmt.Errorf("read Cluster %s: %w", c.Cluster, err)
	}
	v := c.observed
	// discovery has failed since the start: keep those of an earlier collector
	if v.complete != nil && v.enablements == nil {
		v.enablements = cluster.Status.APIEnablements
	}
	var hasNodes, hasPods bool
	v.nodes, hasNodes = c.inventory.nodes.all()
	v.pods, hasPods = c.inventory.pods.all()
	v.counted = hasNodes && hasPods
	quotas, hasQuotas := c.inventory.quotas.all()
	var more int
	if v.quotas, more = quotaSummaries(quotas); !hasQuotas && cluster.Status.ResourceSummary != nil {
		v.quotas = cluster.Status.ResourceSummary.Quotas // of an earlier collector
	}
	if more > 0 && v.ready.Status == metav1.ConditionTrue {
		v.ready.Message += fmt.Sprintf("; %d of its ResourceQuotas are not considered: more than %d bound pods", more, clusterv1alpha1.MaxQuotas)
	}
	if _, err := c.inventory.synced(); err != nil && v.ready.Status == metav1.ConditionTrue {
		v.ready.Message += "; what is allocatable in it cannot be seen: " + err.Error()
	}
	next := cluster.DeepCopy()
	next.Status = desiredStatus(cluster, v, c.threshold.passes(time.Now(), v.began, cluster.Ready(), v.ready.Status))
	return patchStatus(ctx, c.Hub, cluster, next)
}

// logOnce logs an error unless it is the last one; "" is none.
func (c *Collector) logOnce(problem string) {
	if problem != c.logged && problem != "" {
		c.Log.Warn("cluster status not written", "cluster", c.Cluster, "error", problem)
	}
	c.logged = problem
}

// Unusable sets Ready to False, StatusCollectionFailed: a collector cannot be started for the
// cluster.
func Unusable(ctx context.Context, hub client.Client, cluster *clusterv1alpha1.Cluster, why error) error {
	next := cluster.DeepCopy()
	next.Status.SetReady(metav1.Condition{
		Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse,
		Reason: clusterv1alpha1.ReasonStatusCollectionFailed, Message: why.Error(),
	})
	return patchStatus(ctx, hub, cluster, next)
}

// patchStatus writes the fields that differ, unless the Cluster was changed meanwhile.
func patchStatus(ctx context.Context, hub client.Client, cluster, next *clusterv1alpha1.Cluster) error {
	if apiequality.Semantic.DeepEqual(cluster.Status, next.Status) {
		return nil
	}
	err := hub.Status().Patch(ctx, next, kube.MergeFrom(cluster))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of Cluster %s: %w", cluster.Name, err)
	}
	return nil
}

// LeaseDuration is the validity of an agent's Lease, which the agent renews every quarter of it.
const LeaseDuration = 20 * time.Second

const renewTimeout = 5 * time.Second

// renew renews the Lease until ctx ends, independently of the probes: the agent of a member that
// hangs is alive.
func (c *Collector) renew(ctx context.Context) {
	lease := &coordinationv1.Lease{}
	logged := ""
	for {
		err := c.renewOnce(ctx, lease)
		if err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			c.Log.Warn("lease not renewed: the hub will take the agent for dead", "cluster", c.Cluster, "error", logged)
		}
		if err == nil {
			logged = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(LeaseDuration / 4):
		}
	}
}

// renewOnce sets the renew time of the Lease, which the hub creates. lease is the result of the
// last renewal, or empty.
func (c *Collector) renewOnce(ctx context.Context, lease *coordinationv1.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	key := client.ObjectKey{Namespace: clusterv1alpha1.SecretNamespace, Name: c.Cluster}
	for {
		known := lease.ResourceVersion != ""
		if !known {
			if err := c.Hub.Get(ctx, key, lease); apierrors.IsNotFound(err) {
				return fmt.Errorf("read Lease %s: the hub makes it for pull members: has Cluster %s syncMode Pull? %w", key, c.Cluster, err)
			} else if err != nil {
				return fmt.Errorf("read Lease %s: %w", key, err)
			}
		}
		lease.Spec.HolderIdentity = ptr.To(c.Cluster)
		lease.Spec.LeaseDurationSeconds = ptr.To(int32(LeaseDuration / time.Second))
		lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
		err := c.Hub.Update(ctx, lease)
		if err == nil {
			return nil
		}
		*lease = coordinationv1.Lease{}
		if known && (apierrors.IsConflict(err) || apierrors.IsNotFound(err)) {
			continue // changed or replaced meanwhile: read it
		}
		return fmt.Errorf("renew Lease %s: %w", key, err)
	}
}

// OtherCluster is the error of requests to a member at whose address another cluster answers. The
// transport detects it; a collector reports it in the condition Ready at once.
type OtherCluster struct {
	Cluster string // the name of the Cluster
	// UIDs of the namespace kube-system: spec.id, and that of the cluster that answers
	Want, Have string
}

func (e *OtherCluster) Error() string {
	return fmt.Sprintf("another cluster answers at the address of cluster %s: the UID of its namespace kube-system is %s, "+
		"not %s as in spec.id; nothing is written into it: correct spec.apiEndpoint, or delete this Cluster and join the other one", e.Cluster, e.Have, e.Want)
}

// observation is the state of the member that a collector has read.
type observation struct {
	began time.Time        // when the last probe did
	ready metav1.Condition // of it
	// Read after successful probes; version is empty if it was never read.
	version     string
	enablements []clusterv1alpha1.APIEnablement
	complete    *metav1.Condition // nil: discovery has not run
	gateways    []submarinerv1.Gateway
	// Nodes and pods, valid if both were listed.
	counted bool
	nodes   []node
	pods    []pod
	quotas  []clusterv1alpha1.QuotaSummary
}

// desiredStatus is the status of the Cluster with the collector's fields set. While the cluster is
// not ready, or the last probe has failed, only conditions change. The threshold does not apply to
// the reason ClusterIDMismatch, which is permanent.
func desiredStatus(c *clusterv1alpha1.Cluster, v observation, passes bool) clusterv1alpha1.ClusterStatus {
	want := *c.Status.DeepCopy()
	if passes || v.ready.Reason == clusterv1alpha1.ReasonClusterIDMismatch {
		want.SetReady(v.ready)
	}
	if v.ready.Status != metav1.ConditionTrue || !meta.IsStatusConditionTrue(want.Conditions, clusterv1alpha1.ConditionReady) {
		return want
	}
	if v.version != "" {
		want.KubernetesVersion = v.version
	}
	if v.complete != nil {
		meta.SetStatusCondition(&want.Conditions, *v.complete)
		want.APIEnablements = v.enablements
	}
	if v.counted {
		want.NodeSummary = nodeSummary(v.nodes)
		want.ResourceSummary = resourceSummary(v.nodes, v.pods, usable(c.Spec))
		want.ResourceSummary.Quotas = v.quotas
		want.Network = network(v.gateways, v.nodes, c.Status.Network)
	}
	return want
}

// usable are the models by which nodes are counted; none if those of the Cluster are invalid.
func usable(spec clusterv1alpha1.ClusterSpec) []clusterv1alpha1.ResourceModel {
	if len(spec.Validate(field.NewPath("spec"))) > 0 {
		return nil
	}
	return spec.Models()
}
