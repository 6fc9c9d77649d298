package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// input reads what the Works of a binding are computed from; nil: they are not made here.
func (r *reconciler) input(ctx context.Context, b binding.Binding) (*BindingInput, error) {
	template, err := r.template(ctx, b.Spec.Resource)
	// it may have been deleted with --cascade=orphan: its Works stay
	if kube.IsStale(err) && metav1.GetControllerOf(b) == nil {
		if uid, unknown := r.alive(ctx, b.Spec.Resource); unknown == nil && uid == "" {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	if everywhere(template, r.OptIn) {
		r.recorder.Eventf(b.Object, corev1.EventTypeWarning, workv1alpha2.EventSyncWorkFailed,
			"Namespaces go to all clusters by themselves: label %s with %s=true to have policies decide about it",
			template.GetName(), policyv1alpha1.LabelNamespaceSkipAutoPropagation)
		return nil, nil
	}
	in := &BindingInput{
		Interpreter: r.Interpreter, HubID: r.HubID, Binding: b, Template: template, NewID: newID,
		Clusters: map[string]*clusterv1alpha1.Cluster{},
	}
	if in.Works, err = r.works(ctx, b); err != nil {
		return nil, err
	}
	if in.Owners, err = r.owners(ctx, b); err != nil {
		return nil, err
	}
	if in.Overrides, err = Overrides(ctx, r.client, template); err != nil {
		return nil, err
	}
	if in.MemberOwned, err = r.memberOwned(ctx, b); err != nil {
		return nil, err
	}
	clusters := clustersOf(b.Spec)
	for _, w := range in.Works {
		if cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace); ok {
			clusters = append(clusters, cluster)
		}
	}
	for _, name := range clusters {
		c, err := r.cluster(ctx, name)
		if err != nil {
			return nil, err
		}
		if c != nil {
			in.Clusters[name] = c
		}
	}
	if in.Names, err = ReadNames(ctx, r.client, b.Spec.Resource, clusters); err != nil {
		return nil, err
	}
	return in, nil
}

// owners reads the bindings that require b, if none of them has a cluster.
func (r *reconciler) owners(ctx context.Context, b binding.Binding) (out []binding.Binding, err error) {
	if len(targets(b.Spec)) > 0 {
		return nil, nil
	}
	for _, by := range b.Spec.RequiredBy {
		owner := binding.New(types.NamespacedName{Namespace: by.Namespace, Name: by.Name})
		switch err := r.client.Get(ctx, client.ObjectKeyFromObject(owner), owner.Object); {
		case err == nil:
			out = append(out, owner)
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read %s, which needs %s: %w", owner, b, err)
		}
	}
	return out, nil
}

// everywhere reports whether a template is a namespace that goes to all clusters: the namespace
// controller writes its Works, also while it is being deleted.
func everywhere(template *unstructured.Unstructured, optIn bool) bool {
	return template.GroupVersionKind() == corev1.SchemeGroupVersion.WithKind("Namespace") &&
		Propagated(&metav1.ObjectMeta{Name: template.GetName(), Labels: template.GetLabels()}, optIn)
}

// template reads the template of a binding from the cache. It is a StaleCacheError if the cache
// does not have it, or has an older version than the binding was made from: Works made from that
// one would be written twice.
func (r *reconciler) template(ctx context.Context, ref workv1alpha2.ObjectReference) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(ref.APIVersion)
	u.SetKind(ref.Kind)
	u.SetNamespace(ref.Namespace)
	u.SetName(ref.Name)
	informer, err := r.cache.GetInformer(ctx, u.DeepCopy(), cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("watch %s %s: %w", ref.APIVersion, ref.Kind, err)
	}
	if !informer.HasSynced() {
		return nil, kube.StaleCache(u, "none", "the first list of its kind")
	}
	switch err := r.cache.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, u); {
	case apierrors.IsNotFound(err):
		// if it is deleted the binding is soon, too
		return nil, kube.StaleCache(u, "none", ref.ResourceVersion)
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err)
	case ref.UID != "" && ref.UID != u.GetUID():
		// or the binding is of a former one
		return nil, kube.StaleCache(u, "UID "+string(u.GetUID()), "UID "+string(ref.UID))
	case kube.OlderVersion(u.GetResourceVersion(), ref.ResourceVersion):
		return u, r.current(ctx, u)
	}
	return u, nil
}

