package topology

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// maxWeight bounds the weight of a cluster, which is a share of the slots of a ClusterSetIP.
const maxWeight = 1 << 16

// Weights reads the weights of clusters, by id, from the annotations of a ServiceImport. problems
// are those without effect, as messages for an operator, sorted.
func Weights(annotations map[string]string) (weights map[string]int, problems []string) {
	for key, value := range annotations {
		cluster, ok := strings.CutPrefix(key, submarinerv1.AnnotationWeightPrefix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > maxWeight {
			problems = append(problems, fmt.Sprintf("annotation %s is %q, not a number from 0 to %d: the cluster has weight 1", key, value, maxWeight))
			continue
		}
		if weights == nil {
			weights = map[string]int{}
		}
		weights[cluster] = n
	}
	slices.Sort(problems)
	return weights, problems
}
