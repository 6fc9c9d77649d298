package v1alpha1

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Karmada, resource summary: nine default grades, valid as a user's would have to be.
func TestDefaultModels(t *testing.T) {
	models := ClusterSpec{}.Models()
	if errs := (ClusterSpec{ResourceModels: models}).Validate(field.NewPath("spec")); len(errs) > 0 || len(models) != 9 {
		t.Errorf("%d grades: %v", len(models), errs)
	}
	for grade, want := range map[int]string{0: "cpu 0 memory 0", 1: "cpu 1 memory 4Gi", 2: "cpu 2 memory 16Gi", 8: "cpu 128 memory 1Ti"} {
		got := ""
		for i, r := range models[grade].Ranges {
			got += []string{"cpu ", " memory "}[i] + r.Min.String()
		}
		if got != want || models[grade].Grade != uint(grade) {
			t.Errorf("grade %d begins at %s, want %s", models[grade].Grade, got, want)
		}
	}
	own := []ResourceModel{{Grade: 7}}
	if got := (ClusterSpec{ResourceModels: own}).Models(); len(got) != 1 || got[0].Grade != 7 {
		t.Errorf("the cluster's own models give way to the default: %v", got)
	}
}
