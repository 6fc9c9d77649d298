package execute

import (
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
)

// Times that Options leave open, Karmada's.
const (
	DefaultEvery     = 10 * time.Second
	DefaultThreshold = 30 * time.Second
	// DefaultDelay: nodes and pods that change together make one write.
	DefaultDelay = time.Second
)

const (
	// fillTimeout is how long the first status waits for nodes and pods, so that it is whole.
	fillTimeout = 3 * time.Second
	// askTimeout bounds version and discovery.
	askTimeout = 10 * time.Second
)

// Options of a collector.
type CollectorOptions struct {
	// Cluster is the name of the Cluster.
	Cluster string
	// Hub reads the Cluster and writes its status; with Lease it reads and writes that, too. It may read from a cache.
	Hub client.Client
	// Member is the access to the cluster: get on /readyz and /healthz, get, list, watch on nodes and pods.
	Member *rest.Config
	// Every is the time between two probes.
	Every time.Duration
	// FailureThreshold and SuccessThreshold are how long probes must say the same before Ready becomes False, or True.
	FailureThreshold, SuccessThreshold time.Duration
	// Delay is the time from a change of nodes or pods to the write.
	Delay time.Duration
	// Lease has the Lease karmada-cluster/<Cluster> renewed: the collector runs in the cluster.
	Lease bool
	// Took, if set, learns how many seconds each look at the member took.
	Took prometheus.Observer
	Log  *slog.Logger
}

// Collector collects the status of one cluster.
type Collector struct {
	CollectorOptions
	discovery *discovery.DiscoveryClient
	core      corev1client.CoreV1Interface
	stock     *stock
	changed   chan struct{} // capacity 1: something is to be written
	threshold threshold
	view      view
	said      string // the last error that was logged
}

// New prepares a collector; no connection is made.
func NewCollector(o CollectorOptions) (*Collector, error) {
	o.Every = orElse(o.Every, DefaultEvery)
	o.FailureThreshold = orElse(o.FailureThreshold, DefaultThreshold)
	o.SuccessThreshold = orElse(o.SuccessThreshold, DefaultThreshold)
	o.Delay = orElse(o.Delay, DefaultDelay)
	c := &Collector{CollectorOptions: o, changed: make(chan struct{}, 1)}
	c.threshold = threshold{failure: o.FailureThreshold, success: o.SuccessThreshold}
	c.stock = newStock(c.again)

	asking := rest.CopyConfig(o.Member)
	asking.Timeout, asking.QPS = askTimeout, -1 // few requests, each at its time
	watching := rest.CopyConfig(o.Member)
	watching.QPS = -1
	watching.ContentType = runtime.ContentTypeProtobuf
	watching.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	var err error
	if c.discovery, err = discovery.NewDiscoveryClientForConfig(asking); err != nil {
		return nil, fmt.Errorf("prepare access to cluster %s: %w", o.Cluster, err)
	}
	if c.core, err = corev1client.NewForConfig(watching); err != nil {
		return nil, fmt.Errorf("prepare access to cluster %s: %w", o.Cluster, err)
	}
	return c, nil
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// Start collects until ctx ends. A member or a hub that does not answer is asked again; it is no error.
func (c *Collector) Start(ctx context.Context) error {
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { c.stock.run(ctx, c.core) })
	if c.Lease {
		beside.Go(func() { c.renew(ctx) })
	}
	ticker := time.NewTicker(c.Every)
	defer ticker.Stop()
	c.look(ctx)
	c.awaitStock(ctx)
	c.write(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			c.look(ctx)
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

// again asks for a write after the delay.
func (c *Collector) again() {
	select {
	case c.changed <- struct{}{}:
	default: // it is asked for already
	}
}

// awaitStock waits for the first lists of a healthy member, but not for long.
func (c *Collector) awaitStock(ctx context.Context) {
	end := time.After(fillTimeout)
	for c.view.ready.Status == metav1.ConditionTrue {
		if filled, err := c.stock.filled(); filled || err != nil {
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

// look probes the member and, if it is healthy, asks what it is.
func (c *Collector) look(ctx context.Context) {
	began := time.Now()
	c.view.ready = probe(ctx, c.discovery.RESTClient())
	if c.view.ready.Status == metav1.ConditionTrue {
		if v, err := c.discovery.ServerVersion(); err == nil { // else the former stays, and the next look asks again
			c.view.version = v.GitVersion
		}
		_, lists, err := c.discovery.ServerGroupsAndResources()
		var complete metav1.Condition
		c.view.enablements, complete = enablements(lists, err, c.view.enablements)
		c.view.complete = &complete
	}
	if c.Took != nil {
		c.Took.Observe(time.Since(began).Seconds())
	}
}

// write brings the status at the hub to what was seen. What fails is repeated: soon if the Cluster was changed meanwhile, else
// at the next look.
func (c *Collector) write(ctx context.Context) {
	before := c.threshold
	err := c.tryWrite(ctx)
	switch {
	case err == nil:
		c.tell("")
	case ctx.Err() != nil:
	case apierrors.IsConflict(err):
		c.threshold = before
		c.again()
	default:
		c.threshold = before // the first finding is to pass at once also if its write failed
		c.tell(err.Error())
	}
}

func (c *Collector) tryWrite(ctx context.Context) error {
	cluster := &clusterv1alpha1.Cluster{}
	if err := c.Hub.Get(ctx, client.ObjectKey{Name: c.Cluster}, cluster); apierrors.IsNotFound(err) {
		return nil // nobody asks any more
	} else if err != nil {
		return fmt.Errorf("read Cluster %s: %w", c.Cluster, err)
	}
	v := c.view
	if v.complete != nil && v.enablements == nil { // discovery failed since the start: what an earlier collector saw stays
		v.enablements = cluster.Status.APIEnablements
	}
	v.nodes, v.pods, v.counted = c.counts()
	if _, err := c.stock.filled(); err != nil && v.ready.Status == metav1.ConditionTrue {
		v.ready.Message += "; what is allocatable in it cannot be seen: " + err.Error()
	}
	next := cluster.DeepCopy()
	next.Status = desiredStatus(cluster, v, c.threshold.passes(time.Now(), cluster.Ready(), v.ready.Status))
	return patchStatus(ctx, c.Hub, cluster, next)
}

func (c *Collector) counts() (nodes []node, pods []pod, ok bool) {
	nodes, hasNodes := c.stock.nodes.all()
	pods, hasPods := c.stock.pods.all()
	return nodes, pods, hasNodes && hasPods
}

// tell logs what fails when it changes.
func (c *Collector) tell(problem string) {
	if problem != c.said && problem != "" {
		c.Log.Warn("cluster status not written", "cluster", c.Cluster, "error", problem)
	}
	c.said = problem
}

// Unusable says at the hub that there is no way to ask the cluster: Ready is False, StatusCollectionFailed. It is for who would
// start a collector and cannot.
func Unusable(ctx context.Context, hub client.Client, cluster *clusterv1alpha1.Cluster, why error) error {
	next := cluster.DeepCopy()
	meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionFalse,
		Reason: clusterv1alpha1.ReasonStatusCollectionFailed, Message: why.Error(),
	})
	return patchStatus(ctx, hub, cluster, next)
}

// patchStatus writes the fields in which the two differ, if nobody has changed the Cluster meanwhile.
func patchStatus(ctx context.Context, hub client.Client, cluster, next *clusterv1alpha1.Cluster) error {
	if apiequality.Semantic.DeepEqual(cluster.Status, next.Status) {
		return nil
	}
	err := hub.Status().Patch(ctx, next, client.MergeFromWithOptions(cluster, client.MergeFromWithOptimisticLock{}))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write the status of Cluster %s: %w", cluster.Name, err)
	}
	return nil
}

// LeaseDuration is how long an agent that does not renew its Lease still counts as alive; it renews each quarter of it.
const LeaseDuration = 40 * time.Second

const renewTimeout = 5 * time.Second

// renew renews the Lease until ctx ends. It runs beside the probes: a member that hangs does not make its agent look dead.
func (c *Collector) renew(ctx context.Context) {
	lease := &coordinationv1.Lease{}
	said := ""
	for {
		err := c.renewOnce(ctx, lease)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			c.Log.Warn("lease not renewed: the hub will take the agent for dead", "cluster", c.Cluster, "error", said)
		}
		if err == nil {
			said = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(LeaseDuration / 4):
		}
	}
}

// renewOnce writes the time into the Lease that the hub has made. lease is what stood there after the last renewal, empty if
// that is not known.
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
			continue // somebody else wrote or replaced it: once more, from what is there
		}
		return fmt.Errorf("renew Lease %s: %w", key, err)
	}
}

