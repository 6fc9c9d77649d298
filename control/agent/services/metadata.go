package services

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// maxExported bounds the keys and values of exportedLabels, and of exportedAnnotations, in bytes:
// the agents of all clusters keep them. The hub's policy pelago-member-sizes has the same.
const maxExported = 8 << 10

// reservedDomains and their subdomains are the prefixes of labels and annotations that controllers
// set on a ServiceImport. An exporter that could set them could change who owns an import, or where
// it leads.
var reservedDomains = []string{
	"multicluster.kubernetes.io", "multicluster.x-k8s.io", "endpointslice.kubernetes.io", "submariner.io", "pelago.io",
}

func reserved(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return key == v1alpha1.LabelManagedBy || strings.Contains(key, "/") && slices.ContainsFunc(reservedDomains, func(d string) bool {
		return domain == d || strings.HasSuffix(domain, "."+d)
	})
}

// invalidMetadata returns what is wrong with exportedLabels and exportedAnnotations, empty if
// nothing is. The keys are named in sorted order, so that the same problem has the same message.
func invalidMetadata(labels, annotations map[string]string) string {
	var problems []string
	size := 0
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		size += len(key) + len(labels[key])
		problems = append(problems, invalidKey("exportedLabels", key, metav1validation.ValidateLabels(map[string]string{key: labels[key]}, field.NewPath("spec", "exportedLabels")))...)
	}
	if size > maxExported {
		problems = append(problems, fmt.Sprintf("spec.exportedLabels: %d bytes, at most %d are exported", size, maxExported))
	}
	size = 0
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		size += len(key) + len(annotations[key])
		problems = append(problems, invalidKey("exportedAnnotations", key, apivalidation.ValidateAnnotations(map[string]string{key: ""}, field.NewPath("spec", "exportedAnnotations")))...)
	}
	if size > maxExported {
		problems = append(problems, fmt.Sprintf("spec.exportedAnnotations: %d bytes, at most %d are exported", size, maxExported))
	}
	return strings.Join(problems, "; ")
}

// union is a map with the entries of both; b takes precedence.
func union(a, b map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

func invalidKey(in, key string, errs field.ErrorList) (problems []string) {
	if reserved(key) {
		problems = append(problems, fmt.Sprintf("spec.%s: %q is reserved for the controllers of ServiceImports", in, key))
	}
	for _, err := range errs {
		// without the value, which may be long
		problems = append(problems, fmt.Sprintf("spec.%s: %q: %s", in, key, err.Detail))
	}
	return problems
}

// importable returns the exported labels and annotations of a contribution that a ServiceImport may
// have. The exporter's agent rejects the others, but a member with another version, or a hostile
// one, may publish them: they must not block the import in other clusters.
func importable(exported v1alpha1.ServiceContributionSpec) (labels, annotations map[string]string) {
	labels, annotations = maps.Clone(exported.ExportedLabels), maps.Clone(exported.ExportedAnnotations)
	balancing, _ := topology.ExportedBalancing(annotations)
	maps.DeleteFunc(labels, func(key, value string) bool { return invalidMetadata(map[string]string{key: value}, nil) != "" })
	maps.DeleteFunc(annotations, func(key, value string) bool { return invalidMetadata(nil, map[string]string{key: value}) != "" })
	if invalidMetadata(nil, annotations) != "" {
		annotations = nil // too many
	}
	if len(balancing) > 0 { // which the exporter's agent has added
		annotations = union(annotations, balancing)
	}
	return labels, annotations
}
