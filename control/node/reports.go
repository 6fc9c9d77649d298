package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/node/status"
)

const (
	// writeTime bounds one write to the API server.
	writeTime = 10 * time.Second
	// spreadPerNode, times the number of nodes, and maxSpread bound the random delay of writes of
	// RouteAgents: when a gateway dies, all nodes report at once. In a small cluster the agent is to
	// know soon, since new objects wait for a gateway that it does not know to be dead.
	spreadPerNode = time.Millisecond
	maxSpread     = time.Second
)

// outbox decouples a producer from a slow writer: of several values the newest is written. Only one
// goroutine may put.
type outbox[T any] struct{ next chan T }

func newOutbox[T any]() outbox[T] { return outbox[T]{make(chan T, 1)} }

// put replaces a value that was not written yet.
func (o outbox[T]) put(v T) {
	select {
	case <-o.next:
	default:
	}
	o.next <- v
}

// run writes until ctx ends, each value after a random delay, and retries the newest until it is
// written.
func (o outbox[T]) run(ctx context.Context, delay func() time.Duration, write func(context.Context, T) error, log *slog.Logger) {
	last, backoff := "", time.Duration(0)
	for {
		var v T
		select {
		case <-ctx.Done():
			return
		case v = <-o.next:
		}
		for wait := jitter(delay()); ; wait = backoff + jitter(delay()) {
			if v = o.latest(ctx, v, wait); ctx.Err() != nil {
				return
			}
			err := o.try(ctx, v, write)
			if err == nil {
				last = ""
				break
			}
			if ctx.Err() == nil && err.Error() != last {
				last = err.Error()
				log.Error("report to the API server", "error", err)
			}
			backoff = retry
		}
	}
}

// latest waits and returns the newest value, which is v if there was no other.
func (o outbox[T]) latest(ctx context.Context, v T, wait time.Duration) T {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	select {
	case v = <-o.next:
	default:
	}
	return v
}

func (o outbox[T]) try(ctx context.Context, v T, write func(context.Context, T) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return write(ctx, v)
}

func jitter(most time.Duration) time.Duration {
	if most == 0 {
		return 0
	}
	return rand.N(most)
}

// nodeReport is what the kernel has, for objects of the agent.
type nodeReport struct {
	// index is this node's NodeIndex with its desired status; nil: it has none.
	index *pelagov1alpha1.NodeIndex
	// released are the port blocks that the node does not use any more, as they were when it gave
	// them up.
	released []*pelagov1alpha1.PortBlock
}

// gatewayReport is the status of the Gateway object, and the Node that owns it. Without a status
// there is to be no object.
type gatewayReport struct {
	status *submarinerv1.GatewayStatus
	owner  *metav1.OwnerReference
}

// owners are those of an object of the node: it goes with its Node.
func owners(node *metav1.OwnerReference) []metav1.OwnerReference {
	if node == nil {
		return nil
	}
	return []metav1.OwnerReference{*node}
}

// reports are written to the API server, each kind by a goroutine of its own.
type reports struct {
	node    outbox[nodeReport]
	gateway outbox[gatewayReport]
	agent   outbox[status.RouteAgent]

	nodes    nodeWriter
	gateways gatewayWriter
	agents   agentWriter
	log      *slog.Logger
}

// newReports: key names the Gateway and RouteAgent objects of this node, known is a cache, created
// is called with the creation time of the Gateway object.
func newReports(key types.NamespacedName, known client.Reader, c client.Client, created func(time.Time), log *slog.Logger) reports {
	return reports{
		node: newOutbox[nodeReport](), gateway: newOutbox[gatewayReport](), agent: newOutbox[status.RouteAgent](),
		nodes: nodeWriter{known, c}, gateways: gatewayWriter{client: c, key: key, created: created}, agents: agentWriter{client: c, key: key},
		log: log,
	}
}

// start begins to write, until ctx ends; nodes returns the number of nodes of the cluster.
func (r *reports) start(ctx context.Context, nodes func() int) {
	go r.node.run(ctx, atOnce, r.nodes.write, r.log)
	go r.gateway.run(ctx, atOnce, r.gateways.write, r.log)
	go r.agent.run(ctx, func() time.Duration { return spread(nodes()) }, r.agents.write, r.log)
}

func atOnce() time.Duration { return 0 }

func spread(nodes int) time.Duration { return min(maxSpread, time.Duration(nodes)*spreadPerNode) }

// nodeWriter writes the status of NodeIndex and PortBlocks.
type nodeWriter struct {
	known  client.Reader
	client client.StatusClient
}