// current is a StaleCacheError if the API server has another version of a template than the cache.
// If both have the same, the version in the binding is one of a hub before its restore.
func (r *reconciler) current(ctx context.Context, u *unstructured.Unstructured) error {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(u.GroupVersionKind())
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(u), now); err != nil {
		if apierrors.IsNotFound(err) {
			return kube.StaleCache(u, u.GetResourceVersion(), "none")
		}
		return fmt.Errorf("read %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
	}
	if now.ResourceVersion != u.GetResourceVersion() {
		return kube.StaleCache(u, u.GetResourceVersion(), now.ResourceVersion)
	}
	return nil
}

// works reads the Works of a binding's template.
func (r *reconciler) works(ctx context.Context, b binding.Binding) ([]*workv1alpha1.Work, error) {
	return r.writer.Works(ctx, OfReference(b.Spec.Resource))
}

// memberOwned is what the policy of a binding leaves to members; nil if there is no such policy.
func (r *reconciler) memberOwned(ctx context.Context, b binding.Binding) (*string, error) {
	if !claimed(b) {
		return nil, nil
	}
	a := b.GetAnnotations()
	var policy client.Object
	key := types.NamespacedName{Name: a[policyv1alpha1.AnnotationClusterPropagationPolicyName]}
	if key.Name != "" {
		policy = &policyv1alpha1.ClusterPropagationPolicy{}
	} else {
		key.Namespace = a[policyv1alpha1.AnnotationPropagationPolicyNamespace]
		key.Name = a[policyv1alpha1.AnnotationPropagationPolicyName]
		policy = &policyv1alpha1.PropagationPolicy{}
	}
	if err := r.client.Get(ctx, key, policy); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read the policy of %s: %w", b, err)
	}
	owned := policy.GetAnnotations()[policyv1alpha1.AnnotationMemberOwned]
	return &owned, nil
}

// cluster reads a Cluster; nil if it does not exist or is being deleted.
func (r *reconciler) cluster(ctx context.Context, name string) (*clusterv1alpha1.Cluster, error) {
	var c clusterv1alpha1.Cluster
	if err := r.client.Get(ctx, types.NamespacedName{Name: name}, &c); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if c.DeletionTimestamp != nil {
		return nil, nil
	}
	return &c, nil
}

// parallel bounds how many Works of one object are written at a time.
const parallel = 16

// Writer writes Works, those of several clusters in parallel, and records its writes until the
// cache shows them. Methods that write continue after an error and join the errors, each of which
// names the cluster.
type Writer struct {
	client  client.Client
	written kube.Expectations[client.ObjectKey]

	mu sync.Mutex
	// unseen are written Works that no reconcile has read from the cache yet, by what they hold.
	// The event of one does not remove it: a reconcile under way may have read the cache before.
	unseen map[Identity]map[client.ObjectKey]struct{}
}

// NewWriter writes with a client that reads from a cache with AddIndexes.
func NewWriter(c client.Client) *Writer {
	return &Writer{client: c, unseen: map[Identity]map[client.ObjectKey]struct{}{}}
}

// Write creates and updates Works that hold an object.
func (w *Writer) Write(ctx context.Context, holds Identity, all Writes) error {
	return errors.Join(w.Create(ctx, holds, all.Create), w.Update(ctx, holds, all.Update))
}

// Create creates Works that hold an object. One that exists is an error of a stale cache
// (kube.IsStale).
func (w *Writer) Create(ctx context.Context, holds Identity, works []*workv1alpha1.Work) error {
	return each(works, "create", func(x *workv1alpha1.Work) error { return w.noted(holds, x, w.client.Create(ctx, x)) })
}

