package migrate

import (
	"context"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// scaler stops and starts Deployments of one namespace. The annotation keeps the replicas that one
// had.
type scaler struct {
	client                       client.Client
	namespace, annotation, where string // where names the cluster in messages
	timeout                      time.Duration
	progress                     manifests.Progress
}

// each calls do with those of the named Deployments that exist.
func (s scaler) each(ctx context.Context, names []string, do func(*appsv1.Deployment) error) error {
	for _, name := range names {
		d := &appsv1.Deployment{}
		switch err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, d); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("get Deployment %s/%s of %s: %w", s.namespace, name, s.where, err)
		default:
			if err := do(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// scale stops Deployments and notes their replicas, or starts those that were stopped, and waits.
func (s scaler) scale(ctx context.Context, names []string, up bool) error {
	return s.each(ctx, names, func(d *appsv1.Deployment) error {
		before := d.DeepCopy()
		had, noted := d.Annotations[s.annotation]
		switch {
		case up && noted:
			n, err := strconv.ParseInt(had, 10, 32)
			if err != nil {
				return fmt.Errorf("read annotation %s of Deployment %s/%s: %w", s.annotation, d.Namespace, d.Name, err)
			}
			d.Spec.Replicas = ptr.To(int32(n))
			delete(d.Annotations, s.annotation)
		case !up && ptr.Deref(d.Spec.Replicas, 1) > 0:
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, s.annotation, strconv.Itoa(int(ptr.Deref(d.Spec.Replicas, 1))))
			d.Spec.Replicas = ptr.To[int32](0)
		case !up && noted: // an interrupted run has not waited
			return s.await(ctx, d)
		default:
			return nil
		}
		s.progress("Scaling Deployment %s/%s of %s to %d", d.Namespace, d.Name, s.where, *d.Spec.Replicas)
		if err := s.client.Patch(ctx, d, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("scale Deployment %s/%s of %s: %w", d.Namespace, d.Name, s.where, err)
		}
		return s.await(ctx, d)
	})
}

func (s scaler) await(ctx context.Context, d *appsv1.Deployment) error {
	err := wait.PollUntilContextTimeout(ctx, time.Second, s.timeout, true, func(context.Context) (bool, error) {
		err := s.client.Get(ctx, client.ObjectKeyFromObject(d), d)
		return d.Status.ObservedGeneration >= d.Generation && d.Status.Replicas == *d.Spec.Replicas && d.Status.ReadyReplicas == *d.Spec.Replicas, err
	})
	if err != nil {
		return fmt.Errorf("wait for %d replicas of Deployment %s/%s: %w: run the command again", *d.Spec.Replicas, d.Namespace, d.Name, err)
	}
	return nil
}
