package v1alpha1

import (
	"math"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validate checks what the schema of Cluster cannot, so far only spec.resourceModels: comparing
// quantities in CEL exceeds the API server's cost limit. Code that counts nodes by model calls it
// first and counts none if there are errors; the hub reports them in an Event on the Cluster.
func (s ClusterSpec) Validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	models := path.Child("resourceModels")
	for i, model := range s.ResourceModels {
		for j, r := range model.Ranges {
			at := models.Index(i).Child("ranges").Index(j)
			if r.Max.Cmp(r.Min) <= 0 {
				errs = append(errs, field.Invalid(at.Child("max"), r.Max.String(), "the max value of each resource must be greater than the min value"))
			}
			if i == 0 && !r.Min.IsZero() {
				errs = append(errs, field.Invalid(at.Child("min"), r.Min.String(), "the min value of each resource in the first model must be 0"))
			}
			if i > 0 && !follows(s.ResourceModels[i-1], r) {
				errs = append(errs, field.Invalid(at.Child("min"), r.Min.String(), "model intervals for resources must be contiguous and non-overlapping"))
			}
			if i == len(s.ResourceModels)-1 && r.Max.Value() != math.MaxInt64 {
				errs = append(errs, field.Invalid(at.Child("max"), r.Max.String(), "the max value of each resource in the last model must be MaxInt64 (9223372036854775807)"))
			}
		}
	}
	return errs
}

// follows reports whether a range begins where the same resource of the model before ends.
func follows(before ResourceModel, r ResourceModelRange) bool {
	for _, b := range before.Ranges {
		if b.Name == r.Name {
			return b.Max.Cmp(r.Min) == 0
		}
	}
	return false
}
