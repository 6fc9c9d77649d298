// Package operator has the controllers of `pelago-agent --roles=operator`: they install what
// Submariner and Broker objects request, and join the clusters of Cluster API that have a label.
// What they install is decided by deploy/spec and done by deploy/member and deploy/broker, in this
// process.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/api/submariner/v1alpha1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
	"github.com/pelago-net/pelago/deploy/spec"
)

const (
	// Deployment is that of the operator, its container and its Lease.
	Deployment = "pelago-operator"
	// repairInterval is how often everything is applied again although nothing has changed.
	repairInterval = 10 * time.Minute
	// retryInterval is how often the state of the components is read, and a refused spec tried
	// again.
	retryInterval = 30 * time.Second
	// applyTimeout bounds one installation. It is below that of the liveness probe (control/kube).
	applyTimeout = 8 * time.Minute
)

// operator reconciles the Broker, Submariner and ServiceDiscovery objects of its namespace. It
// translates them into deploy/spec, and installs that as the command line does.
type operator struct {
	client    client.Client
	live      client.Reader
	namespace string
	image     string // its own; empty if it runs outside of pods
	install   installer
	// applied and brokers hold what was last installed for each Submariner and Broker; only its
	// controller's single worker writes a map.
	applied, brokers map[client.ObjectKey]applied
	failures         *prometheus.CounterVec // by kind
	retry            time.Duration          // replaces retryInterval
}

// applied is what was installed last, when, and with which error.
type applied struct {
	input string
	at    time.Time
	err   error
}

// current reports whether the same input was installed (or failed) so recently that it need not be
// installed again yet.
func (a applied) current(input string, interval, retry time.Duration) bool {
	if a.err != nil {
		interval = retry / 2 // events of other objects do not repeat a failure
	}
	return a.input == input && time.Since(a.at) < interval
}

func (o *operator) retries() time.Duration { return cmp.Or(o.retry, retryInterval) }

// Options are those of the operator.
type Options struct {
	Namespace string
	// Image is the operator's own; empty: that of its pod.
	Image string
	// GiveUp is how long a leaving member of Cluster API may be not ready before its objects are
	// abandoned; 0: five minutes.
	GiveUp time.Duration
	// Retry is how often what has failed is tried again; 0: half a minute.
	Retry time.Duration
}

// Scheme has the kinds that the manager reads.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), submarinerv1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		return nil, fmt.Errorf("collect the kinds: %w", err)
	}
	return s, nil
}

// Cache is that of the manager: the operator's namespace, and the workloads of Pelago's.
func Cache(namespace string) cache.Options {
	system := cache.ByObject{Namespaces: map[string]cache.Config{config.SystemNamespace: {}}}
	return cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}, ByObject: map[client.Object]cache.ByObject{
		&appsv1.Deployment{}: system, &appsv1.DaemonSet{}: system}}
}

// Add adds the controllers to a manager with Scheme and Cache.
func Add(ctx context.Context, mgr ctrl.Manager, o Options) error {
	failures, err := kube.Registered(newFailures())
	if err != nil {
		return fmt.Errorf("register the operator's metrics: %w", err)
	}
	r := &operator{failures: failures, client: mgr.GetClient(), live: mgr.GetAPIReader(), namespace: o.Namespace, image: o.Image, install: installer{config: mgr.GetConfig()},
		applied: map[client.ObjectKey]applied{}, brokers: map[client.ObjectKey]applied{}, retry: o.Retry}
	if r.image == "" {
		if r.image, err = ownImage(ctx, r.live, o.Namespace); err != nil {
			return err
		}
	}
	// The objects are read as unstructured, so that unknown fields are seen.
	kind := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(name))
		return u
	}
	every := func(kind *unstructured.Unstructured) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, _ client.Object) (out []reconcile.Request) {
			list := &unstructured.UnstructuredList{}
			list.SetGroupVersionKind(kind.GroupVersionKind())
			// retried with the interval
			if r.client.List(ctx, list, client.InNamespace(r.namespace)) != nil {
				return nil
			}
			for i := range list.Items {
				out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
			return out
		})
	}
	// Ignore status updates: a message may report how long ago something was, so each reconcile
	// would trigger the next.
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	submariner, discovery, broker := kind("Submariner"), kind("ServiceDiscovery"), kind("Broker")
	return errors.Join(
		ctrl.NewControllerManagedBy(mgr).Named("submariner").For(submariner, changed).
			Watches(&corev1.Secret{}, every(submariner)).
			Watches(&appsv1.Deployment{}, every(submariner)).
			Watches(&appsv1.DaemonSet{}, every(submariner)).Complete(reconcile.Func(r.submariner)),
		ctrl.NewControllerManagedBy(mgr).Named("servicediscovery").For(discovery, changed).
			Watches(submariner, every(discovery)).Complete(reconcile.Func(r.discovery)),
		ctrl.NewControllerManagedBy(mgr).Named("broker").For(broker, changed).Complete(reconcile.Func(r.broker)),
		mgr.Add(clusterAPI(mgr, r, o.GiveUp)),
	)
}

