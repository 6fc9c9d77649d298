package propagate

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// claim adds the claim of the policy to the template, or removes it, and returns the result.
func (r *reconciler) claim(ctx context.Context, key Key, t *unstructured.Unstructured,
	c choice) (*unstructured.Unstructured, error) {
	patch, err := claimPatch(t, c.policy)
	if err != nil || patch == nil {
		return t, err
	}
	now := t.DeepCopy()
	others, err := r.templates.Write(key, now, func() error {
		if err := r.client.Patch(ctx, now, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return err
		}
		now.SetManagedFields(nil) // as in the cache: they are half of it
		return nil
	})
	if others {
		r.queue.Add(key)
	}
	if err != nil {
		if c.preempts != nil && !kube.IsStale(err) {
			r.counts.preempted.WithLabelValues(resultOf(err)).Inc()
			r.events.Eventf(t, corev1.EventTypeWarning, workv1alpha2.EventPreemptPolicyFailed,
				"%s goes before %s but could not take over, which is tried again; it stays as it is: %v", c.policy, c.preempts, err)
		}
		return nil, fmt.Errorf("mark %s with the policy that it follows: %w", key, err)
	}
	if c.preempts != nil {
		r.counts.preempted.WithLabelValues(resultOf(nil)).Inc()
		r.events.Eventf(now, corev1.EventTypeNormal, workv1alpha2.EventPreemptPolicySucceed, "%s takes over from %s",
			c.policy, c.preempts)
	}
	return now, nil
}

// claimPatch returns a merge patch that replaces the template's claim by that of a policy (nil:
// removes it), with UID and resourceVersion as read as preconditions; no patch if the template has
// the claim already.
//
// A Lazy policy does not affect an older template until that is edited. The claim therefore records
// the hash of the template, in the annotation pelago.io/template, in case there is no binding that
// does.
func claimPatch(t *unstructured.Unstructured, p *propagationPolicy) ([]byte, error) {
	labels, annotations := claimLabels(p)
	changedLabels := difference(t.GetLabels(), labels, policyv1alpha1.ClaimLabels)
	changedAnnotations := difference(t.GetAnnotations(), annotations, policyv1alpha1.ClaimAnnotations)
	if p == nil {
		for k, v := range difference(t.GetAnnotations(), nil, []string{workv1alpha2.AnnotationTemplate}) {
			changedAnnotations[k] = v
		}
	}
	if len(changedLabels)+len(changedAnnotations) == 0 {
		return nil, nil
	}
	if lazy(p) && t.GetCreationTimestamp().Time.Before(p.GetCreationTimestamp().Time) {
		hash, err := workv1alpha2.TemplateHash(t)
		if err != nil {
			return nil, err
		}
		changedAnnotations[workv1alpha2.AnnotationTemplate] = &hash
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": t.GetUID(), "resourceVersion": t.GetResourceVersion(), "labels": changedLabels, "annotations": changedAnnotations}})
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", keyOf(t), err)
	}
	return raw, nil
}

// claimLabels are the labels and annotations of the claim of a policy; none of nil.
func claimLabels(p *propagationPolicy) (labels, annotations map[string]string) {
	switch {
	case p == nil:
		return nil, nil
	case p.clusterWide:
		return map[string]string{policyv1alpha1.LabelClusterPropagationPolicyID: p.id()},
			map[string]string{policyv1alpha1.AnnotationClusterPropagationPolicyName: p.GetName()}
	}
	return map[string]string{policyv1alpha1.LabelPropagationPolicyID: p.id()},
		map[string]string{policyv1alpha1.AnnotationPropagationPolicyNamespace: p.GetNamespace(),
			policyv1alpha1.AnnotationPropagationPolicyName: p.GetName()}
}

// difference is the merge patch that makes some keys of have those of want; nil removes a key.
func difference(have, want map[string]string, keys []string) map[string]*string {
	out := map[string]*string{}
	for _, k := range keys {
		now, is := have[k]
		then, ought := want[k]
		switch {
		case ought && (!is || now != then):
			out[k] = &then
		case is && !ought:
			out[k] = nil
		}
	}
	return out
}

// mark gives an object the claim of a policy instead of any other; nil: none.
func mark(o client.Object, p *propagationPolicy) {
	labels, annotations := claimLabels(p)
	for _, key := range policyv1alpha1.ClaimLabels {
		setLabel(o, key, labels[key])
	}
	for _, key := range policyv1alpha1.ClaimAnnotations {
		setAnnotation(o, key, annotations[key])
	}
}
