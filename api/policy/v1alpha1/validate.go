package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// ValidatePropagation checks what the schema of a propagation policy cannot: the spec
// (PropagationSpec.Validate), and the syntax of the annotations AnnotationNear,
// AnnotationScores, AnnotationFailback and AnnotationRollout.
func ValidatePropagation(o metav1.Object, s PropagationSpec) field.ErrorList {
	errs := s.Validate(o.GetNamespace())
	invalid := func(key string, err error) {
		if err != nil {
			at := field.NewPath("metadata", "annotations").Key(key)
			errs = append(errs, field.Invalid(at, o.GetAnnotations()[key], err.Error()))
		}
	}
	_, err := NearOf(o.GetAnnotations())
	invalid(AnnotationNear, err)
	_, err = ScoresOf(o.GetAnnotations())
	invalid(AnnotationScores, err)
	_, err = FailbackOf(o.GetAnnotations())
	invalid(AnnotationFailback, err)
	_, err = RolloutOf(o.GetAnnotations())
	invalid(AnnotationRollout, err)
	return errs
}

// Validate checks what the schema cannot: selectors of another namespace than the policy's
// (namespace is empty for a cluster-wide policy), which CRD rules cannot see, and invalid label
// selectors. The policy controller reports errors as ConditionAccepted=False and the detector skips
// the policy.
func (s PropagationSpec) Validate(namespace string) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateSelectors(s.ResourceSelectors, namespace, spec.Child("resourceSelectors"))
	at := spec.Child("placement")
	errs = append(errs, validateAffinity(s.Placement.ClusterAffinity, at.Child("clusterAffinity"))...)
	for i, term := range s.Placement.ClusterAffinities {
		group := at.Child("clusterAffinities").Index(i)
		errs = append(errs, validateAffinity(&term.ClusterAffinity, group)...)
		for j, tier := range term.OverflowAffinities {
			errs = append(errs, validateAffinity(&tier.ClusterAffinity, group.Child("overflowAffinities").Index(j))...)
		}
	}
	if r := s.Placement.ReplicaScheduling; r != nil && r.WeightPreference != nil {
		for i, w := range r.WeightPreference.StaticWeightList {
			errs = append(errs, validateAffinity(&w.TargetCluster, at.Child("replicaScheduling", "weightPreference", "staticWeightList").Index(i).Child("targetCluster"))...)
		}
	}
	return errs
}

// Validate checks what the schema cannot: selectors as in PropagationSpec.Validate, keys and values
// that are invalid in labels or annotations, and patch operations with a missing or a superfluous
// value. The override controller reports errors as ConditionAccepted=False and does not apply the
// policy.
func (s OverrideSpec) Validate(namespace string) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateSelectors(s.ResourceSelectors, namespace, spec.Child("resourceSelectors"))
	errs = append(errs, validateAffinity(s.TargetCluster, spec.Child("targetCluster"))...)
	if s.Overriders != nil {
		errs = append(errs, s.Overriders.validate(spec.Child("overriders"))...)
	}
	for i := range s.OverrideRules {
		rule := spec.Child("overrideRules").Index(i)
		errs = append(errs, validateAffinity(s.OverrideRules[i].TargetCluster, rule.Child("targetCluster"))...)
		errs = append(errs, s.OverrideRules[i].Overriders.validate(rule.Child("overriders"))...)
	}
	return errs
}

func (o *Overriders) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, l := range o.LabelsOverrider {
		errs = append(errs, metav1validation.ValidateLabels(l.Value, path.Child("labelsOverrider").Index(i).Child("value"))...)
	}
	for i, a := range o.AnnotationsOverrider {
		errs = append(errs, apivalidation.ValidateAnnotations(a.Value, path.Child("annotationsOverrider").Index(i).Child("value"))...)
	}
	for i, f := range o.FieldOverrider {
		at := path.Child("fieldOverrider").Index(i)
		errs = append(errs, validateValues(f.JSON, at.Child("json"))...)
		errs = append(errs, validateValues(f.YAML, at.Child("yaml"))...)
	}
	return errs
}

func validateValues(operations []FieldPatchOperation, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, o := range operations {
		at := path.Index(i).Child("value")
		switch {
		case o.Operator == OverriderOpRemove && len(o.Value.Raw) > 0:
			errs = append(errs, field.Forbidden(at, "value is not allowed for remove operation"))
		case o.Operator != OverriderOpRemove && len(o.Value.Raw) == 0:
			errs = append(errs, field.Required(at, "value is required for add or replace operation"))
		}
	}
	return errs
}

func validateSelectors(selectors []ResourceSelector, namespace string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, s := range selectors {
		if namespace != "" && s.Namespace != "" && s.Namespace != namespace {
			errs = append(errs, field.Invalid(path.Index(i).Child("namespace"), s.Namespace, "must be the namespace of the policy, "+namespace))
		}
		if s.LabelSelector != nil {
			errs = append(errs, metav1validation.ValidateLabelSelector(s.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, path.Index(i).Child("labelSelector"))...)
		}
	}
	return errs
}

// Validate returns what an API server accepts and no controller can carry out.
func (s ClusterTaintPolicySpec) Validate(string) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateAffinity(s.TargetClusters, path.Child("targetClusters"))
	for i, t := range s.Taints {
		ours := t.Effect == corev1.TaintEffectNoSchedule && (t.Key == clusterv1alpha1.TaintNotReady || t.Key == clusterv1alpha1.TaintUnreachable)
		if ours || t.Key == clusterv1alpha1.TaintUnapproved {
			errs = append(errs, field.Forbidden(path.Child("taints").Index(i).Child("key"), "the hub itself sets and removes this taint"))
		}
	}
	return errs
}

func validateAffinity(a *ClusterAffinity, path *field.Path) field.ErrorList {
	if a == nil || a.LabelSelector == nil {
		return nil
	}
	return metav1validation.ValidateLabelSelector(a.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, path.Child("labelSelector"))
}
