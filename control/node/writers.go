package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// writers take to the API server what the daemon puts into its outboxes, each in a goroutine of its own.
type writers struct {
	node    *nodeWriter
	gateway *gatewayWriter
	agent   *agentWriter
}

// newWriters: key names the Gateway and RouteAgent objects of this node; known are the objects as they were seen last.
func newWriters(key types.NamespacedName, known client.Reader, c client.Client, l *links) writers {
	return writers{&nodeWriter{known, c}, &gatewayWriter{client: c, key: key, links: l}, &agentWriter{client: c, key: key}}
}

// nodeWriter writes what the kernel has reached.
type nodeWriter struct {
	known  client.Reader
	client client.StatusClient
}

// write writes only changes. When it compares with what is known too late, the news of it wakes the daemon, which reports anew.
func (w *nodeWriter) write(ctx context.Context, r nodeReport) error {
	var errs []error
	if r.index != nil {
		errs = append(errs, w.writeIndex(ctx, r.index))
	}
	for _, p := range r.released {
		update := p.DeepCopy()
		update.Status.Released = true
		// Not if it has become another's meanwhile: a change that is not known here is a conflict, and comes as news.
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
		return nil // the node is numbered anew; the daemon will have heard of it
	}
	if err == nil && !equality.Semantic.DeepEqual(have.Status, want.Status) {
		update := have.DeepCopy()
		update.Status = want.Status
		err = client.IgnoreNotFound(w.client.Status().Patch(ctx, update, client.MergeFrom(&have)))
	}
	if err != nil {
		return fmt.Errorf("report the state of node %s: %w", want.Name, err)
	}
	return nil
}

// gatewayWriter makes the Gateway object what it is to be, with what the published Endpoints say besides.
type gatewayWriter struct {
	client client.Client
	key    types.NamespacedName
	links  *links // learn when it was made
	gone   bool   // the object was removed
}

func (w *gatewayWriter) write(ctx context.Context, status *submarinerv1.GatewayStatus) error {
	g := &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
	if status == nil {
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
	completeEndpoints(status, published.Items)
	if err := put(ctx, w.client, g, func() { g.Status = *status }); err != nil {
		return fmt.Errorf("write Gateway %s: %w", w.key, err)
	}
	w.links.mu.Lock()
	w.links.created = g.CreationTimestamp.Time
	w.links.mu.Unlock()
	return nil
}

// recheck is how often a RouteAgent object is read although nothing is to be written: somebody may have changed it.
const recheck = 5 * time.Minute

// agentWriter makes the RouteAgent object what it is to be. Without a need it does not touch it: a cluster has as many of
// them as nodes.
type agentWriter struct {
	client client.Client
	key    types.NamespacedName
	last   agentReport
	at     time.Time
}

func (w *agentWriter) write(ctx context.Context, r agentReport) error {
	if time.Since(w.at) < recheck && equality.Semantic.DeepEqual(w.last.node, r.node) && w.last.silent == r.silent && !worthWriting(w.last.status, r.status) {
		return nil
	}
	a := &submarinerv1.RouteAgent{ObjectMeta: metav1.ObjectMeta{Namespace: w.key.Namespace, Name: w.key.Name}}
	err := put(ctx, w.client, a, func() {
		a.Status, a.OwnerReferences = r.status, nil
		if r.node != nil {
			a.OwnerReferences = []metav1.OwnerReference{*r.node}
		}
		delete(a.Annotations, submarinerv1.AnnotationSilentGateways)
		if r.silent != "" {
			metav1.SetMetaDataAnnotation(&a.ObjectMeta, submarinerv1.AnnotationSilentGateways, r.silent)
		}
	})
	if err != nil {
		return fmt.Errorf("write RouteAgent %s: %w", w.key, err)
	}
	w.last, w.at = r, time.Now()
	return nil
}

// put makes an object what change makes of it, and stamps it with the time. Its name is given; it is made if there is none.
func put(ctx context.Context, c client.Client, o client.Object, change func()) error {
	key := client.ObjectKeyFromObject(o)
	err := c.Get(ctx, key, o)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object of the API", o)
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
