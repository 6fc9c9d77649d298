package v1alpha1

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// AnnotationScores of a propagation policy orders clusters by PlacementScores. The value is a JSON
// object of the weights of scores: clusters with the largest sum of weight × value go first.
//
//	pelago.io/scores: '{"gpu": 1, "cost": -2}'
const AnnotationScores = "pelago.io/scores"

// Bounds of AnnotationScores.
const (
	maxScores = 8
	maxWeight = 1000
)

// ScoresOf reads AnnotationScores of a policy or a binding: weights by the names of scores; nil: it
// has none.
func ScoresOf(annotations map[string]string) (map[string]int32, error) {
	text, ok := annotations[AnnotationScores]
	if !ok {
		return nil, nil
	}
	var weights map[string]int32
	if err := json.Unmarshal([]byte(text), &weights); err != nil {
		return nil, fmt.Errorf(`%w: use {"SCORE": WEIGHT}, for example {"gpu": 1, "cost": -2}`, err)
	}
	if len(weights) == 0 || len(weights) > maxScores {
		return nil, fmt.Errorf("%d scores are named: name 1 to %d", len(weights), maxScores)
	}
	for name, weight := range weights {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			return nil, fmt.Errorf("score %q: %s", name, errs[0])
		}
		if weight == 0 || weight < -maxWeight || weight > maxWeight {
			return nil, fmt.Errorf("the weight %d of score %s is out of range: set -%d to %d, and not 0", weight, name, maxWeight, maxWeight)
		}
	}
	return weights, nil
}