// ownImage is the image of this pod.
func ownImage(ctx context.Context, c client.Reader, namespace string) (string, error) {
	name := os.Getenv("POD_NAME")
	if name == "" {
		return "", nil
	}
	pod := &corev1.Pod{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod); err != nil {
		return "", fmt.Errorf("read the image of the operator's pod: %w", err)
	}
	return pod.Spec.Containers[0].Image, nil
}

// decode reads a custom resource; unknown is an error that lists its unknown fields. found is false
// if it does not exist.
func (o *operator) decode(ctx context.Context, kind string, key client.ObjectKey, into client.Object) (found bool, unknown error, err error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	if err := o.client.Get(ctx, key, u); err != nil {
		return false, nil, client.IgnoreNotFound(err)
	}
	unknown = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, into, true)
	if unknown != nil && !runtime.IsStrictDecodingError(unknown) {
		return false, nil, fmt.Errorf("read %s %s: %w", kind, key, unknown)
	}
	return true, unknown, nil
}

// submariner reconciles one Submariner.
func (o *operator) submariner(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s := &v1alpha1.Submariner{}
	found, unknown, err := o.decode(ctx, "Submariner", req.NamespacedName, s)
	if err != nil || !found {
		return reconcile.Result{}, err
	}
	before := s.DeepCopy()
	if s.DeletionTimestamp != nil {
		return reconcile.Result{}, o.remove(ctx, s, before)
	}
	if controllerutil.AddFinalizer(s, v1alpha1.Finalizer) {
		if err := o.client.Patch(ctx, s, client.MergeFrom(before)); err != nil {
			return reconcile.Result{}, fmt.Errorf("add the finalizer of Submariner %s: %w", s.Name, err)
		}
		// Requeue instead of continuing: the response may contain a newer spec, and decoding has
		// dropped its unknown fields.
		return reconcile.Result{RequeueAfter: kube.RequeueStale}, nil
	}
	phase := o.join(ctx, s, unknown)
	o.count("Submariner", phase)
	if err := o.observe(ctx, s, phase); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: o.retries()}, o.write(ctx, s, before)
}

// updating is the error of install while it has to wait; it reports for what.
type updating string

func (u updating) Error() string { return string(u) }

// join makes the cluster a member. The error is of type updating while something has to be waited
// for.
func (o *operator) join(ctx context.Context, s *v1alpha1.Submariner, unknown error) error {
	if err := unknownFields(unknown); err != nil {
		return err
	}
	if err := o.checkOnly(ctx, s); err != nil {
		return err
	}
	secrets := map[string]map[string][]byte{}
	for _, key := range secretsOf(o.namespace, s) {
		secret := &corev1.Secret{}
		if err := o.client.Get(ctx, key, secret); err != nil {
			return fmt.Errorf("get Secret %s, which the spec names: %w", key, err)
		}
		secrets[key.Name] = secret.Data
	}
	m, err := membershipOf(s, secrets, cmp.Or(o.image, manifests.DefaultImage))
	if err != nil {
		return err
	}
	if err := o.update(ctx, m.Image); err != nil {
		return err
	}
	digest, err := m.digest()
	if err != nil {
		return err
	}
	joined, err := o.joined(ctx)
	if err != nil {
		return err
	}
	if id := joined.ClusterID; id != "" && id != s.Status.ClusterID && id != s.Spec.ClusterID {
		s.Status.Registration = "" // a person has joined it since
	}
	keep := joined.ClusterID == s.Spec.ClusterID && s.Status.Registration == digest
	input, key := digest+fmt.Sprint(spec.Texts(m.Member)), client.ObjectKeyFromObject(s)
	if last := o.applied[key]; (keep || last.err != nil) && last.current(input, repairInterval, o.retries()) {
		return last.err
	}
	if joined.ClusterID == "" {
		s.Status.Registration = "joining" // what a failure leaves is removed with the object
	}
	err = m.locate(o.install.member(ctx, m, keep))
	o.applied[key] = applied{input, time.Now(), err}
	if err == nil {
		s.Status.Registration = digest
	}
	return err
}

