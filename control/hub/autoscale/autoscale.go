// Package autoscale changes replicas of templates at the hub: by time (CronFederatedHPA), by
// metrics of all clusters that run them (FederatedHPA), and by what autoscalers of members have set
// (deploymentReplicasSyncer). It runs in pelago-hub and writes only the scale subresource of
// templates and its own kinds; control/hub/propagate divides the replicas among the clusters.
package autoscale

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/kube"
)

// workers is how many objects of each kind are reconciled at a time.
const workers = 4

// Options of the controllers.
type Options struct {
	// Now is the clock of schedules and windows; nil: time.Now.
	Now func() time.Time
	// Interval is the time between two calculations for a FederatedHPA; 0: 15 s, as in
	// kube-controller-manager.
	Interval time.Duration
	// SyncReplicas adds the deploymentReplicasSyncer and the hpaScaleTargetMarker.
	SyncReplicas bool
}

// Setup adds the controllers to the manager, whose scheme has the autoscaling group.
func Setup(mgr ctrl.Manager, o Options) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Interval == 0 {
		o.Interval = 15 * time.Second
	}
	if err := setupHPA(mgr, o); err != nil {
		return fmt.Errorf("set up the controller of FederatedHPAs: %w", err)
	}
	if o.SyncReplicas {
		if err := setupReplicas(mgr); err != nil {
			return fmt.Errorf("set up the controller of Deployments with autoscalers in members: %w", err)
		}
		if err := setupRetain(mgr); err != nil {
			return fmt.Errorf("set up the controller of the targets of HorizontalPodAutoscalers: %w", err)
		}
	}
	if err := setupCron(mgr, o); err != nil {
		return fmt.Errorf("set up the controller of CronFederatedHPAs: %w", err)
	}
	return nil
}

// errRefused is an error that another attempt does not change.
var errRefused = errors.New("not applied")

// permanent reports whether another attempt gives the same error until someone changes an object.
func permanent(err error) bool {
	return errors.Is(err, errRefused) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) ||
		apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsBadRequest(err)
}

// scale is the scale subresource of a template.
type scale struct {
	target   *unstructured.Unstructured // kind and name only
	version  string
	replicas int32
	selector string
}

func readScale(ctx context.Context, c client.Client, namespace string, ref autoscalingv2.CrossVersionObjectReference) (*scale, error) {
	s := &scale{target: &unstructured.Unstructured{}}
	s.target.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	s.target.SetNamespace(namespace)
	s.target.SetName(ref.Name)
	got := &unstructured.Unstructured{}
	if err := c.SubResource("scale").Get(ctx, s.target, got); err != nil {
		return nil, fmt.Errorf("read the scale of %s: %w", s, err)
	}
	s.version = got.GetResourceVersion()
	replicas, _, err := unstructured.NestedInt64(got.Object, "spec", "replicas")
	if err != nil {
		return nil, fmt.Errorf("read the scale of %s: %w", s, err)
	}
	s.replicas = int32(replicas)
	s.selector, _, err = unstructured.NestedString(got.Object, "status", "selector")
	if err != nil {
		return nil, fmt.Errorf("read the scale of %s: %w", s, err)
	}
	return s, nil
}

func (s *scale) String() string {
	return fmt.Sprintf("%s %s/%s", s.target.GetKind(), s.target.GetNamespace(), s.target.GetName())
}

// set writes the replicas, on condition that the template is the one that was read.
func (s *scale) set(ctx context.Context, c client.Client, replicas int32) error {
	if replicas == s.replicas {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": s.version}, "spec": map[string]any{"replicas": replicas}})
	if err != nil {
		return err
	}
	err = c.SubResource("scale").Patch(ctx, s.target.DeepCopy(), client.RawPatch(types.MergePatchType, patch),
		client.WithSubResourceBody(&unstructured.Unstructured{}))
	if err != nil {
		return fmt.Errorf("scale %s to %d replicas: %w", s, replicas, err)
	}
	return nil
}

func histogram(name, help string, labels ...string) (*prometheus.HistogramVec, error) {
	return kube.Registered(prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 15)}, append(labels, "result")))
}

func observe(of func(...string) prometheus.Observer, began time.Time, err *error) {
	result := "success"
	if *err != nil {
		result = "error"
	}
	of(result).Observe(time.Since(began).Seconds())
}
