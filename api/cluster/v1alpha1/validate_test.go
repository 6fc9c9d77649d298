package v1alpha1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// A Taint converts to Kubernetes' own.
var _ = corev1.Taint(Taint{})

func TestValidateResourceModels(t *testing.T) {
	const end = `"9223372036854775807"`
	for name, tt := range map[string]struct{ models, want string }{
		"none": {`[]`, ""},
		"two classes": {`[{grade: 1, ranges: [{name: cpu, min: 0, max: 1}, {name: memory, min: 0, max: 4Gi}]},
			{grade: 2, ranges: [{name: memory, min: 4096Mi, max: ` + end + `}, {name: cpu, min: 1000m, max: ` + end + `}]}]`, ""},
		"an empty range":   {`[{grade: 1, ranges: [{name: cpu, min: 0, max: 0}]}, {grade: 2, ranges: [{name: cpu, min: 0, max: ` + end + `}]}]`, "spec.resourceModels[0].ranges[0].max: Invalid value: \"0\": the max value of each resource must be greater than the min value"},
		"a gap below":      {`[{grade: 1, ranges: [{name: cpu, min: 1, max: ` + end + `}]}]`, "spec.resourceModels[0].ranges[0].min: Invalid value: \"1\": the min value of each resource in the first model must be 0"},
		"a gap between":    {`[{grade: 1, ranges: [{name: cpu, min: 0, max: 1}]}, {grade: 2, ranges: [{name: cpu, min: 2, max: ` + end + `}]}]`, "spec.resourceModels[1].ranges[0].min: Invalid value: \"2\": model intervals for resources must be contiguous and non-overlapping"},
		"an overlap":       {`[{grade: 1, ranges: [{name: cpu, min: 0, max: 2}]}, {grade: 2, ranges: [{name: cpu, min: 1, max: ` + end + `}]}]`, "spec.resourceModels[1].ranges[0].min: Invalid value: \"1\": model intervals"},
		"another resource": {`[{grade: 1, ranges: [{name: cpu, min: 0, max: 2}]}, {grade: 2, ranges: [{name: memory, min: 2, max: ` + end + `}]}]`, "spec.resourceModels[1].ranges[0].min: Invalid value: \"2\": model intervals"},
		"an end too early": {`[{grade: 1, ranges: [{name: cpu, min: 0, max: 1k}]}]`, "spec.resourceModels[0].ranges[0].max: Invalid value: \"1k\": the max value of each resource in the last model must be MaxInt64"},
	} {
		t.Run(name, func(t *testing.T) {
			var spec ClusterSpec
			if err := yaml.UnmarshalStrict([]byte("{syncMode: Push, resourceModels: "+tt.models+"}"), &spec); err != nil {
				t.Fatal(err)
			}
			errs := spec.Validate(field.NewPath("spec"))
			switch {
			case tt.want == "" && len(errs) > 0:
				t.Errorf("found %v", errs)
			case tt.want != "" && (len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), tt.want)):
				t.Errorf("found %v, want %s", errs, tt.want)
			}
		})
	}
}

func TestAllZones(t *testing.T) {
	for _, tt := range []struct {
		spec ClusterSpec
		want string
	}{
		{ClusterSpec{}, ""},
		{ClusterSpec{Zone: "a"}, "a"},
		{ClusterSpec{Zones: []string{"a", "b"}}, "a b"},
	} {
		if got := strings.Join(tt.spec.AllZones(), " "); got != tt.want {
			t.Errorf("zones of %+v: %q, want %q", tt.spec, got, tt.want)
		}
	}
}
