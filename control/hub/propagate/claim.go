package propagate

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// claimPatch is a merge patch that gives the template the claim of a policy, and of no other one (nil: of none). It holds only
// for the template as it was read. No patch: the marks are there already.
//
// A Lazy policy does nothing to a template that was there before it until that is edited. Where no binding holds what the
// template was like, the claim does, in the annotation pelago.io/template.
func claimPatch(t *unstructured.Unstructured, p *propagationPolicy) ([]byte, error) {
	labels, annotations := marks(p)
	changedLabels := difference(t.GetLabels(), labels, markLabels)
	changedAnnotations := difference(t.GetAnnotations(), annotations, markAnnotations)
	if p == nil {
		for k, v := range difference(t.GetAnnotations(), nil, []string{workv1alpha2.AnnotationTemplate}) {
			changedAnnotations[k] = v
		}
	}
	if len(changedLabels)+len(changedAnnotations) == 0 {
		return nil, nil
	}
	if lazy(p) && t.GetCreationTimestamp().Time.Before(p.GetCreationTimestamp().Time) {
		hash, err := templateHash(t)
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

// difference is what a merge patch must say of some keys of a map; nil removes.
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

func lazy(p *propagationPolicy) bool {
	return p != nil && p.spec.ActivationPreference == policyv1alpha1.LazyActivation
}

// waits says whether a Lazy policy still waits for the user's next edit of the template. What the template was like stands on the
// binding or, before there is one, on the template.
func waits(p *propagationPolicy, t *unstructured.Unstructured, have binding) (bool, error) {
	if !lazy(p) {
		return false, nil
	}
	noted := t.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	if have.exists() {
		noted = have.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	}
	hash, err := templateHash(t)
	return noted == hash, err
}