// write writes only changes. If known was stale, its update wakes the daemon, which reports again.
func (w *nodeWriter) write(ctx context.Context, r nodeReport) error {
	var errs []error
	if r.index != nil {
		errs = append(errs, w.writeIndex(ctx, r.index))
	}
	for _, p := range r.released {
		update := p.DeepCopy()
		update.Status.Released = true
		// Not if it has been given to another node: that is a conflict, and its event wakes the
		// daemon.
		err := w.client.Status().Patch(ctx, update, client.MergeFromWithOptions(p, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("report port block %s as released: %w", p.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (w *nodeWriter) writeIndex(ctx context.Context, want *pelagov1alpha1.NodeIndex) error {
	var have pelagov1alpha1.NodeIndex
	err := w.known.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) || err == nil && have.UID != want.UID {
		return nil // it was replaced; its event wakes the daemon
	}
	if err == nil && !equality.Semantic.DeepEqual(have.Status, want.Status) {
		update := have.DeepCopy()
		update.Status = want.Status
		err = client.IgnoreNotFound(w.client.Status().Patch(ctx, update, client.MergeFrom(&have)))
	}
	if err != nil {
		return fmt.Errorf("report the status of node %s: %w", want.Name, err)
	}
	return nil
}

// gatewayWriter writes the Gateway object, completed by the published Endpoints.
type gatewayWriter struct {
	client  client.Client
	key     types.NamespacedName
	created func(time.Time)
	gone    bool // the object was removed
}

func (w *gatewayWriter) write(ctx context.Context, r gatewayReport) error {
	want := r.status
	g := &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
	if want == nil {
		if w.gone {
			return nil
		}
		if err := client.IgnoreNotFound(w.client.Delete(ctx, g)); err != nil {
			return fmt.Errorf("remove Gateway %s: %w", w.key, err)
		}
		w.gone = true
		return nil
	}
	w.gone = false
	var published submarinerv1.EndpointList
	if err := w.client.List(ctx, &published, client.InNamespace(w.key.Namespace)); err != nil {
		return fmt.Errorf("list Endpoints: %w", err)
	}
	status.CompleteEndpoints(want, published.Items)
	if err := put(ctx, w.client, g, func() { g.Status, g.OwnerReferences = *want, owners(r.owner) }); err != nil {
		return fmt.Errorf("write Gateway %s: %w", w.key, err)
	}
	w.created(g.CreationTimestamp.Time)
	return nil
}

// recheck is how often a RouteAgent object is read although its report has not changed: others may
// have changed it.
const recheck = 5 * time.Minute

// agentWriter writes the RouteAgent object, and only if worthwhile: a cluster has as many of them
// as nodes.
type agentWriter struct {
	client client.Client
	key    types.NamespacedName
	last   status.RouteAgent
	at     time.Time
}

func (w *agentWriter) write(ctx context.Context, r status.RouteAgent) error {
	if time.Since(w.at) < recheck && equality.Semantic.DeepEqual(w.last.Owner, r.Owner) && w.last.Silent == r.Silent && w.last.LeftOut == r.LeftOut &&
		w.last.Witness == r.Witness && w.last.Unreachable == r.Unreachable &&
		!status.Differ(w.last.Status, r.Status) {
		return nil
	}
	a := &submarinerv1.RouteAgent{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
	err := put(ctx, w.client, a, func() {
		a.Status, a.OwnerReferences = r.Status, owners(r.Owner)
		delete(a.Annotations, submarinerv1.AnnotationSilentGateways)
		if r.Silent != "" {
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, submarinerv1.AnnotationSilentGateways, r.Silent)
		}
		delete(a.Annotations, submarinerv1.AnnotationUnreachableClusters)
		if r.Witness {
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, submarinerv1.AnnotationUnreachableClusters, r.Unreachable)
		}
		delete(a.Annotations, submarinerv1.AnnotationPodsLeftOut)
		if r.LeftOut != "" {
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, submarinerv1.AnnotationPodsLeftOut, r.LeftOut)
		}
	})
	if err != nil {
		return fmt.Errorf("write RouteAgent %s: %w", w.key, err)
	}
	w.last, w.at = r, time.Now()
	return nil
}

// put applies change to an object, creating it if none exists, and sets AnnotationUpdated.
func put(ctx context.Context, c client.Client, o client.Object, change func()) error {
	key := client.ObjectKeyFromObject(o)
	err := c.Get(ctx, key, o)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no API object", o)
	}
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	change()
	stamp(o, time.Now())
	if err != nil {
		return c.Create(ctx, o)
	}
	return c.Patch(ctx, o, client.MergeFrom(before))
}

func stamp(o client.Object, now time.Time) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[submarinerv1.AnnotationUpdated] = strconv.FormatInt(now.Unix(), 10)
	o.SetAnnotations(annotations)
}