// checkOnly refuses a Submariner next to an older one.
func (o *operator) checkOnly(ctx context.Context, s *v1alpha1.Submariner) error {
	list := &v1alpha1.SubmarinerList{}
	if err := o.live.List(ctx, list, client.InNamespace(o.namespace)); err != nil {
		return fmt.Errorf("list Submariners: %w", err)
	}
	for _, other := range list.Items {
		if other.Name != s.Name && (other.CreationTimestamp.Before(&s.CreationTimestamp) ||
			other.CreationTimestamp.Equal(&s.CreationTimestamp) && other.Name < s.Name) {
			return fmt.Errorf("a cluster is one member, and Submariner %s is older: delete one of them", other.Name)
		}
	}
	return nil
}

// unknownFields is the refusal of fields that the kind does not have.
func unknownFields(err error) error {
	strict, ok := runtime.AsStrictDecodingError(err)
	if !ok {
		return err
	}
	var out []string
	for _, e := range strict.Errors() {
		out = append(out, e.Error())
	}
	slices.Sort(out)
	return refusal{reason: "UnknownField", message: strings.Join(out, ", ") + ": nothing was changed: remove it, or find its name here with `kubectl explain`"}
}

// update rolls the operator's own Deployment to the image first. Only its new pod, which has the
// manifests of that version, updates the components: an image that cannot run does not get past the
// operator.
func (o *operator) update(ctx context.Context, image string) error {
	if o.image == "" || o.image == image {
		return nil
	}
	d := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: o.namespace, Name: Deployment}
	if err := o.live.Get(ctx, key, d); err != nil {
		return fmt.Errorf("get Deployment %s of the operator: %w", key, err)
	}
	if container := &d.Spec.Template.Spec.Containers[0]; container.Image != image {
		before := d.DeepCopy()
		container.Image = image
		if err := o.client.Patch(ctx, d, client.StrategicMergeFrom(before)); err != nil {
			return fmt.Errorf("update the image of Deployment %s: %w", key, err)
		}
	}
	return updating(fmt.Sprintf("the operator is updated to %s first: see `kubectl -n %s get pods` if that takes long", image, o.namespace))
}

// joined is the configuration that a join has left, the zero value if none exists.
func (o *operator) joined(ctx context.Context) (config.Config, error) {
	return member.Former(ctx, o.live)
}

// remove takes the cluster out of the clusterset, on its side.
func (o *operator) remove(ctx context.Context, s, before *v1alpha1.Submariner) error {
	if !controllerutil.ContainsFinalizer(s, v1alpha1.Finalizer) {
		return nil
	}
	joined, err := o.joined(ctx)
	// The id of the status, once there is one: that of the spec may be another by now. With neither
	// a person has joined the cluster.
	id := cmp.Or(s.Status.ClusterID, s.Spec.ClusterID)
	if err == nil && joined.ClusterID != "" && joined.ClusterID == id && s.Status.Registration != "" {
		err = o.install.remove(ctx)
	}
	if err != nil {
		o.count("Submariner", err)
		setConditions(&s.Status.Status, s.Generation, nil, err)
		return errors.Join(err, o.write(ctx, s, before))
	}
	delete(o.applied, client.ObjectKeyFromObject(s))
	controllerutil.RemoveFinalizer(s, v1alpha1.Finalizer)
	if err := o.client.Patch(ctx, s, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of Submariner %s: %w", s.Name, err)
	}
	return nil
}

// write writes the status if it differs.
func (o *operator) write(ctx context.Context, obj, before client.Object) error {
	err := o.client.Status().Patch(ctx, obj, client.MergeFrom(before))
	if err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("write the status of %T %s: %w", obj, obj.GetName(), client.IgnoreNotFound(err))
	}
	return nil
}