// OtherCluster is the error of a request to a member if another cluster answers at its address. Who makes the connection finds
// it out; a collector says it in the condition Ready, at once.
type OtherCluster struct {
	Cluster    string // the name of the Cluster
	Want, Have string // UIDs of the namespace kube-system: that of spec.id, and that of the cluster which answers
}

func (e *OtherCluster) Error() string {
	return fmt.Sprintf("another cluster answers at the address of cluster %s: the UID of its namespace kube-system is %s, "+
		"not %s as in spec.id; nothing is written into it: correct spec.apiEndpoint, or delete this Cluster and join the other one", e.Cluster, e.Have, e.Want)
}

// view is what a collector has seen of the member.
type view struct {
	ready metav1.Condition // what the last probe found
	// What the last probe that found the member healthy was followed by; version is empty if the member did not tell.
	version     string
	enablements []clusterv1alpha1.APIEnablement
	complete    *metav1.Condition // nil: not asked yet
	// Nodes and pods, if both were listed once.
	counted bool
	nodes   []node
	pods    []pod
}

// desired is the status that the cluster should have, of the fields that are a collector's; all else stays. While the cluster
// is not ready, or a probe says that it is not, only conditions change. That it is another cluster is said at once: nobody
// waits for that to pass.
func desiredStatus(c *clusterv1alpha1.Cluster, v view, passes bool) clusterv1alpha1.ClusterStatus {
	want := *c.Status.DeepCopy()
	if passes || v.ready.Reason == clusterv1alpha1.ReasonClusterIDMismatch {
		meta.SetStatusCondition(&want.Conditions, v.ready)
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
	}
	return want
}

// usable are the models by which nodes are counted; none if the cluster's own contradict each other.
func usable(spec clusterv1alpha1.ClusterSpec) []clusterv1alpha1.ResourceModel {
	if len(spec.Validate(field.NewPath("spec"))) > 0 {
		return nil
	}
	return spec.Models()
}
