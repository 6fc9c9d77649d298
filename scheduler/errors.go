package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FitError: no cluster passes the filters.
type FitError struct {
	Reasons []Reason
}

// Error counts the clusters by reason, the most frequent first: there may be hundreds.
func (e *FitError) Error() string {
	if len(e.Reasons) == 0 {
		return "no cluster fits: no cluster has joined"
	}
	count := map[string]int{}
	for _, r := range e.Reasons {
		count[r.Why]++
	}
	reasons := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return strings.Compare(a, b)
	})
	parts := make([]string, 0, len(reasons))
	for _, r := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", count[r], r))
	}
	return fmt.Sprintf("no cluster fits: 0/%d: %s", len(e.Reasons), strings.Join(parts, ", "))
}

// UnschedulableError: there are clusters that fit, and not enough room in them. What runs stays as it is.
type UnschedulableError struct {
	Message string
}

func (e *UnschedulableError) Error() string { return e.Message }

// SpreadError: the clusters that fit cannot be spread as the placement demands. What runs stays as it is.
type SpreadError struct {
	Message string
}

func (e *SpreadError) Error() string { return e.Message }
