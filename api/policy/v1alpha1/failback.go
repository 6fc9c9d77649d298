package v1alpha1

import (
	"fmt"
	"strings"
	"time"
)

// AnnotationFailback of a propagation policy controls whether templates return to clusters that
// they left because of the cluster itself: it failed, or had a taint with effect NoExecute.
//
//	pelago.io/failback: WhenHealthy(10m)
//
// Never is the default. With WhenHealthy the replicas of a cluster return once it has been ready
// and free of untolerated taints for this time without interruption (default: 5 minutes). Until
// then it is selected only if no other cluster fits.
const (
	AnnotationFailback  = "pelago.io/failback"
	FailbackNever       = "Never"
	FailbackWhenHealthy = "WhenHealthy"
)

// Bounds of the time of AnnotationFailback.
const (
	defaultFailback = 5 * time.Minute
	maxFailback     = 7 * 24 * time.Hour
)

// FailbackOf reads AnnotationFailback of a policy or a binding: how long a cluster must have been
// healthy; 0: nothing returns.
func FailbackOf(annotations map[string]string) (time.Duration, error) {
	text := annotations[AnnotationFailback]
	in, ok := strings.CutPrefix(text, FailbackWhenHealthy+"(")
	in, closed := strings.CutSuffix(in, ")")
	switch {
	case text == "" || text == FailbackNever:
		return 0, nil
	case text == FailbackWhenHealthy:
		return defaultFailback, nil
	case !ok || !closed:
		return 0, fmt.Errorf("use Never, WhenHealthy or WhenHealthy(DURATION), such as WhenHealthy(10m)")
	}
	d, err := time.ParseDuration(in)
	if err != nil {
		return 0, fmt.Errorf("%w: use WhenHealthy(DURATION), such as WhenHealthy(10m)", err)
	}
	if d < time.Second || d > maxFailback {
		return 0, fmt.Errorf("%s is out of range: set 1s at least and %s at most", d, maxFailback)
	}
	return d, nil
}
