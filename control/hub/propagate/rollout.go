package propagate

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kinds"
)

// revision is the hash of a template without its replicas: scaling is no new revision.
func revision(in *kinds.Interpreter, t *unstructured.Unstructured) (string, error) {
	if in.HasReplicas(t) {
		t = t.DeepCopy()
		if err := in.Revise(t, 0); err != nil {
			return "", err
		}
	}
	return workv1alpha2.TemplateHash(t)
}

// roll writes the state of the rollout into a binding, and returns after what time it changes
// without an event. A binding that does not follow its template keeps the state.
func (r *reconciler) roll(ctx context.Context, w inputs, b binding.Binding) (time.Duration, error) {
	if w.kept || w.waiting {
		return 0, nil
	}
	var of *policyv1alpha1.Rollout
	if w.policy != nil {
		of, _ = policyv1alpha1.RolloutOf(w.policy.GetAnnotations()) // a policy with another value is not valid
	}
	if of == nil {
		setAnnotation(b, policyv1alpha1.AnnotationRollout, "")
		setAnnotation(b, workv1alpha2.AnnotationRollout, "")
		return 0, nil
	}
	setAnnotation(b, policyv1alpha1.AnnotationRollout, w.policy.GetAnnotations()[policyv1alpha1.AnnotationRollout])
	roller := placement.Roller{Rollout: of, Now: time.Now()}
	var err error
	if roller.Revision, err = revision(r.Interpreter, w.template); err != nil {
		return 0, err
	}
	before := workv1alpha2.ReadRollout(b.GetAnnotations())
	if before == nil && w.have.Exists() {
		// the annotation may come together with an edit
		was := w.have.GetAnnotations()[workv1alpha2.AnnotationTemplate]
		if was != b.GetAnnotations()[workv1alpha2.AnnotationTemplate] {
			roller.Former = was
		}
	}
	if before == nil && roller.Former != "" || before != nil && roller.Revision != before.Passed {
		if err := r.rolloutTargets(ctx, b, before, &roller); err != nil {
			return 0, err
		}
	}
	next, after := roller.Roll(before)
	text, err := next.Encode()
	if err != nil {
		return 0, err
	}
	setAnnotation(b, workv1alpha2.AnnotationRollout, text)
	return after, nil
}

// rolloutTargets reads the clusters of a binding, and the Works of those that have the revision.
func (r *reconciler) rolloutTargets(
	ctx context.Context, b binding.Binding, before *workv1alpha2.Rollout, roller *placement.Roller,
) error {
	var list clusterv1alpha1.ClusterList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Clusters: %w", err)
	}
	clusters := map[string]*clusterv1alpha1.Cluster{}
	for i := range list.Items {
		clusters[list.Items[i].Name] = &list.Items[i]
	}
	for i, text := range roller.Rollout.Order {
		matched := false
		for _, c := range clusters {
			matched = matched || roller.Rollout.Matches(i+1, c.Labels)
		}
		if !matched {
			roller.Unmatched = append(roller.Unmatched, text)
		}
	}
	for _, c := range b.Spec.Clusters {
		t := placement.RolloutTarget{Name: c.Name, Replicas: b.Spec.ReplicasIn(c)}
		var labels map[string]string
		of := clusters[c.Name]
		if of != nil {
			labels = of.Labels
		}
		t.Wave = roller.Rollout.Wave(labels)
		switch {
		case b.Spec.Suspension.Suspends(c.Name):
			t.Out = "dispatching is suspended"
		case of == nil:
			t.Out = "there is no such Cluster"
		case !of.Takes():
			t.Out = "the cluster is not accepted"
		case !isReady(of):
			t.Out = "the cluster is not ready"
		}
		if before != nil {
			if has, ok := before.Clusters[c.Name]; ok && !has.Done {
				var err error
				if t.Work, err = r.workOf(ctx, b, c.Name); err != nil {
					return err
				}
			}
		}
		roller.Targets = append(roller.Targets, t)
	}
	for _, task := range b.Spec.GracefulEvictionTasks {
		if task.Reason == workv1alpha2.EvictionReasonApplicationFailure {
			roller.Evicted = append(roller.Evicted, task.FromCluster)
		}
	}
	return nil
}

// workOf is the Work of a binding in a cluster, as the cache has it; nil: none.
func (r *reconciler) workOf(ctx context.Context, b binding.Binding, cluster string) (*workv1alpha1.Work, error) {
	of := b.Spec.Resource
	for _, name := range []string{workv1alpha2.WorkName(of), workv1alpha2.AlternateWorkName(of)} {
		key := client.ObjectKey{Namespace: workv1alpha2.ExecutionNamespace(cluster), Name: name}
		var work workv1alpha1.Work
		switch err := r.cache.Get(ctx, key, &work, client.UnsafeDisableDeepCopy); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("read Work %s: %w", key, err)
		default:
			if of, ok := binding.OfWork(&work); ok && of == client.ObjectKeyFromObject(b) {
				return &work, nil
			}
		}
	}
	return nil, nil
}

// onWork enqueues the template of a Work with a revision, while that has not reached all clusters.
func (r *reconciler) onWork(before, after client.Object) {
	if after == nil || after.GetAnnotations()[workv1alpha2.AnnotationRevision] == "" ||
		before != nil && before.GetResourceVersion() == after.GetResourceVersion() {
		return
	}
	key, ok := binding.OfWork(after)
	if !ok {
		return
	}
	b := binding.New(key)
	if r.cache.Get(context.Background(), key, b.Object, client.UnsafeDisableDeepCopy) != nil { // all is in memory
		return // its own event enqueues it
	}
	if of := workv1alpha2.ReadRollout(b.GetAnnotations()); of != nil && of.InProgress() {
		r.addTemplate(b)
	}
}

func isReady(c *clusterv1alpha1.Cluster) bool {
	ready := c.Ready()
	return ready != nil && ready.Status == metav1.ConditionTrue
}

// rolloutDiffers reports whether rollouts may advance in a Cluster, or its wave may be another one.
func rolloutDiffers(before, after *clusterv1alpha1.Cluster) bool {
	return isReady(before) != isReady(after) || before.Takes() != after.Takes() || !maps.Equal(before.Labels, after.Labels)
}

// recordRollout emits an Event if the condition Rollout changes.
func (r *reconciler) recordRollout(w inputs, b binding.Binding) {
	was := workv1alpha2.Rollout{}
	if w.have.Exists() {
		was = ptr.Deref(workv1alpha2.ReadRollout(w.have.GetAnnotations()), was)
	}
	is := ptr.Deref(workv1alpha2.ReadRollout(b.GetAnnotations()), workv1alpha2.Rollout{})
	kind, reason, message := corev1.EventTypeNormal, workv1alpha2.EventRolloutProgressing, is.Message
	switch {
	case was.Reason == is.Reason && was.Revision == is.Revision:
		return
	case is.Reason == "":
		if is.Revision == "" || !was.InProgress() || is.Passed == was.Passed {
			return
		}
		reason, message = workv1alpha2.EventRolloutCompleted, fmt.Sprintf("all clusters have revision %s", is.Revision)
	case is.Reason == workv1alpha2.ReasonRolloutStopped, is.Reason == workv1alpha2.ReasonRolloutInvalidOrder:
		kind, reason = corev1.EventTypeWarning, workv1alpha2.EventRolloutStopped
	case is.Hold != "":
		reason = workv1alpha2.EventRolloutHeld
	}
	r.events.Event(w.template, kind, reason, message)
	r.events.Event(b.Object, kind, reason, message)
}