// Update writes Works as they were read. A newer version at the API server is an error of a stale
// cache (kube.IsStale).
func (w *Writer) Update(ctx context.Context, holds Identity, works []*workv1alpha1.Work) error {
	return each(works, "update", func(x *workv1alpha1.Work) error { return w.noted(holds, x, w.client.Update(ctx, x)) })
}

func (w *Writer) noted(holds Identity, x *workv1alpha1.Work, err error) error {
	if err != nil {
		return err
	}
	key := client.ObjectKeyFromObject(x)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written.Expect(key, x.ResourceVersion, time.Now())
	if w.unseen[holds] == nil {
		w.unseen[holds] = map[client.ObjectKey]struct{}{}
	}
	w.unseen[holds][key] = struct{}{}
	return nil
}

// Works reads our Works that hold an object, whatever binding they name. It returns a
// StaleCacheError as long as the cache does not show a write of this Writer, also of a Work that is
// no longer wanted: the own-write event will not lead to a reconcile (Events).
func (w *Writer) Works(ctx context.Context, holds Identity) ([]*workv1alpha1.Work, error) {
	works, err := find(ctx, w.client, holds)
	if err != nil {
		return nil, err
	}
	return works, w.confirm(holds, works)
}

// confirm is a StaleCacheError if the cache does not show a write yet.
func (w *Writer) confirm(holds Identity, shown []*workv1alpha1.Work) error {
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	unseen := w.unseen[holds]
	if len(unseen) == 0 {
		return nil
	}
	versions := map[client.ObjectKey]string{}
	for _, x := range shown {
		versions[client.ObjectKeyFromObject(x)] = x.ResourceVersion
	}
	var stale error
	for key := range unseen {
		cached := cmp.Or(versions[key], "0") // "0": the cache does not have it
		if !w.written.Stale(key, cached, now) {
			delete(unseen, key)
			continue
		}
		stale = kube.StaleCache(&workv1alpha1.Work{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}},
			cached, "that of our last write")
	}
	if len(unseen) == 0 {
		delete(w.unseen, holds)
	}
	return stale
}

// Delete deletes Works as they were read, but for those that are being deleted.
func (w *Writer) Delete(ctx context.Context, works []*workv1alpha1.Work) error {
	return each(works, "delete", func(x *workv1alpha1.Work) error {
		if x.DeletionTimestamp != nil {
			return nil
		}
		return client.IgnoreNotFound(w.client.Delete(ctx, x, kube.Exactly(x)))
	})
}

// writeError is a Work that could not be written.
type writeError struct {
	verb    string
	work    *workv1alpha1.Work
	cluster string
	err     error
}

func (e *writeError) Error() string {
	text := fmt.Sprintf("%s Work %s/%s of cluster %s: %v", e.verb, e.work.Namespace, e.work.Name, e.cluster, e.err)
	if e.tooLarge() {
		size := 0
		for _, m := range e.work.Spec.Workload.Manifests {
			size += len(m.Raw)
		}
		text += fmt.Sprintf(": its manifest has %d KiB, of about 1500 that the hub can store: make the object smaller, or divide it", size/1024)
	}
	return text
}

func (e *writeError) Unwrap() error { return e.err }

// tooLarge reports whether the API server or its store refuses a request because of its size.
func (e *writeError) tooLarge() bool {
	return apierrors.IsRequestEntityTooLargeError(e.err) || strings.Contains(e.err.Error(), "request is too large") ||
		strings.Contains(e.err.Error(), "larger than max") // etcd; its client (gRPC)
}

func each(works []*workv1alpha1.Work, verb string, do func(*workv1alpha1.Work) error) error {
	errs := make([]error, len(works))
	var g errgroup.Group
	g.SetLimit(parallel)
	for i, work := range works {
		g.Go(func() error {
			if err := do(work); err != nil {
				// our Works are in execution namespaces
				cluster, _ := workv1alpha2.ClusterOfNamespace(work.Namespace)
				errs[i] = &writeError{verb: verb, work: work, cluster: cluster, err: err}
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	return errors.Join(errs...)
}
