package v1alpha1

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	gibi = int64(1) << 30
	none = math.MaxInt64 // no upper bound
)

// Models are spec.resourceModels or, if none exist, Karmada's nine default grades. The defaults
// exist only in memory; use this method to interpret status.resourceSummary.allocatableModelings.
func (s ClusterSpec) Models() []ResourceModel {
	if len(s.ResourceModels) > 0 {
		return s.ResourceModels
	}
	cores := []int64{0, 1, 2, 4, 8, 16, 32, 64, 128, none}
	bytes := []int64{0, 4 * gibi, 16 * gibi, 32 * gibi, 64 * gibi, 128 * gibi, 256 * gibi, 512 * gibi, 1024 * gibi, none}
	models := make([]ResourceModel, len(cores)-1)
	for i := range models {
		models[i] = ResourceModel{Grade: uint(i), Ranges: []ResourceModelRange{
			grade(corev1.ResourceCPU, resource.DecimalSI, cores[i], cores[i+1]),
			grade(corev1.ResourceMemory, resource.BinarySI, bytes[i], bytes[i+1]),
		}}
	}
	return models
}

func grade(name corev1.ResourceName, format resource.Format, from, to int64) ResourceModelRange {
	return ResourceModelRange{Name: name, Min: *resource.NewQuantity(from, format), Max: *resource.NewQuantity(to, format)}
}
